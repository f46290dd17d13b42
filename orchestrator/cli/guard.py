"""Exit codes of errors: every error that ends a command is printed, with --json as an object."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

import typer

from orchestrator.cli.output import Exit, print_error, print_input_error
from orchestrator.common.exit_codes import ExitCode
from orchestrator.common.logs import TerminalSink, sending_to
from search_spaces.errors import ExternalError, InputError, Problem

_log = logging.getLogger(__name__)


@dataclass
class Ending:
    """The exit code of a command."""

    code: int = ExitCode.SUCCESS


@contextmanager
def ending(as_json: bool) -> Iterator[Ending]:
    """Run a command within this block; an error becomes its exit code. A bug prints its traceback, and with --json an
    object too."""
    end = Ending()
    with sending_to(TerminalSink()):
        try:
            yield end
        except Exit as exit:
            end.code = exit.code
        except InputError as error:
            end.code = print_input_error(error, as_json)
        except ExternalError as refused:
            end.code = print_error(Problem("refused", str(refused), fix=refused.fix), ExitCode.REFUSED, as_json)
        except typer.TyperException as error:
            end.code = print_error(_usage(error), ExitCode.BAD_INPUT, as_json)
        except (typer.Abort, KeyboardInterrupt):
            end.code = print_error(Problem("interrupted", "interrupted"), ExitCode.INTERRUPTED, as_json)
        except OSError as error:
            discard_output(sys.stdout)
            end.code = print_error(Problem("refused", str(error)), ExitCode.REFUSED, as_json)
        except Exception as bug:
            _log.error(traceback.format_exc())
            problem = Problem("bug", f"{type(bug).__name__}: {bug}", fix="report it with the lines above")
            end.code = print_error(problem, ExitCode.INTERNAL_ERROR, as_json)


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
