"""Options --verbose and --quiet, which every verb has."""

import logging
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from orchestrator.common.logs import TerminalSink, current_sink
from search_spaces.errors import InputError

VERBOSITY = ("verbose", "quiet")


class Verb(TyperCommand):
    """A verb with both options, which set what this process logs."""

    def __init__(self, name: str | None, **options: Any):
        super().__init__(name, **options)
        self.params += _options()


def _set_verbosity(context: typer.Context, option: typer.CallbackParam, is_given: bool) -> None:
    if not is_given:
        return
    if context.meta.setdefault("verbosity", option.name) != option.name:
        rule = "a command is verbose or quiet"
        raise InputError.of(
            "usage", "cannot be combined with --verbose", key="--quiet", rule=rule, fix="leave out one of them"
        )
    if isinstance(sink := current_sink(), TerminalSink):
        sink.is_verbose = option.name == "verbose"
        sink.setLevel(logging.DEBUG if sink.is_verbose else logging.WARNING)


@cache
def _options() -> list[Any]:
    """Both options, as typer makes them of a function's arguments."""
    app = typer.Typer(add_completion=False)
    both = {"callback": _set_verbosity, "expose_value": False}

    @app.command()
    def verb(
        verbose: Annotated[
            bool, typer.Option("--verbose", help="Log debug messages too, with time and logger.", **both)
        ] = False,
        quiet: Annotated[bool, typer.Option("--quiet", help="Log warnings and errors only.", **both)] = False,
    ) -> None: ...

    return list(typer.main.get_command(app).params)
