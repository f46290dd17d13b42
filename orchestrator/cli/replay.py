"""`parlay replay`: measures a recipe again, here or with another trainer."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import LedgerUrl
from orchestrator.cli.output import Exit, exit_with, log, print_result, warn
from orchestrator.lifecycle.exit_codes import ExitCode
from orchestrator.lifecycle.signals import StopSignals
from search_spaces.errors import Problem

if TYPE_CHECKING:
    from orchestrator.replay.replay import ReplayAnswer
    from orchestrator.replay.speed_ratio import Ratios


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
) -> None:
    from orchestrator.recipe.read import read_recipe
    from orchestrator.records.lookup import find_recipe
    from orchestrator.replay.note_in_recipe import note_replay
    from orchestrator.replay.replay import ReplayRules, ReplayStopped
    from orchestrator.replay.run import run_replay, with_trainer
    from search_spaces.schema.durations import parse_duration_s

    loaded = read_recipe(find_recipe(recipe, ledger), force)
    if loaded.banner:
        warn(loaded.banner)
    interval_s = parse_duration_s(session_interval, key="--session-interval")
    rules = ReplayRules(repeats, margin, sessions, interval_s)
    kind = None if launcher is None else launcher.value
    configured, python = with_trainer(loaded, trainer, sets or (), kind, trust)
    stop, table = StopSignals(), loaded.recipe.replayed_table
    try:
        answer = run_replay(configured, python, kind, rules, work_dir, stop)
    except KeyboardInterrupt as interrupt:
        if isinstance(interrupt, ReplayStopped) and interrupt.answer.ratio is not None:
            log(_format_replay(interrupt.answer, table))
        problem = Problem("interrupted", "the replay was stopped before it had a verdict", fix="run it again")
        raise Exit(stop.exit_code, problem) from interrupt
    except OSError as error:
        problem = Problem("refused", str(error), key="--work-dir", fix="name a folder that you may write to")
        raise Exit(ExitCode.REFUSED, problem) from error
    note_replay(loaded, configured, python, answer)
    print_result(answer, _format_replay(answer, table))
    exit_with(_REPLAY_EXITS[answer.verdict.value])


_REPLAY_EXITS = {
    "reproduced": ExitCode.SUCCESS,
    "slower": ExitCode.REPLAY_SLOWER,
    "faster": ExitCode.REPLAY_FASTER,
    "impossible": ExitCode.REPLAY_IMPOSSIBLE,
    "inconclusive": ExitCode.REPLAY_INCONCLUSIVE,
}


def _format_replay(found: ReplayAnswer, table: str | None) -> str:
    from dashboards.trial_text import describe_flag, describe_replayed_table

    known = "recorded" if table is None else "replayed"
    lines = [f"{found.verdict}: {known} {found.recorded:,.0f} tokens/s in the mean"]
    if found.measured is not None:
        with_trainer = "" if found.trainer == "parlay" else f" with {found.trainer}"
        lines[0] += (
            f", now {found.measured:,.0f}{with_trainer} ({found.ratio:.3f}x as fast, 95 % confidence interval"
            f" {found.ratio_low:.3f}–{found.ratio_high:.3f})"
        )
    lines += [] if table is None else [describe_replayed_table(table)]
    lines += format_speed(found)
    if len(found.sessions) > 1:
        lines.append("by session: " + ", ".join(f"{session.ratio:.3f}" for session in found.sessions))
    lines += [found.detail] if found.detail else []
    lines += [f"! {describe_flag(flag)}" for flag in found.flags]
    lines += [f"  {d.field}: recorded {d.recorded}, here {d.here}" for d in found.differences]
    return "\n".join(lines)


def format_speed(found: Ratios) -> Iterator[str]:
    """Speed ratio of the fastest steps, if known."""
    if found.fast_ratio is not None:
        yield (
            f"the fastest tenth of the steps: {found.fast_ratio:.3f}x as fast,"
            f" 95 % confidence interval {found.fast_ratio_low:.3f}–{found.fast_ratio_high:.3f}"
        )
