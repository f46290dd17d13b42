"""Table that fits into the terminal's width: columns are left out before a line would wrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from dashboards.terminal.fitting_words import fitting_words
from dashboards.text import printable

Cell = str | Sequence[str]
"""Text, or words that are joined by spaces. Words at the same place of two rows are about the same; "" is none."""

_GAP = 1


@dataclass(frozen=True)
class FittingColumn:
    """Column of a table. Of those that do not fit, the one with the highest `rank` is left out first, as are those with
    nothing in any row; 0 is always shown. One that `is_shortened` then shows the words that tell its rows apart."""

    name: str
    rank: int = 0
    is_number: bool = True
    is_shortened: bool = False


class FittingTable:
    """Rows of cells in columns, each in its style of rich where `styles` are given."""

    def __init__(
        self, columns: Sequence[FittingColumn], rows: Sequence[Sequence[Cell]], styles: Sequence[str | None] = ()
    ):
        self._columns = columns
        self._words = [[_words(cell) for cell in row] for row in rows]
        self._texts = [[" ".join(filter(None, words)) for words in row] for row in self._words]
        self._widths = [self._width(place) for place in range(len(columns))]
        self._styles = styles or [None] * len(rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        places = self._places_that_fit(options.max_width)
        table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
        for place in places:
            column = self._columns[place]
            table.add_column(column.name, justify="right" if column.is_number else "left", no_wrap=True)
        columns = [self._cells(place, places, options.max_width) for place in places]
        for cells, style in zip(zip(*columns, strict=True), self._styles, strict=True):
            table.add_row(*map(Text, cells), style=style)
        yield table

    def _cells(self, place: int, places: Sequence[int], width: int) -> Sequence[str]:
        """Cells of a column, within the width that the other columns leave to a shortened one."""
        if self._columns[place].is_shortened:
            room = width - self._total_width([other for other in places if other != place]) - _GAP
            if self._widths[place] > room:
                return fitting_words([row[place] for row in self._words], max(room, len(self._columns[place].name)))
        return [row[place] for row in self._texts]

    def _places_that_fit(self, width: int) -> list[int]:
        places = [place for place, column in enumerate(self._columns) if column.rank == 0 or self._is_told(place)]
        while self._total_width(places) > width:
            worst = max(places, key=lambda place: self._columns[place].rank)
            if self._columns[worst].rank == 0:
                break
            places.remove(worst)
        return places

    def _is_told(self, place: int) -> bool:
        return any(row[place] for row in self._texts)

    def _total_width(self, places: Sequence[int]) -> int:
        return sum(self._widths[place] + _GAP for place in places) - _GAP

    def _width(self, place: int) -> int:
        return max(len(self._columns[place].name), *(Text(row[place]).cell_len for row in self._texts), 0)


def _words(cell: Cell) -> list[str]:
    return [printable(cell)] if isinstance(cell, str) else [printable(word) for word in cell]
