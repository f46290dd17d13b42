"""A CSV table's rows, what is wrong with its lines, and text in cells that no spreadsheet takes for a formula. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from search_spaces.errors import InputError

_ACTS_IN_A_SPREADSHEET = ("=", "+", "-", "@", "'")


def escape_cell(text: str) -> str:
    """The text in one line, with a quote before what a spreadsheet would run; `unescape_cell` takes the quote away."""
    line = " ".join(text.split())
    return f"'{line}" if line.startswith(_ACTS_IN_A_SPREADSHEET) else line


def unescape_cell(cell: str) -> str:
    """What `escape_cell` made a cell of, without the blanks around it."""
    text = cell.strip()
    return text[1:] if text[:1] == "'" and text[1:2] in _ACTS_IN_A_SPREADSHEET else text


def csv_rows(text: str, file: str) -> Iterator[tuple[int, list[str]]]:
    """Each row that is not blank with the number of its last line, the header first; InputError for a broken line.

    Lines end as on any system. Remarks stand above the header only, and are no CSV.
    """
    lines = io.StringIO(text, newline=None).readlines()
    first = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    rows = csv.reader(lines[first:], strict=True)
    try:
        for cells in rows:
            if cells:
                yield first + rows.line_num, cells
    except csv.Error as error:
        raise _broken_line(error).at(file=file, line=first + rows.line_num) from error


def row_length_error(num_cells: int, num_columns: int) -> InputError:
    """That a row has not a cell for each column."""
    return InputError.of(
        "csv",
        f"{num_cells} cells where the header has {num_columns} columns",
        rule="a row has a cell for each column; one with a comma in it is quoted",
        fix="correct the row, or take it out",
    )


def _broken_line(error: csv.Error) -> InputError:
    return InputError.of(
        "csv",
        str(error),
        rule="a cell with a comma, a quote or a line break in it is quoted, and quotes inside it are doubled",
        fix="correct the line, or save the table as CSV again",
    )
