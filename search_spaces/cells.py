"""Text in CSV cells that no spreadsheet takes for a formula. Pure."""

from __future__ import annotations

_ACTS_IN_A_SPREADSHEET = ("=", "+", "-", "@", "'")


def text_cell(text: str) -> str:
    """The text in one line, with a quote before what a spreadsheet would run; `cell_text` takes the quote away."""
    line = " ".join(text.split())
    return f"'{line}" if line.startswith(_ACTS_IN_A_SPREADSHEET) else line


def cell_text(cell: str) -> str:
    """What `text_cell` made a cell of, without the blanks around it."""
    text = cell.strip()
    return text[1:] if text[:1] == "'" and text[1:2] in _ACTS_IN_A_SPREADSHEET else text
