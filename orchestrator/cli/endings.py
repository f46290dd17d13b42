"""Endings of commands: every error is printed, with --json as an object, and becomes an exit code."""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import typer

from orchestrator.cli.output import Exit, print_problems, printing_json
from orchestrator.lifecycle.exit_codes import ExitCode
from orchestrator.lifecycle.logs import TerminalSink, sending_to
from search_spaces.errors import ExternalError, InputError, Problem

if TYPE_CHECKING:
    from trials.files.folders import SearchFolder

_log = logging.getLogger(__name__)

is_whole_process: ContextVar[bool] = ContextVar("is_whole_process", default=False)
"""True in the process of a command; false where a program calls a verb, whose copy would go on with that program."""


@dataclass
class CommandEnding:
    """The exit code of a command."""

    code: int = ExitCode.SUCCESS


@contextmanager
def ending(as_json: bool) -> Iterator[CommandEnding]:
    """Run a command within this block; an error becomes its exit code. A bug prints its traceback, and with --json an
    object too."""
    end = CommandEnding()
    with sending_to(TerminalSink()), printing_json(as_json):
        try:
            yield end
        except (Exception, KeyboardInterrupt) as error:
            end.code, problems = _code_and_problems(error)
            try:
                print_problems(*problems)
            except OSError:
                discard_output(sys.stdout)


def _code_and_problems(error: BaseException) -> tuple[ExitCode, Sequence[Problem]]:
    match error:
        case Exit():
            return error.code, () if error.problem is None else (error.problem,)
        case InputError():
            is_unknown = error.problems[0].code in ("unknown_id", "ambiguous_id")
            return ExitCode.UNKNOWN_ID if is_unknown else ExitCode.BAD_INPUT, error.problems
        case ExternalError():
            return ExitCode.REFUSED, (Problem("refused", str(error), fix=error.fix),)
        case typer.TyperException():
            return ExitCode.BAD_INPUT, (_usage(error),)
        case typer.Abort() | KeyboardInterrupt():
            return ExitCode.INTERRUPTED, (Problem("interrupted", "interrupted"),)
        case OSError():
            discard_output(sys.stdout)
            return ExitCode.REFUSED, (Problem("refused", str(error)),)
    _log.error("".join(traceback.format_exception(error)))
    fix = "report it with the lines above"
    return ExitCode.INTERNAL_ERROR, (Problem("bug", f"{type(error).__name__}: {error}", fix=fix),)


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


def discard_output(stream: TextIO) -> None:
    """Redirect a broken stream to /dev/null, so that later writes and the exit do not fail again."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def resumable(folder: SearchFolder) -> Iterator[None]:
    """Within this block an error that ends the driver becomes an exit code, with the command that resumes the search
    as its fix."""
    from orchestrator.lifecycle.driver_job import DriverAlreadyQueued
    from orchestrator.search.lease import HELD_FIX, LeaseHeld, LeaseLost
    from trials.ledger.database import LedgerDamaged
    from trials.ledger.events import FencedError

    resume = resume_fix(folder)
    try:
        yield
    except LeaseHeld as held:
        fix = HELD_FIX if held.lease.is_fresh(time.time()) else None
        raise Exit(ExitCode.HELD_BY_ANOTHER, Problem("held", str(held), fix=fix)) from held
    except DriverAlreadyQueued as queued:
        raise Exit(ExitCode.HELD_BY_ANOTHER, Problem("held", str(queued), fix=HELD_FIX)) from queued
    except (LeaseLost, FencedError) as lost:
        raise Exit(ExitCode.STOPPED_EARLY, Problem("lease_lost", str(lost), fix=resume)) from lost
    except LedgerDamaged as damaged:
        raise ExternalError(str(damaged), f"{damaged.fix}; then {resume}") from damaged
    except ExternalError as refused:
        raise ExternalError(str(refused), refused.fix or resume) from refused
    except OSError as error:
        raise ExternalError(str(error), resume) from error
    except KeyboardInterrupt as interrupt:
        raise Exit(ExitCode.INTERRUPTED, Problem("interrupted", "stopped; nothing is lost", fix=resume)) from interrupt


def resume_fix(folder: SearchFolder) -> str:
    """Command that resumes the search."""
    return f"parlay resume {folder.cli_name}"
