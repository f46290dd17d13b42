"""Summaries of searches as the contract defines them, for `--json`, the service and end-of-search notifications."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dashboards.terminal.headline import best_layout_line, verdict_json
from orchestrator.config.spec import SearchSpec
from trials.analysis.best_layout import best_json
from trials.analysis.final_rounds import finals_end_of
from trials.analysis.node_time import search_node_time
from trials.analysis.ranking import Ranking
from trials.analysis.search_cost import SearchCost
from trials.analysis.verdict import counts_of, verdict_of
from trials.files.folders import AttemptFolder, SearchFolder, read_json
from trials.files.text import tail
from trials.ledger.events import FabricCheck, SearchRecord
from trials.trial import Attempt
from trials.trial_json import attempt_json

if TYPE_CHECKING:
    from trials.ledger.reader import SearchSummary

STATUS_SCHEMA = "parlay.status/1"
BEST_SCHEMA = "parlay.best/1"
SEARCHES_SCHEMA = "parlay.searches/1"
LOGS_SCHEMA = "parlay.logs/1"
SEARCH_NAMES = ("search_id", "state", "end_reason", "num_trials", "best_trial", "folder")
"""Fields of each search in a list."""
_EXCERPT_LINES = 40


def search_summary(search: SearchRecord, spec: SearchSpec, folder: SearchFolder) -> dict[str, Any]:
    """The contract's object of a search; unknown values are null."""
    ranking = spec.ranking_of(search.trials)
    verdict = verdict_of(search, ranking, spec.baseline_key)
    return {
        "schema": STATUS_SCHEMA,
        "search_id": search.search_id,
        "state": search.state,
        "end_reason": search.end_reason,
        "detail": search.detail,
        "fabric_check": _fabric_check(search.fabric_check),
        "finals": None if (finals := finals_end_of(search)) is None else finals.to_json(),
        "verdict": verdict_json(verdict),
        "best": _best(ranking, spec),
        "num_trials": len(search.trials),
        "trials": trial_counts(search),
        "reasons": reason_counts(search),
        "budget": {
            "node_hours_used": search.node_hours_used,
            "node_hours_reserved": search.node_hours_reserved,
            "node_hours_limit": spec.search.budget_node_hours,
        },
        "node_time": search_node_time(search).to_json(),
        "cost": SearchCost.of(search, verdict).to_json(),
        "recipe": recipe_path(folder),
        "mlflow": _mlflow(folder),
    }


def _fabric_check(check: FabricCheck | None) -> dict[str, Any] | None:
    if check is None:
        return None
    return {
        **attempt_json(check.attempt, "state", "reason", "nodes", "node_hours"),
        "slow_nodes": list(check.slow_nodes),
        "num_available": check.num_available,
        "findings": list(check.findings),
        "links": check.links,
    }


def best_summary(search: SearchRecord, spec: SearchSpec, folder: SearchFolder) -> dict[str, Any] | None:
    """The contract's object of `parlay best`; None without a best layout."""
    ranking = spec.ranking_of(search.trials)
    best = _best(ranking, spec)
    if best is None:
        return None
    verdict = verdict_of(search, ranking, spec.baseline_key)
    return {
        "schema": BEST_SCHEMA,
        "search_id": search.search_id,
        "verdict": verdict_json(verdict),
        "cost": SearchCost.of(search, verdict).to_json(),
        **best,
        "recipe": recipe_path(folder),
    }


def _best(ranking: Ranking, spec: SearchSpec) -> dict[str, Any] | None:
    best = best_json(ranking)
    if best is None or ranking.best is None:
        return None
    return best | {"training_rate": spec.training_rate(ranking.best).to_json()}


def result_line(search: SearchRecord, spec: SearchSpec) -> str:
    """The best layout in one line, against the baseline, or the reason why there is none."""
    return best_layout_line(verdict_of(search, spec.ranking_of(search.trials), spec.baseline_key))


def searches_summary(searches: Iterable[SearchSummary]) -> dict[str, Any]:
    """The contract's object of `parlay status --all`."""
    rows = [{name: getattr(search, name) for name in SEARCH_NAMES} for search in searches]
    return {"schema": SEARCHES_SCHEMA, "searches": rows}


def logs_summary(attempt: Attempt, folder: AttemptFolder, log: str | None = None) -> dict[str, Any]:
    """The contract's object of `parlay logs`, with `log` as its excerpt.

    Without `log`, the first real error, or the end of the first rank's log; null if there is none.
    """
    files = folder.rank_logs()
    excerpt = attempt.excerpt if log is None else log
    if excerpt is None and files:
        excerpt = tail(files[0], _EXCERPT_LINES)
    named = {"trial": attempt.trial, "attempt": attempt.attempt}
    return {"schema": LOGS_SCHEMA, **named, "files": [str(file) for file in files], "excerpt": excerpt}


def trial_counts(search: SearchRecord) -> dict[str, int]:
    """Trials by state, those in flight included; pruned ones do not count as failed."""
    return asdict(counts_of(search.trials))


def reason_counts(search: SearchRecord) -> dict[str, int]:
    """Ended trials by reason."""
    return dict(Counter(t.reason.value for t in search.trials if t.reason is not None))


def recipe_path(folder: SearchFolder) -> str | None:
    """The recipe's folder; None before it is written."""
    return str(folder.recipe) if folder.recipe.exists() else None


def _mlflow(folder: SearchFolder) -> dict[str, str] | None:
    """MLflow's address of the search; None without a complete file."""
    try:
        data = read_json(folder.mlflow) or {}
        return {"uri": data["uri"], "run_id": data["run_id"]}
    except (OSError, ValueError, KeyError):
        return None
