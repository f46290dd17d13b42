"""A search in the contract's words: what `parlay status --json` prints, and whoever asked is told at its end."""

from __future__ import annotations

from collections import Counter
from typing import Any

from orchestrator.search_file import SearchSpec
from trials.answer import best_json
from trials.folder import SearchFolder, read_json
from trials.ledger.events import SearchRecord
from trials.trial import TrialState

STATUS_SCHEMA = "parlay.status/1"


def search_summary(search: SearchRecord, spec: SearchSpec, folder: SearchFolder) -> dict[str, Any]:
    """The contract's object of a search; what is unknown or not there is null."""
    return {
        "schema": STATUS_SCHEMA,
        "search_id": search.search_id,
        "state": search.state,
        "end_reason": search.end_reason,
        "detail": search.detail,
        "best": best_json(spec.ranking_of(search.trials)),
        "num_trials": len(search.trials),
        "trials": trial_counts(search),
        "reasons": reason_counts(search),
        "budget": {
            "node_hours_used": search.node_hours_used,
            "node_hours_reserved": search.node_hours_reserved,
            "node_hours_limit": spec.search.budget_node_hours,
        },
        "recipe": recipe_path(folder),
        "mlflow": _mlflow(folder),
    }


def trial_counts(search: SearchRecord) -> dict[str, int]:
    """How many trials ended in which state, and how many are in flight."""
    states = Counter(trial.state for trial in search.trials)
    ended = (TrialState.MEASURED, TrialState.FAILED, TrialState.CANCELLED)
    return {state.value: states[state] for state in ended} | {
        "in_flight": sum(count for state, count in states.items() if not state.is_ended)
    }


def reason_counts(search: SearchRecord) -> dict[str, int]:
    """How many trials ended for which reason."""
    return dict(Counter(t.reason.value for t in search.trials if t.reason is not None))


def recipe_path(folder: SearchFolder) -> str | None:
    """The recipe's folder, once there is one."""
    return str(folder.recipe) if folder.recipe.exists() else None


def _mlflow(folder: SearchFolder) -> dict[str, str] | None:
    """Where MLflow shows the search; a file that says nothing whole is as good as none."""
    try:
        data = read_json(folder.mlflow) or {}
        return {"uri": data["uri"], "run_id": data["run_id"]}
    except (OSError, ValueError, KeyError):
        return None
