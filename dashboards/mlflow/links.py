"""Addresses of MLflow's pages, behind that of the server: a run, and the table of runs by a filter. Pure."""

from __future__ import annotations

from urllib.parse import urlencode

# Without it MLflow opens its pages for generative AI, where runs are evaluations.
_TRAINING = {"workflowType": "machine_learning"}


def run_link(experiment_id: str, run_id: str) -> str:
    """Link to a run, within MLflow's pages."""
    return f"#/experiments/{experiment_id}/runs/{run_id}?{urlencode(_TRAINING)}"


def searches_link(experiment_id: str) -> str:
    """Link to the searches of an experiment, the newest first."""
    return _table(experiment_id, "tags.`parlay.kind` = 'search'", "attributes.start_time")


def trials_link(experiment_id: str, search_id: str) -> str:
    """Link to the trials of a search, the fastest first."""
    wanted = f"tags.`parlay.search_id` = '{search_id}' AND tags.`parlay.kind` != 'search'"
    return _table(experiment_id, wanted, "metrics.`tokens_per_sec`")


def _table(experiment_id: str, wanted: str, order: str) -> str:
    asked = {"searchFilter": wanted, "orderByKey": order, "orderByAsc": "false"}
    return f"#/experiments/{experiment_id}/runs?{urlencode(_TRAINING | asked)}"
