"""Terminal's table of the searches of a ledger. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dashboards.terminal.fitting_table import FittingColumn, FittingTable
from dashboards.terminal.headline import against_baseline
from dashboards.trial_text import UNKNOWN, format_number
from trials.analysis.ranking import Objective, value_of
from trials.analysis.verdict import baseline_key_of, ranking_of, verdict_of
from trials.ledger.events import SearchRecord

_COLUMNS = (
    FittingColumn("search", is_number=False, is_shortened=True),
    FittingColumn("state", is_number=False),
    FittingColumn("layouts", rank=2),
    FittingColumn("tokens/s"),
    FittingColumn("\N{MULTIPLICATION SIGN} baseline"),
    FittingColumn("node-hours", rank=3),
    FittingColumn("age", rank=1),
)


def searches_table(searches: Sequence[SearchRecord], now: float) -> FittingTable:
    """A row a search; `now` is UTC seconds since the epoch."""
    return FittingTable(_COLUMNS, [_cells(search, now) for search in searches])


def _cells(search: SearchRecord, now: float) -> list[str]:
    verdict = verdict_of(search, ranking_of(search, search.trials), baseline_key_of(search))
    speed = None if verdict.best is None else value_of(verdict.best, Objective.TOKENS_PER_SEC)
    most = "" if verdict.max_layouts is None else f" of {verdict.max_layouts}"
    return [
        search.search_id,
        str(verdict.state) + ("" if search.replayed_table is None else ", replayed"),
        f"{verdict.num_layouts}{most}",
        format_number(speed),
        against_baseline(verdict)[0] or UNKNOWN,
        f"{search.node_hours_used:.3g}",
        format_age(now - search.created_at),
    ]


def format_age(seconds: float) -> str:
    """Age in its largest whole unit: `3 d`, `5 h`, `12 min`, `40 s`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
