"""The command `parlay`: errors and exit codes. A verb imports what it needs when it runs."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback

# Before the imports below, which fail on an older Python with an unclear error.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.stderr.write(
        f"parlay: Python {sys.version_info[0]}.{sys.version_info[1]} is too old: 3.11 or newer is needed\n"
        "  fix: create the environment with a newer Python; trials may use another one, trainer.python\n"
    )
    sys.exit(2)

from collections.abc import Sequence
from functools import cache
from typing import Any, TextIO

import typer

from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.output import Exit, print_error, print_input_error
from orchestrator.cli.verbs import app
from orchestrator.common.logs import TerminalSink, sending_to
from search_spaces.errors import ExternalError, InputError, Problem

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    os.umask(0o077)  # files of a search are private, whatever the machine's default
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without "±" must not make a command fail
    code = run(list(sys.argv[1:] if arguments is None else arguments))
    for stream in (sys.stdout, sys.stderr):
        _discard_output(stream)
    sys.exit(int(code))


def run(words: Sequence[str]) -> int:
    """Run one command and return its exit code. A bug prints its traceback, and with --json an object too."""
    as_json = "--json" in words
    with sending_to(TerminalSink()):
        try:
            return _run(words, as_json)
        except Exception as bug:
            _log.error(traceback.format_exc())
            problem = Problem("bug", f"{type(bug).__name__}: {bug}", fix="report it with the lines above")
            return print_error(problem, ExitCode.INTERNAL_ERROR, as_json)


def _run(words: Sequence[str], as_json: bool) -> int:
    try:
        return _command()(list(words), prog_name="parlay", standalone_mode=False) or ExitCode.SUCCESS
    except Exit as exit:
        return exit.code
    except InputError as error:
        return print_input_error(error, as_json)
    except ExternalError as refused:
        return print_error(Problem("refused", str(refused), fix=refused.fix), ExitCode.REFUSED, as_json)
    except typer.TyperException as error:
        return print_error(_usage(error), ExitCode.BAD_INPUT, as_json)
    except (typer.Abort, KeyboardInterrupt):
        return print_error(Problem("interrupted", "interrupted"), ExitCode.INTERRUPTED, as_json)
    except OSError as error:
        _discard_output(sys.stdout)
        return print_error(Problem("refused", str(error)), ExitCode.REFUSED, as_json)


@cache
def _command() -> Any:
    """All verbs with their options; cached, since building it takes longer than many a verb."""
    return typer.main.get_command(app)


def _usage(error: typer.TyperException) -> Problem:
    message = (error.format_message() if hasattr(error, "format_message") else str(error)) or "no command was given"
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    key = getattr(error, "option_name", None) or (_typed(parameter) if parameter is not None else None)
    rule = " ".join(context.get_usage().split()) if context is not None else None
    return Problem("usage", message, rule=rule, fix="parlay --help, or parlay VERB --help", key=key)


def _typed(parameter: Any) -> str:
    """A parameter as in the usage: --limit, INPUT."""
    name: str = parameter.opts[-1]
    return name if name.startswith("-") or not parameter.metavar else parameter.metavar.strip("[].")


def _discard_output(stream: TextIO) -> None:
    """Redirect a broken stream to /dev/null, so that later writes and the exit do not fail again."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    main()
