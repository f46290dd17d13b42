"""Options --verbose and --quiet, which every verb has."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from orchestrator.common.logs import TerminalSink, current_sink
from search_spaces.errors import InputError

VERBOSITY = {
    "verbose": Annotated[bool, typer.Option("--verbose", help="Log debug messages too, with time and logger.")],
    "quiet": Annotated[bool, typer.Option("--quiet", help="Log warnings and errors only.")],
}


def with_verbosity(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb with both options, which set what this process logs."""

    @wraps(verb)
    def run(*, verbose: bool, quiet: bool, **arguments: Any) -> None:
        if verbose and quiet:
            rule = "a command is verbose or quiet"
            raise InputError.of(
                "usage", "cannot be combined with --verbose", key="--quiet", rule=rule, fix="leave out one of them"
            )
        if isinstance(sink := current_sink(), TerminalSink):
            sink.is_verbose = verbose
            sink.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
        verb(**arguments)

    own = inspect.signature(verb, eval_str=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        for name, annotation in VERBOSITY.items()
    ]
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), *added])  # type: ignore[attr-defined]
    return run
