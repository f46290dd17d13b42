"""The verbs of `parlay`. A verb's module is imported when it is called, so that `parlay --help` imports none."""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from orchestrator.cli.output import print_text, prints_json
from orchestrator.lifecycle.logs import TerminalSink, current_sink
from search_spaces.errors import InputError

_GROUPS = {
    "Prepare a search": {
        "init": "Write a commented search file: an example, or converted from a training configuration.",
        "plan": "List the layouts a search may try in predicted order, and the rules that reject the others."
        " With --nodes: forecast step time and best layout on more nodes than a search tried. Launches nothing.",
        "expect": "Say how fast a training should be, whether a measured speed is normal, and what may make it slow.",
        "schema": "Print the JSON schema of search files, for editors, or of an answer: what a command"
        " prints with --json.",
    },
    "Search": {
        "run": "Search in the foreground: trials run until the best layout is known or a limit is reached.",
        "submit": "Search in the background: the driver outlives this terminal.",
        "resume": "Continue a search whose driver has stopped; no trial runs twice.",
        "cancel": "End a search and its trials in flight.",
        "advance": "Drive a search for one turn and exit: for cron and scrontab, if no process may stay on"
        " a login node.",
    },
    "Follow a search": {
        "status": "Show the state of a search.",
        "watch": "Follow a search until it ends, whatever drives it; ctrl-C leaves it running.",
        "logs": "Show the output of a trial's ranks, and the first real error in it.",
        "dashboard": "Serve MLflow's UI on loopback, for the current user only, until ctrl-C.",
        "serve": "Drive the searches of many terminals until ctrl-C; a restart continues them.",
    },
    "Use the result": {
        "best": "Print the best layout of a search, and the path of its recipe.",
        "report": "Write a search as one HTML file, which needs no network.",
        "replay": "Measure a recipe's layout again and report whether its throughput was reproduced.",
        "compare": "Show what differs between two recipes or searches, and how much faster B's best layout"
        " is than A's.",
        "export": "Write a search's trials for other programs and other searches.",
        "import": "Convert another program's measurements to a measured table, for `search.warm_start` and"
        " `space.candidates`.",
        "sync": "Send to MLflow what is missing there. Repeating it creates no duplicates.",
    },
    "Check the cluster": {
        "doctor": "Find what would keep a search from running here or slow it down, and how to fix it.",
        "calibrate": "Measure compute, memory and links of this search's cluster, and write a cluster file.",
        "selftest": "Train every kind of layout on this search's cluster and compare each with a plain GPT"
        " on one device.",
    },
    "Maintain": {
        "ledger": "Maintain the ledger, the database of all searches.",
        "slurm-sandbox": "A real Slurm on this machine, to try Parlay on.",
    },
}
"""Sentence of each verb, by the heading under which `--help` lists it."""
VERBS = {verb: sentence for verbs in _GROUPS.values() for verb, sentence in verbs.items()}
_MODULES = {
    **dict.fromkeys(("init", "schema"), "prepare"),
    **dict.fromkeys(("run", "resume"), "drive"),
    "replay": "compare",
    **dict.fromkeys(("status", "logs", "dashboard"), "look"),
    **dict.fromkeys(("best", "report", "export", "import"), "results"),
    **dict.fromkeys(("cancel", "sync"), "end"),
    **dict.fromkeys(("doctor", "calibrate", "selftest"), "diagnose"),
}
"""Modules that are not named as their verb."""
_JSON_HELP = "Print one JSON object to stdout, everything else to stderr."


class Verb(TyperCommand):
    """A verb with the options that every verb has: --json, --verbose and --quiet."""

    def __init__(self, name: str | None, **options: Any):
        super().__init__(name, **options)
        self.params += _common_options()


class _Verbs(TyperGroup):
    """All verbs; `--help` lists their names and sentences by group."""

    def __init__(self, **options: Any):
        listed = {
            verb: TyperCommand(verb, help=sentence, rich_help_panel=heading)
            for heading, verbs in _GROUPS.items()
            for verb, sentence in verbs.items()
        }
        super().__init__(**options | {"commands": listed})

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, _, others = super().resolve_command(ctx, args)
        return name, None if name is None else command_of(name), others


app = typer.Typer(
    cls=_Verbs,
    name="parlay",
    help="Finds the fastest way to lay a GPT training out over a cluster.",
    epilog="Start with: parlay init > search.yaml; parlay plan search.yaml; parlay run search.yaml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@cache
def command_of(verb: str) -> Any:
    """The verb with its options, or the group of verbs of this name. A verb's docstring follows its sentence."""
    name = _MODULES.get(verb, verb.replace("-", "_"))
    module = import_module(f"orchestrator.cli.{name}")
    if (group := getattr(module, "commands", None)) is not None:
        return typer.main.get_group(group)
    one = typer.Typer(add_completion=False)
    function = getattr(module, "import_results" if verb == "import" else verb)
    one.command(verb, cls=Verb, help="\n\n".join(filter(None, (VERBS[verb], function.__doc__))))(function)
    return typer.main.get_command(one)


def group(name: str) -> typer.Typer:
    """A group of verbs with this name."""
    return typer.Typer(name=name, help=VERBS[name], no_args_is_help=True)


def _set_json(is_given: bool) -> None:
    prints_json.set(is_given)


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
def _common_options() -> list[Any]:
    """The options of every verb, as typer makes them of a function's arguments."""
    one = typer.Typer(add_completion=False)

    @one.command()
    def verb(
        as_json: Annotated[
            bool, typer.Option("--json", help=_JSON_HELP, callback=_set_json, expose_value=False)
        ] = False,
        verbose: Annotated[
            bool,
            typer.Option(
                "--verbose",
                help="Log debug messages too, with time and logger.",
                callback=_set_verbosity,
                expose_value=False,
            ),
        ] = False,
        quiet: Annotated[
            bool,
            typer.Option("--quiet", help="Log warnings and errors only.", callback=_set_verbosity, expose_value=False),
        ] = False,
    ) -> None: ...

    return list(typer.main.get_command(one).params)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print_text(f"parlay {version('parlay')}")
        raise typer.Exit


@app.callback()
def _parlay(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the command itself; the callback of --version answers."""
