"""Names in a column that is too narrow for them: what tells them apart stays. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from dashboards.text import MORE, cut_word

_SHORTEST_WORD = 8


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
