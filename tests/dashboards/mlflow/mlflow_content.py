"""Content of an MLflow experiment, in comparable forms."""

from __future__ import annotations

import re
from typing import Any


def runs_by_name(client, experiment: str) -> dict[str, Any]:
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    assert len({run.info.run_name for run in found}) == len(found), "a run is there twice"
    return {run.info.run_name.split()[0]: run for run in found}


def everything(client, experiment: str) -> dict[str, Any]:
    """All that MLflow holds of an experiment, in a form that can be compared."""
    found = {}
    for name, run in runs_by_name(client, experiment).items():
        series = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
        found[name] = (
            run.info.run_id,
            run.info.status,
            run.info.start_time,
            run.info.end_time,
            run.data.params,
            run.data.tags,
            {key: [(m.step, m.timestamp, m.value) for m in points] for key, points in series.items()},
            sorted(file.path for file in client.list_artifacts(run.info.run_id)),
        )
    return found


def without_ids(found: dict[str, Any]) -> dict[str, Any]:
    """The same by the runs' names, which are those of any other store as well."""
    ids = {run[0]: name for name, run in found.items()}
    return {
        name: (*run[1:5], {key: _named(value, ids) for key, value in run[5].items()}, *run[6:])
        for name, run in found.items()
    }


def _named(text: str, ids: dict[str, str]) -> str:
    """The text with runs by their names; experiments have other numbers as well."""
    for run_id, name in ids.items():
        text = text.replace(run_id, name)
    return re.sub(r"#/experiments/\d+/", "#/experiments/N/", text)
