"""parlay replay: is a recipe still as fast, here, or under another trainer?"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.exit_codes import ExitCode, code_after
from orchestrator.cli.options import AsJson, LedgerUrl
from orchestrator.cli.output import Exit, answer, fail, say
from orchestrator.signals import Stop
from search_spaces.durations import seconds_of
from search_spaces.errors import InputError, Problem
from trials.folder import SearchFolder, write_json
from trials.text import counted

if TYPE_CHECKING:
    from orchestrator.recipe.read import LoadedRecipe
    from orchestrator.replay import ReplayResult, ReplayRules


class ReplayLauncher(StrEnum):
    """What may start a replay's ranks."""

    LOCAL = "local"
    RAY = "ray"
    SLURM = "slurm"


def add_to(app: typer.Typer) -> None:
    """Register this file's verb."""
    app.command()(replay)


def replay(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe's folder, or a search's id; the newest search if absent.")
    ] = None,
    launcher: Annotated[
        ReplayLauncher | None, typer.Option("--launcher", help="What starts the ranks; what the search used if absent.")
    ] = None,
    trainer: Annotated[
        str | None,
        typer.Option("--trainer", help="Another trainer's kind, told more by --set; the one that measured if absent."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Of that trainer: --set trainer.script=pretrain_gpt.py."),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", help="How often the layout is measured at an occasion.")] = 5,
    occasions: Annotated[
        int, typer.Option("--occasions", help="At how many it is measured at most, while it is not reproduced.")
    ] = 3,
    apart: Annotated[str, typer.Option("--apart", help="Time between two occasions.")] = "5m",
    margin: Annotated[float, typer.Option("--margin", help="Relative change that still counts as the same.")] = 0.05,
    force: Annotated[bool, typer.Option("--force", help="Read a recipe that was edited all the same.")] = False,
    work_dir: Annotated[Path, typer.Option("--work-dir", help="Folder in which the replay gets its own.")] = Path(
        "runs"
    ),
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Measure a recipe's layout again and say whether it was reproduced."""
    from orchestrator.recipe.read import read_recipe
    from orchestrator.replay import ReplayRules

    loaded = read_recipe(_recipe_folder(recipe, ledger), force)
    if loaded.banner:
        say(loaded.banner)
    rules = ReplayRules(repeats, margin, occasions, _apart_s(apart))
    told, python = _with_trainer(loaded, trainer, sets or ())
    folder = SearchFolder(work_dir.absolute() / f"replay-{secrets.token_hex(3)}")
    result = _replayed(told, launcher, rules, folder, python, as_json)
    _note_in_recipe(loaded, told, python, result)
    answer(result.to_json(), as_json, None if as_json else _replay_words(result))
    if (code := _REPLAY_EXITS[result.verdict.value]) is not ExitCode.DONE:
        raise Exit(code)


_REPLAY_EXITS = {
    "reproduced": ExitCode.DONE,
    "slower": ExitCode.REPLAY_SLOWER,
    "faster": ExitCode.REPLAY_FASTER,
    "impossible": ExitCode.REPLAY_IMPOSSIBLE,
    "inconclusive": ExitCode.REPLAY_INCONCLUSIVE,
}


def _apart_s(text: str) -> float:
    try:
        return seconds_of(text)
    except InputError as error:
        raise error.at(key="--apart") from error


def _recipe_folder(given: str | None, ledger: str | None) -> Path:
    """The recipe a person means: its folder, a search's folder, or a search's id."""
    from orchestrator.find import find_search

    if given is not None and ("/" in given or os.path.exists(given)) and not SearchFolder(Path(given)).is_one:
        return Path(given)
    found = find_search(given, ledger)
    if not found.folder.recipe.exists():
        raise InputError.of(
            "recipe", f"search {found.record.search_id} has no recipe yet", fix="one is written when it has ended"
        )
    return found.folder.recipe


def _with_trainer(loaded: LoadedRecipe, kind: str | None, sets: Sequence[str]) -> tuple[LoadedRecipe, str]:
    """The recipe as the trainer is to run it, and the interpreter that does."""
    from orchestrator.replay_trainer import trainer_section, under_trainer

    if kind is None and not sets:
        return loaded, sys.executable
    if kind is None:
        fix = "name the trainer with --trainer, or leave --set out"
        raise InputError.of("usage", "says something of another trainer", key="--set", value=sets[0], fix=fix)
    section = trainer_section(kind, sets, Path.cwd())
    return under_trainer(loaded, section), section.python or sys.executable


def _replayed(
    loaded: LoadedRecipe,
    kind: ReplayLauncher | None,
    rules: ReplayRules,
    folder: SearchFolder,
    python: str,
    as_json: bool,
) -> ReplayResult:
    """Measure under a launcher of its own; `ray` falls back to plain processes as in a search."""
    from orchestrator.launchers.factory import make_launcher
    from orchestrator.machine_turn import MachineTurn, NoTurn
    from orchestrator.replay import launcher_section, this_machine
    from orchestrator.replay import replay as measure_again
    from orchestrator.replay_runs import ReplayWatcher
    from trials.ledger.place import home_folder

    section = launcher_section(loaded.recipe, None if kind is None else kind.value)
    is_here = section.kind == "local" or (section.kind == "ray" and section.address is None)
    here = this_machine(loaded.recipe.cluster, os.environ) if is_here else None
    stop = Stop()
    watcher = ReplayWatcher(say, stop.is_asked, MachineTurn(home_folder()) if is_here else NoTurn())
    try:
        launcher, remark = make_launcher(section, parallel_trials=1, cluster=here or loaded.recipe.cluster)
        say(remark or f"measuring {counted(rules.repeats, 'time')} in {folder.path}")
        with closing(launcher), stop.listening():
            result = measure_again(loaded, launcher, folder, python=python, rules=rules, here=here, watcher=watcher)
        if folder.path.exists():
            write_json(folder.path / "replay.json", result.to_json())
        return result
    except KeyboardInterrupt:
        problem = Problem("interrupted", "the replay was stopped before it had a verdict", fix="run it again")
        fail(code_after(stop), problem, as_json)
    except OSError as error:
        problem = Problem("refused", str(error), key="--work-dir", fix="name a folder that you may write to")
        fail(ExitCode.REFUSED, problem, as_json)


def _note_in_recipe(recorded: LoadedRecipe, ran: LoadedRecipe, python: str, result: ReplayResult) -> None:
    """What another trainer did with the layout stands in the recipe; one that cannot be written is a remark."""
    from orchestrator.recipe.remeasured import note_replay
    from trials.trial import utc_text

    try:
        if note_replay(recorded, ran, python, result.to_json(), utc_text()):
            say(f"{recorded.folder} says now that {result.trainer} ran the layout, and how fast")
    except OSError as error:
        say(f"the recipe could not be told that {result.trainer} ran the layout: {error}")


def _replay_words(result: ReplayResult) -> str:
    from dashboards.trial_words import flag_words

    lines = [f"{result.verdict}: recorded {result.recorded_tokens_per_sec:,.0f} tokens/s"]
    found = result.comparison
    if found is not None and result.measured_tokens_per_sec is not None:
        lines[0] += (
            f", now {result.measured_tokens_per_sec:,.0f}{_with_whom(result.trainer)}"
            f" ({found.ratio:.3f} times as fast, 95 % between {found.low:.3f} and {found.high:.3f})"
        )
    if found is not None and len(found.by_occasion) > 1:
        lines.append("at its occasions: " + ", ".join(f"{ratio:.3f}" for ratio in found.by_occasion))
    if result.detail:
        lines.append(result.detail)
    lines += [f"! {flag_words(flag)}" for flag in result.flags]
    lines += [f"  {d['field']}: recorded {d['recorded']}, here {d['here']}" for d in result.differences]
    return "\n".join(lines)


def _with_whom(trainer: str) -> str:
    return "" if trainer == "parlay" else f" with {trainer}"
