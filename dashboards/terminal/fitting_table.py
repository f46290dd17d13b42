"""Table that fits into the terminal's width: columns are left out before a line would wrap, then words of names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from dashboards.text import MORE, cut_word, printable

Cell = str | Sequence[str]
"""Text, or words that are joined by spaces. Words at the same place of two rows are about the same; "" is none."""

_GAP = 1
_SHORTEST_WORD = 8


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


def fitting_words(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Each row's words as a text of at most `width`; all rows have the same number of words, "" for none.

    Words are left out as long as no two rows become the same, those that all rows have first. Then long words are
    cut: in the middle, or where they begin to differ.
    """
    kept = list(range(len(rows[0]))) if rows else []
    while any(cell_len(_text(row, kept)) > width for row in rows):
        dropped = next(_spare_places(rows, kept), None)
        if dropped is None:
            return _cut_rows(rows, kept, width)
        kept.remove(dropped)
    return [_text(row, kept) for row in rows]


def _spare_places(rows: Sequence[Sequence[str]], kept: Sequence[int]) -> Iterator[int]:
    """Kept places without which rows that differ still do, the last first; before these, places with one word."""
    by_place = {place: {row[place] for row in rows} for place in kept}
    yield from (place for place in reversed(kept) if len(by_place[place]) == 1 and by_place[place] != {""})
    num_different = len({tuple(row[place] for place in kept) for row in rows})
    for place in reversed(kept):
        rest = [other for other in kept if other != place]
        if by_place[place] != {""} and len({tuple(row[other] for other in rest) for row in rows}) == num_different:
            yield place


def _cut_rows(rows: Sequence[Sequence[str]], kept: Sequence[int], width: int) -> list[str]:
    for most in range(width, _SHORTEST_WORD - 1, -1):
        columns = [_cut_words(words, most) for words in zip(*rows, strict=True)]
        texts = [_text(row, kept) for row in zip(*columns, strict=True)]
        if all(cell_len(text) <= width for text in texts):
            return texts
    return [_cut_text(_text(row, kept), width) for row in rows]


def _cut_words(words: Sequence[str], most: int) -> list[str]:
    """The words, cut: in the middle, or where they begin to differ if that tells more of them apart."""
    begins = [cut_word(word, most) for word in words]
    letters = enumerate(zip(*filter(None, words), strict=False))
    differs_from = next((index for index, different in letters if len({*different}) > 1), None)
    others = [cut_word(word, most, differs_from) for word in words]
    return others if len({*others}) > len({*begins}) else begins


def _cut_text(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + MORE


def _text(row: Sequence[str], kept: Sequence[int]) -> str:
    words = [row[place] for place in kept if row[place]]
    return " ".join([*words, MORE] if len(words) < sum(map(bool, row)) else words)
