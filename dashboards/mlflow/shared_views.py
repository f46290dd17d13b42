"""Shared views of MLflow's experiment page: which runs, columns and charts it shows. Pure.

MLflow keeps a shared view as a tag of the experiment, and opens it by `viewStateShareKey` in the address (its button
"Share").
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

SEARCHES = "parlay-searches"
"""Key of the view of the experiment's searches, newest first."""
_TAG = "mlflow.sharedViewState."
_LAYOUT_PARAMS = (
    *("num_nodes", "tensor_parallel", "pipeline_parallel", "data_parallel", "micro_batch_size", "zero_stage"),
)
_TRAINING = "workflowType=machine_learning"
"""Without it MLflow opens its pages for generative AI, where runs are evaluations."""
_SECTION = "parlay"
_MOST_RUNS = 100
"""Runs in a chart."""


def trials_key(search_id: str) -> str:
    """Key of the view of one search's trials, fastest first."""
    return f"parlay-{search_id}"


def shared_views(search_id: str) -> dict[str, str]:
    """Tags of the experiment with its views: of all searches, and of this one's trials."""
    views = {
        SEARCHES: _view(
            "Parlay: searches",
            "tags.`parlay.kind` = 'search'",
            "attributes.start_time",
            (
                *_columns("metrics", "best_tokens_per_sec", "speedup", "node_hours_used", "trials_measured"),
                *_columns("metrics", "trials_failed"),
                *_columns("tags", "parlay.best_layout", "parlay.state", "parlay.reason", "parlay.model"),
            ),
            (_bars("best_tokens_per_sec"), _bars("speedup"), _bars("node_hours_used")),
        ),
        trials_key(search_id): _view(
            f"Parlay: {search_id}",
            f"tags.`parlay.search_id` = '{search_id}' AND tags.`parlay.kind` != 'search'",
            "metrics.`tokens_per_sec`",
            (
                *_columns("metrics", "tokens_per_sec", "speedup", "step_time_s", "peak_memory_gib"),
                *_columns("params", *_LAYOUT_PARAMS),
                *_columns("tags", "parlay.state", "parlay.reason", "parlay.kind"),
            ),
            (
                _scatter("peak_memory_gib", "tokens_per_sec"),
                _scatter("step_time_s", "predicted_step_time_s"),
                _parallel(("tensor_parallel", "pipeline_parallel", "micro_batch_size"), ("tokens_per_sec",)),
            ),
        ),
    }
    return {f"{_TAG}{key}": state for key, state in views.items()}


def view_path(experiment_id: str, key: str) -> str:
    """Address of a view, behind that of the server."""
    return f"/#/experiments/{experiment_id}/runs?{_TRAINING}&viewStateShareKey={key}"


def run_path(experiment_id: str, run_id: str, page: str = "") -> str:
    """Address of a run, or of one of its pages (`/system-metrics`), behind that of the server."""
    return f"/#/experiments/{experiment_id}/runs/{run_id}{page}?{_TRAINING}"


def _columns(kind: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{kind}.`{name}`" for name in names)


def _chart(kind: str, name: str, **settings: Any) -> dict[str, Any]:
    common = {"runsCountToCompare": _MOST_RUNS, "metricSectionId": _SECTION, "deleted": False, "isGenerated": False}
    return {"uuid": f"parlay-{kind.lower()}-{name}", "type": kind, **common, **settings}


def _bars(metric: str) -> dict[str, Any]:
    return _chart("BAR", metric, metricKey=metric)


def _scatter(x: str, y: str) -> dict[str, Any]:
    axes = {"xaxis": {"key": x, "type": "METRIC"}, "yaxis": {"key": y, "type": "METRIC"}}
    return _chart("SCATTER", f"{x}-{y}", **axes)


def _parallel(params: Sequence[str], metrics: Sequence[str]) -> dict[str, Any]:
    return _chart("PARALLEL", "layouts", selectedParams=list(params), selectedMetrics=list(metrics), showAllRuns=False)


def _view(
    name: str, run_filter: str, order_by: str, columns: Sequence[str], charts: Sequence[Mapping[str, Any]]
) -> str:
    """Saved view of this name as JSON: the state of the page, with MLflow's names and its defaults for the rest."""
    state = {
        "searchFilter": run_filter,
        "orderByKey": order_by,
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": list(columns),
        "runsExpanded": {},
        "runsPinned": [],
        "runsHidden": [],
        "runsHiddenMode": "SHOW_ALL",
        "runListHidden": False,
        "isAccordionReordered": False,
        "viewMaximized": False,
        "groupBy": None,
        "groupsExpanded": {},
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "autoRefreshEnabled": False,
        "compareRunCharts": list(charts),
        "compareRunSections": [{"uuid": _SECTION, "name": "Parlay", "display": True, "isReordered": False}],
    }
    return _json({"name": name, "createdAt": 0, "updatedAt": 0, "state": _json(state)})


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
