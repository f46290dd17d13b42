"""Table that fits into the terminal's width: columns are left out before a line would wrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from dashboards.text import printable

_GAP = 1


@dataclass(frozen=True)
class FittingColumn:
    """Column of a table. Of those that do not fit, the one with the highest `rank` is left out first; 0 is always
    shown. One that `is_shortened` then shows as many words of its cells as fit."""

    name: str
    rank: int = 0
    is_number: bool = True
    is_shortened: bool = False


class FittingTable:
    """Rows of text in columns; `bold` are the indices of the rows in bold type."""

    def __init__(self, columns: Sequence[FittingColumn], rows: Sequence[Sequence[str]], bold: Sequence[int] = ()):
        self._columns = columns
        self._rows = [[printable(cell) for cell in row] for row in rows]
        self._widths = [self._width(place) for place in range(len(columns))]
        self._bold = {*bold}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        places = self._places_that_fit(options.max_width)
        table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
        for place in places:
            column = self._columns[place]
            table.add_column(column.name, justify="right" if column.is_number else "left", no_wrap=True)
        rooms = {place: self._room(place, places, options.max_width) for place in places}
        for index, row in enumerate(self._rows):
            cells = [_whole_words(row[place], rooms[place]) for place in places]
            table.add_row(*map(Text, cells), style="bold" if index in self._bold else None)
        yield table

    def _places_that_fit(self, width: int) -> list[int]:
        places = list(range(len(self._columns)))
        while self._total_width(places) > width:
            worst = max(places, key=lambda place: self._columns[place].rank)
            if self._columns[worst].rank == 0:
                break
            places.remove(worst)
        return places

    def _room(self, place: int, places: Sequence[int], width: int) -> int | None:
        """Width that the other columns leave to a shortened one; None for any other column."""
        if not self._columns[place].is_shortened:
            return None
        return width - self._total_width([other for other in places if other != place]) - _GAP

    def _total_width(self, places: Sequence[int]) -> int:
        return sum(self._widths[place] + _GAP for place in places) - _GAP

    def _width(self, place: int) -> int:
        return max(len(self._columns[place].name), *(Text(row[place]).cell_len for row in self._rows), 0)


def _whole_words(text: str, width: int | None) -> str:
    """The words that fit, with dots for those that do not; all of them for any width (None)."""
    if width is None or len(text) <= width:
        return text
    words = text.split(" ")
    while words and len(" ".join(words)) + 2 > width:
        words.pop()
    return f"{' '.join(words)} …"
