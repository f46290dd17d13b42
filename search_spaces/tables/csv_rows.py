"""CSV rows with line numbers, errors in them, and escaping of text that a spreadsheet would take for a formula.
Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from search_spaces.errors import InputError

_FORMULA_PREFIXES = ("=", "+", "-", "@", "'")


def escape_cell(text: str) -> str:
    """The text on one line, with a quote before what a spreadsheet would execute; `unescape_cell` removes it."""
    line = " ".join(text.split())
    return f"'{line}" if line.startswith(_FORMULA_PREFIXES) else line


def unescape_cell(cell: str) -> str:
    """The inverse of `escape_cell`, without surrounding blanks."""
    text = cell.strip()
    return text[1:] if text[:1] == "'" and text[1:2] in _FORMULA_PREFIXES else text


def csv_rows(text: str, file: str) -> Iterator[tuple[int, list[str]]]:
    """Each non-blank row with the number of its last line, the header first; InputError for a malformed line.

    Any line endings. Comments are allowed above the header only.
    """
    lines = io.StringIO(text, newline=None).readlines()
    first = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    rows = csv.reader(lines[first:], strict=True)
    try:
        for cells in rows:
            if cells:
                yield first + rows.line_num, cells
    except csv.Error as error:
        raise _line_error(error).at(file=file, line=first + rows.line_num) from error


def row_length_error(num_cells: int, num_columns: int) -> InputError:
    """InputError for a row whose number of cells is not that of the header."""
    return InputError.of(
        "csv",
        f"{num_cells} cells where the header has {num_columns} columns",
        rule="a row has a cell for each column; one with a comma in it is quoted",
        fix="correct the row, or remove it",
    )


def _line_error(error: csv.Error) -> InputError:
    return InputError.of(
        "csv",
        str(error),
        rule="a cell with a comma, a quote or a line break in it is quoted, and quotes inside it are doubled",
        fix="correct the line, or save the table as CSV again",
    )
