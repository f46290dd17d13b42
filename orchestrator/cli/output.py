"""Output of verbs: one object on stdout with --json, else text; everything else goes to stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dashboards.text import lines_for, printable_lines
from orchestrator.common.exit_codes import ExitCode
from orchestrator.common.logs import logs_to_driver_log
from search_spaces.errors import InputError, Problem

if TYPE_CHECKING:
    from orchestrator.common.answer import AnswerPart

_log = logging.getLogger(__name__)

STDOUT = Path("-")
"""Value of --out for stdout."""


class Exit(Exception):
    """Ends the command with this code, after its output."""

    def __init__(self, code: ExitCode):
        super().__init__(code)
        self.code = code


def print_result(answer: AnswerPart, as_json: bool, text: str | None = None) -> None:
    """Print the result: `answer` with --json, else `text`."""
    if as_json:
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


def print_table(text: str) -> None:
    """Print a table as the result: unchanged to a pipe or a file, escaped on a terminal."""
    sys.stdout.write(printable_lines(text.replace("\r\n", "\n")) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def log(text: str) -> None:
    """Log a remark beside the result."""
    _log.info(text)


def warn(text: str) -> None:
    """Log what the user should look at, also with --quiet."""
    _log.warning(text)


def write_new(path: Path, content: str | bytes, option: str) -> None:
    """Write a new file, named by `option`: completely or not at all. Raises InputError if it exists or cannot be
    written."""
    whole = content.encode("utf-8") if isinstance(content, str) else content
    is_ours = False
    try:
        with path.open("xb") as stream:
            is_ours = True
            stream.write(whole)
    except BaseException as error:
        if is_ours:
            path.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        message, fix = f"{path}: {error.strerror}", "use a new file"
        raise InputError.of("output", message, key=option, value=str(path), fix=fix) from error


def require_single_stdout(out: Path | None, as_json: bool) -> None:
    """Raise InputError if --out - and --json both want stdout."""
    if out == STDOUT and as_json:
        fix = "leave one of them out"
        raise InputError.of("usage", "and --json both write to stdout", key="--out", value="-", fix=fix)


def exit_with_error(code: ExitCode, problem: Problem, as_json: bool) -> NoReturn:
    """Exit with an error message and its fix."""
    raise Exit(print_error(problem, code, as_json))


def print_error(problem: Problem, code: ExitCode, as_json: bool) -> ExitCode:
    """Print the problem, with --json as an object on stdout; return the exit code. A driver's log has it, too."""
    _print_problems((problem,), as_json)
    return code


def print_input_error(error: InputError, as_json: bool) -> ExitCode:
    """Print all problems, with --json as an object on stdout; return the exit code. A driver's log has them, too."""
    _print_problems(error.problems, as_json)
    unknown = error.problems[0].code in ("unknown_id", "ambiguous_id")
    return ExitCode.UNKNOWN_ID if unknown else ExitCode.BAD_INPUT


def _print_problems(problems: Sequence[Problem], as_json: bool) -> None:
    if as_json:
        from orchestrator.common.answer import ErrorAnswer

        print_json(ErrorAnswer.of(*problems).plain())
    if not as_json or logs_to_driver_log():
        for problem in problems:
            _log.error("parlay: %s", problem)
