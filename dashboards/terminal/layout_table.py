"""Terminal's table of layouts: its rows, their marks and colours. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dashboards.columns import COLUMNS, MARKS, STATE, marks_of, short_state
from dashboards.search_view import SearchView
from dashboards.terminal.fitting_table import Cell, FittingColumn, FittingTable
from search_spaces.layouts.short_name import short_name_words
from trials.analysis.ranked_layout import RankedLayout, TrialOrLayout
from trials.analysis.verdict import has_failed
from trials.trial import Trial, TrialKind

_SHOWN = [(each, each.priority) for each in COLUMNS if each.priority is not None]
_HEADINGS = (
    FittingColumn("trial", is_number=False),
    *(FittingColumn(each.name, rank, each.is_number, is_shortened=each is COLUMNS[0]) for each, rank in _SHOWN),
)


class MarkedTable(FittingTable):
    """Rows of trials and layouts, marked: a layout shows its numbers over all runs, and how many these are. The best is
    green, a failure red, a repeat dim. `num_more` layouts are not shown."""

    def __init__(self, rows: Sequence[TrialOrLayout], view: SearchView, num_more: int = 0):
        cells = [list(_cells(row, view)) for row in rows]
        super().__init__(_HEADINGS, cells, [_style(row, view) for row in rows])
        self.num_more = num_more
        self.legend = _legend(rows, view)


def _cells(row: TrialOrLayout, view: SearchView) -> Iterator[Cell]:
    yield f"{row.trial} {''.join(MARKS[mark] for mark in marks_of(row, view))}".rstrip()
    for each, _ in _SHOWN:
        if each is COLUMNS[0]:
            yield short_name_words(row.layout, view.varying)
        else:
            yield short_state(row, view) if each.name == STATE else each.text(row, view)


def _style(row: TrialOrLayout, view: SearchView) -> str | None:
    if row is view.best:
        return "bold green"
    if isinstance(row, Trial) and has_failed(row):
        return "red"
    return "dim" if isinstance(row, Trial) and row.kind is TrialKind.REPEAT else None


def _legend(rows: Sequence[TrialOrLayout], view: SearchView) -> str:
    """Meaning of the marks in these rows; "" without one."""
    used = {mark for row in rows for mark in marks_of(row, view)}
    words = {"best": view.verdict.best_word, "tie": "tied with it", "flag": "flagged, see below"}
    return "   ".join(f"{sign} {words.get(mark, mark)}" for mark, sign in MARKS.items() if mark in used)


def results_table(view: SearchView, most: int | None = None) -> MarkedTable:
    """Table of the layouts, the fastest first, then those without a measurement in launch order.

    Of more than `most` rows (None: any number) the first are shown, with the best layout and the baseline.
    """
    rows = list(view.rows)
    pinned = [place for place, row in enumerate(rows) if row is view.best or view.is_baseline(row)]
    others = [place for place in range(len(rows)) if place not in pinned]
    room = len(rows) if most is None else max(0, most - len(pinned))
    shown = [rows[place] for place in sorted([*pinned, *others[:room]])]
    return MarkedTable(shown, view, num_more=len(rows) - len(shown))


def newest_rows(view: SearchView, room: int) -> list[TrialOrLayout]:
    """The best, the baseline, and the newest trials in launch order, `room` rows together."""
    ranked: dict[str, TrialOrLayout] = {layout.trial: layout for layout in view.ranking.ordered}
    rows = [ranked.get(trial.trial, trial) for trial in view.search.trials]
    pinned = [row for row in rows if row is view.best or _is_baseline(row, view)][:room]
    newest = [row for row in rows if row not in pinned]
    return [*pinned, *newest[max(0, len(newest) - (room - len(pinned))) :]]


def _is_baseline(row: TrialOrLayout, view: SearchView) -> bool:
    is_run = isinstance(row, RankedLayout) or row.kind is TrialKind.SEARCH
    return is_run and view.is_baseline(row)
