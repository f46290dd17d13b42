"""`parlay replay`: measures a recipe again, here or with another trainer."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import AsJson, LedgerUrl
from orchestrator.cli.output import Exit, exit_with_error, log, print_result, warn
from orchestrator.common.exit_codes import ExitCode
from orchestrator.lifecycle.signals import CancelOnSignal, code_after
from search_spaces.errors import InputError, Problem

if TYPE_CHECKING:
    from orchestrator.comparison.speed_ratio import Comparison
    from orchestrator.recipe.read import LoadedRecipe
    from orchestrator.replay.replay import ReplayResult, ReplayRules


class ReplayLauncher(StrEnum):
    """Launchers of a replay's ranks."""

    LOCAL = "local"
    RAY = "ray"
    SLURM = "slurm"


def replay(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe's folder, or a search's id; default: the newest search.")
    ] = None,
    launcher: Annotated[
        ReplayLauncher | None, typer.Option("--launcher", help="Launcher of the ranks; default: the search's.")
    ] = None,
    trainer: Annotated[
        str | None,
        typer.Option("--trainer", help="Another trainer's kind, configured with --set; default: the search's trainer."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Configure that trainer: --set trainer.script=pretrain_gpt.py."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", help="Runs per session.")] = 5,
    sessions: Annotated[int, typer.Option("--sessions", help="Maximum number of sessions until a verdict.")] = 5,
    session_interval: Annotated[str, typer.Option("--session-interval", help="Time between two sessions.")] = "5m",
    margin: Annotated[float, typer.Option("--margin", help="Relative difference that counts as equal.")] = 0.05,
    force: Annotated[bool, typer.Option("--force", help="Accept a recipe that was edited.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run a recipe, and the interpreter that it names, of another user.")
    ] = False,
    work_dir: Annotated[Path, typer.Option("--work-dir", help="Parent folder of the replay's folder.")] = Path("runs"),
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Measure a recipe's layout again and report whether its throughput was reproduced."""
    from orchestrator.recipe.read import read_recipe
    from orchestrator.records.lookup import find_recipe
    from orchestrator.replay.note_in_recipe import note_replay
    from orchestrator.replay.replay import ReplayRules
    from orchestrator.replay.run import with_trainer

    loaded = read_recipe(find_recipe(recipe, ledger), force)
    if loaded.banner:
        warn(loaded.banner)
    rules = ReplayRules(repeats, margin, sessions, _session_interval_s(session_interval))
    kind = None if launcher is None else launcher.value
    configured, python = with_trainer(loaded, trainer, sets or (), kind, trust)
    result = _run(configured, python, kind, rules, work_dir, as_json)
    note_replay(loaded, configured, python, result)
    words = None if as_json else _format_replay(result, loaded.recipe.replayed_table)
    print_result(result.answer, as_json, words)
    if (code := _REPLAY_EXITS[result.verdict.value]) is not ExitCode.SUCCESS:
        raise Exit(code)


_REPLAY_EXITS = {
    "reproduced": ExitCode.SUCCESS,
    "slower": ExitCode.REPLAY_SLOWER,
    "faster": ExitCode.REPLAY_FASTER,
    "impossible": ExitCode.REPLAY_IMPOSSIBLE,
    "inconclusive": ExitCode.REPLAY_INCONCLUSIVE,
}


def _session_interval_s(text: str) -> float:
    from search_spaces.schema.durations import parse_duration_s

    try:
        return parse_duration_s(text)
    except InputError as error:
        raise error.at(key="--session-interval") from error


def _run(
    loaded: LoadedRecipe, python: str, kind: str | None, rules: ReplayRules, work_dir: Path, as_json: bool
) -> ReplayResult:
    from orchestrator.replay.replay import ReplayStopped
    from orchestrator.replay.run import run_replay

    stop = CancelOnSignal()
    try:
        return run_replay(loaded, python, kind, rules, work_dir, stop)
    except KeyboardInterrupt as interrupt:
        if isinstance(interrupt, ReplayStopped) and interrupt.result.comparison is not None:
            log(_format_replay(interrupt.result, loaded.recipe.replayed_table))
        problem = Problem("interrupted", "the replay was stopped before it had a verdict", fix="run it again")
        exit_with_error(code_after(stop), problem, as_json)
    except OSError as error:
        problem = Problem("refused", str(error), key="--work-dir", fix="name a folder that you may write to")
        exit_with_error(ExitCode.REFUSED, problem, as_json)


def _format_replay(result: ReplayResult, table: str | None) -> str:
    from dashboards.trial_text import describe_flag, describe_replayed_table

    known = "recorded" if table is None else "replayed"
    lines = [f"{result.verdict}: {known} {result.recorded_tokens_per_sec:,.0f} tokens/s in the mean"]
    found = result.comparison
    if found is not None and result.measured_tokens_per_sec is not None:
        lines[0] += (
            f", now {result.measured_tokens_per_sec:,.0f}{_trainer_suffix(result.trainer)}"
            f" ({found.ratio:.3f}x as fast, 95 % confidence interval {found.low:.3f}–{found.high:.3f})"
        )
    lines += [] if table is None else [describe_replayed_table(table)]
    lines += [] if found is None else [*format_speed(found), *_format_sessions(found)]
    if result.detail:
        lines.append(result.detail)
    lines += [f"! {describe_flag(flag)}" for flag in result.flags]
    lines += [f"  {d['field']}: recorded {d['recorded']}, here {d['here']}" for d in result.differences]
    return "\n".join(lines)


def format_speed(found: Comparison) -> Iterator[str]:
    """Speed ratio of the fastest steps, if known."""
    if found.fast is not None:
        yield (
            f"the fastest tenth of the steps: {found.fast.value:.3f}x as fast,"
            f" 95 % confidence interval {found.fast.low:.3f}–{found.fast.high:.3f}"
        )


def _format_sessions(found: Comparison) -> Iterator[str]:
    if len(found.speed.by_session) > 1:
        yield "by session: " + ", ".join(f"{ratio:.3f}" for ratio in found.speed.by_session)


def _trainer_suffix(trainer: str) -> str:
    return "" if trainer == "parlay" else f" with {trainer}"
