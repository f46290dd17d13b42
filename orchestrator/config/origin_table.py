"""Table of an imported search file: which value was read from where. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from search_spaces.schema.unsafe_text import safe_text
from search_spaces.schema.validation import FILL_IN

_HEADINGS = ("key", "value", "read from")
_NOT_FOUND = "unknown: fill it in"
_MOST_VALUE, _WIDTH = 40, 108


def origin_lines(values: Mapping[str, Any], origins: Mapping[str, str]) -> list[str]:
    """Lines of the table. `values` are those of the search file by key (`model.num_layers`); a key is in the table if
    it has an origin or is left to fill in."""
    rows = [
        (key, _shown(value), _NOT_FOUND if value == FILL_IN else safe_text(origins[key]))
        for key, value in values.items()
        if value == FILL_IN or key in origins
    ]
    if not rows or not origins:
        return []
    widths = [max(len(row[column]) for row in (_HEADINGS, *rows)) for column in (0, 1)]
    return [line for row in (_HEADINGS, *rows) for line in _row(row, widths)]


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else safe_text(str(value))
    return text if len(text) <= _MOST_VALUE else text[: _MOST_VALUE - 1] + "…"


def _row(row: tuple[str, str, str], widths: list[int]) -> Iterator[str]:
    start = f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  "
    wrapped = textwrap.wrap(row[2], max(30, _WIDTH - len(start)), break_long_words=False, break_on_hyphens=False)
    for index, part in enumerate(wrapped or [""]):
        yield ((start if index == 0 else " " * len(start)) + part).rstrip()
