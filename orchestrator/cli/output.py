"""Output of verbs: one object on stdout with --json, else text; everything else goes to stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dashboards.text import lines_for, printable, printable_lines
from orchestrator.lifecycle.exit_codes import ExitCode
from orchestrator.lifecycle.logs import logs_to_driver_log
from search_spaces.errors import InputError, Problem, format_value

if TYPE_CHECKING:
    from orchestrator.config.answer import AnswerPart

_log = logging.getLogger(__name__)

STDOUT = Path("-")
"""Value of --out for stdout."""
_MAX_CELL = 60

prints_json: ContextVar[bool] = ContextVar("prints_json", default=False)
"""True for a command with --json."""


@contextmanager
def printing_json(is_wanted: bool) -> Iterator[None]:
    """Within this block commands print JSON or text."""
    token = prints_json.set(is_wanted)
    try:
        yield
    finally:
        prints_json.reset(token)


class Exit(Exception):
    """Ends the command with this code: after its output, or with a problem that is still to be printed."""

    def __init__(self, code: ExitCode, problem: Problem | None = None):
        super().__init__(code)
        self.code = code
        self.problem = problem


def exit_with(code: ExitCode) -> None:
    """Exit with this code, unless it says success."""
    if code is not ExitCode.SUCCESS:
        raise Exit(code)


def print_result(answer: AnswerPart, text: str | None = None) -> None:
    """Print the result: `answer` with --json, else `text`."""
    if prints_json.get():
        print_json(answer.plain())
    elif text is not None:
        print_text(text)


def print_json(data: Any) -> None:
    """Print these JSON values as the result."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def print_text(text: str) -> None:
    """Print this text as the result, or a part of it."""
    sys.stdout.write(lines_for(sys.stdout, text))
    sys.stdout.flush()


def print_columns(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table of values as they are in a YAML file, each cut to a line of cells."""
    from rich.table import Table

    from dashboards.terminal.live_table import console_for

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    console_for(sys.stdout).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    text = printable(value if isinstance(value, str) else format_value(value))
    return text if len(text) <= _MAX_CELL else text[: _MAX_CELL - 1] + "…"


def align(*rows: Sequence[str]) -> list[str]:
    """Lines of a text table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def print_table(text: str) -> None:
    """Print a CSV table as the result: unchanged to a pipe or a file, escaped on a terminal."""
    sys.stdout.write(printable_lines(text.replace("\r\n", "\n")) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def log(text: str) -> None:
    """Log a remark beside the result."""
    _log.info(text)


def warn(text: str) -> None:
    """Log what the user should look at, also with --quiet."""
    _log.warning(text)


def require_single_stdout(out: Path | None) -> None:
    """Raise InputError if --out - and --json both want stdout."""
    if out == STDOUT and prints_json.get():
        fix = "leave one of them out"
        raise InputError.of("usage", "and --json both write to stdout", key="--out", value="-", fix=fix)


def print_problems(*problems: Problem) -> None:
    """Print the problems, with --json as an object on stdout. A driver's log has them, too."""
    if prints_json.get() and problems:
        from orchestrator.config.answer import ErrorAnswer

        print_json(ErrorAnswer.of(*problems).plain())
    if not prints_json.get() or logs_to_driver_log():
        for problem in problems:
            _log.error("parlay: %s", problem)
