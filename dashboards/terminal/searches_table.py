"""Terminal's table of the searches of a ledger. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dashboards.search_rows import SearchListRow, search_row
from dashboards.terminal.fitting_table import FittingColumn, FittingTable
from dashboards.trial_text import UNKNOWN
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
    return FittingTable(_COLUMNS, [_cells(search_row(search, owner=""), now) for search in searches])


def _cells(row: SearchListRow, now: float) -> list[str]:
    return [
        row.search_id,
        str(row.state) + (", replayed" if row.is_replayed else ""),
        f"{row.num_layouts}" + ("" if row.max_layouts is None else f" of {row.max_layouts}"),
        row.tokens_per_sec or UNKNOWN,
        row.against_baseline[0] or UNKNOWN,
        row.node_hours,
        row.age(now),
    ]
