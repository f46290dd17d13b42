"""Table of all layouts and of the runs of each, for the page: which columns, marks, states and remarks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dashboards.columns import COLUMNS, SPEED, STATE, Column, axis_columns, column, marks_of, state_text
from dashboards.report.log_excerpts import Excerpts
from dashboards.search_view import SearchView, recorded_section
from dashboards.text import printable
from dashboards.trial_text import describe_failure, describe_straggler
from search_spaces.layouts.layout import AXES
from trials.analysis.ranked_layout import RankedLayout, TrialOrLayout
from trials.analysis.ranking import Objective
from trials.analysis.verdict import has_stopped_early
from trials.trial import Trial

_RUN_COLUMNS = (SPEED, "step s", "GiB", "queue", "node-hours")


def table(view: SearchView) -> Mapping[str, Any]:
    """Variables of the template's table."""
    told = (each for each in COLUMNS if each.priority == 0 or any(each.text(row, view) for row in view.rows))
    return {
        "columns": [*told, *axis_columns(view)],
        "run_columns": [column(name) for name in _RUN_COLUMNS],
        "sorted_by": SPEED if view.objective is Objective.TOKENS_PER_SEC and view.ranking.ordered else None,
        "keys": {axis.label.lower(): axis.key for axis in AXES.values()},
        "marks": lambda row: _page_marks(row, view),
        "state": row_state,
        "state_name": STATE,
        "end": state_text,
        "words": lambda row: " ".join(part for part in row.layout.key_parts.values() if part),
        "remark": lambda run: _remark(run, view),
        "excerpt": Excerpts.of(view.search.trials).shown,
        "sort_key": sort_key,
    }


def sort_key(each: Column, row: TrialOrLayout, view: SearchView) -> float | str:
    """Sort key of a cell; "" for unknown, which comes last in either order."""
    value = each.value(row, view)
    return "" if value is None else value


def row_state(row: TrialOrLayout) -> str:
    """State for the row's colour; a trial that stopped early has not failed."""
    trial = row.first if isinstance(row, RankedLayout) else row
    return "stopped_early" if has_stopped_early(trial) else str(trial.state)


def _page_marks(row: TrialOrLayout, view: SearchView) -> Iterator[str]:
    yield from (view.verdict.best_word if mark == "best" else mark for mark in marks_of(row, view))


def _remark(run: Trial, view: SearchView) -> str | None:
    limit_gib = recorded_section(view.search.spec, "measure").get("memory_limit_gib")
    last = run.last_attempt
    words = describe_straggler(run) or (describe_failure(last, limit_gib) if last else None)
    return None if words is None else printable(words)
