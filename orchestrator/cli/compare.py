"""`parlay compare`: two recipes or searches side by side, or the two software stacks of an experiment.

`parlay replay` measures a recipe again, here or with another trainer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import LedgerUrl
from orchestrator.cli.output import Exit, exit_with, log, print_columns, print_result, print_text, prints_json, warn
from orchestrator.lifecycle.exit_codes import ExitCode
from orchestrator.lifecycle.signals import StopSignals
from search_spaces.errors import InputError, Problem
from trials.files.text import plural

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from orchestrator.replay.compare import CommonLayout, CommonSide, CompareAnswer, ComparedSearch, ComparedSide
    from orchestrator.replay.replay import ReplayAnswer
    from orchestrator.replay.requirement import RequirementAnswer
    from orchestrator.replay.speed_ratio import Ratios
    from orchestrator.replay.stacks import ExperimentAnswer, StackSide


_MAX_PAIRS = 20


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A recipe's folder, a search's id or its folder.")],
    b: Annotated[
        str | None,
        typer.Argument(
            metavar="[B]",
            help="The recipe or search to compare with A. Without it, A is an experiment (run --against), whose two"
            " software stacks are compared.",
        ),
    ] = None,
    margin: Annotated[float, typer.Option("--margin", help="Relative difference that counts as equal.")] = 0.05,
    force: Annotated[bool, typer.Option("--force", help="Accept a recipe that was edited.")] = False,
    ledger: LedgerUrl = None,
) -> None:
    if b is None:
        _compare_stacks(a, ledger)
        return
    from orchestrator.replay.compare import compare_sides, find_side
    from orchestrator.replay.replay import ReplayRules

    rules = ReplayRules(margin=margin)
    result = compare_sides(find_side(a, ledger, force), find_side(b, ledger, force), rules.margin)
    if prints_json.get():
        print_result(result.answer)
    else:
        _print_comparison(result.answer)


def _compare_stacks(search: str, ledger: str | None) -> None:
    """Print the two software stacks of an experiment. InputError for a search that is none."""
    from orchestrator.records.lookup import find_search
    from orchestrator.replay.stacks import stack_comparison

    found = find_search(search, ledger)
    result = stack_comparison(found.record, found.spec)
    if result is None:
        rule = "one search alone is compared with itself where it measured two software stacks (run --against)"
        raise InputError.of("usage", "is missing", rule=rule, key="B", fix="name the recipe or search to compare with")
    if prints_json.get():
        print_result(result)
    else:
        print_stacks(result, found.spec)


def print_stacks(found: ExperimentAnswer, spec: SearchSpec) -> None:
    """Print each layout with both stacks, and what differs between them, as `run` and `status` do, too."""
    from dashboards.terminal.headline import UNITS

    unit = UNITS[spec.objective]
    print_text(f"\nA  the search's own software\nB  {found.against}")
    rows = [
        (
            *(_measured(side, spec) for side in (one.a, one.b)),
            "" if one.ratio is None else f"{one.ratio:.3f} ({one.ratio_low:.3f} to {one.ratio_high:.3f})",
            str(one.pairs or ""),
            str(one.verdict).replace("_", " "),
            one.layout_key,
        )
        for one in found.layouts
    ]
    print_columns((f"A {unit}", f"B {unit}", "B over A (95 %)", "pairs", "B is", "layout"), rows)
    if found.software:
        print_columns(("software", "A", "B"), [(pair.field, pair.a, pair.b) for pair in found.software])


def _measured(side: StackSide | None, spec: SearchSpec) -> str:
    from dashboards.trial_text import format_number
    from trials.analysis.ranking import in_objective_unit

    # A speed from the value in the objective's unit: the conversion is its own inverse.
    return "-" if side is None else f"{side.trial} {format_number(in_objective_unit(side.value, spec.objective))}"


def _print_comparison(result: CompareAnswer) -> None:
    """Print the verdict, then the two sides and what differs between them."""
    a, b = result.a, result.b
    print_text("\n".join([*_verdict_lines(result), "", f"A  {_describe_side(a)}", f"B  {_describe_side(b)}"]))
    for heading, rows in (
        ("configuration", result.question),
        ("layouts", result.layout),
        ("software", result.software),
    ):
        if rows:
            print_text("")
            print_columns((heading, "A", "B"), [(pair.field, pair.a, pair.b) for pair in rows])
    if a.search is not None and b.search is not None:
        one, other = _search_facts(a.search), _search_facts(b.search)
        facts = [(name, one.get(name), other.get(name)) for name in {**one, **other}]
        if differ := [row for row in facts if row[1] != row[2]]:
            print_text("")
            print_columns(("search", "A", "B"), differ)
    if result.common:
        print_text("")
        print_columns(("layouts that both tried", "A", "B", "B over A"), _pair_rows(result.common))


def _describe_side(side: ComparedSide) -> str:
    if side.layout is None:
        return f"{side.what} {side.name}: no layout measured"
    speed = f"{side.tokens_per_sec:,.0f} tokens/s over {plural(side.runs, 'run')}"
    return f"{side.what} {side.name}: {side.trial}, {side.layout.key}, {speed}"


def _search_facts(search: ComparedSearch) -> dict[str, Any]:
    """State, trials and cost of a search."""
    from dashboards.terminal.progress import format_clock

    to_best = search.to_best
    ended = f" ({search.end_reason})" if search.end_reason else ""
    facts = {"state": f"{search.state}{ended}", "trials": search.num_trials}
    facts |= {f"  {name}": count for name, count in asdict(search.trials).items() if count}
    facts |= {f"  {name}": count for name, count in search.reasons.items()}
    facts["node-hours"] = f"{search.node_hours:.3f}"
    if to_best is not None:
        facts["to the best: trials"] = to_best.trials
        facts["  node-hours"] = f"{to_best.node_hours:.3f}"
        facts["  time"] = format_clock(to_best.seconds)
    return facts


def _pair_rows(pairs: Sequence[CommonLayout]) -> Iterator[tuple[str, ...]]:
    """Layouts that both sides tried, in order of their trials, at most _MAX_PAIRS."""
    for pair in pairs[:_MAX_PAIRS]:
        ratio = "" if pair.ratio is None else f"{pair.ratio:.3f} ({pair.ratio_low:.3f} to {pair.ratio_high:.3f})"
        yield pair.layout_key, *(_pair_cell(side) for side in (pair.a, pair.b)), ratio
    if len(pairs) > _MAX_PAIRS:
        yield f"and {len(pairs) - _MAX_PAIRS} more, with --json", "", "", ""


def _pair_cell(side: CommonSide) -> str:
    from trials.failure_policy import policy_of

    if side.tokens_per_sec is not None:
        return f"{side.tokens_per_sec:,.0f}"
    return policy_of(side.reason).label if side.reason else str(side.state)


def _verdict_lines(result: CompareAnswer) -> list[str]:
    if result.ratio is not None:
        interval = f"95 % confidence interval {result.ratio_low:.3f}–{result.ratio_high:.3f}"
        words = f"{result.verdict}: B is {result.ratio:.3f}x as fast as A ({interval})"
        differ = any(side.runs > 2 for side in (result.a, result.b))
        why = ["that is the ratio of the means over sessions; tokens/s are medians over the runs"] if differ else []
        return [words, *why, *_format_speed(result)]
    if result.not_comparable:
        return [
            f"not comparable: {', '.join(result.not_comparable)} differ",
            "speeds are compared only for the same model, global batch and hardware; those of two engines not where a"
            " CPU emulates the device of one",
        ]
    return [f"not comparable: {result.detail}"]


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
    require: Annotated[
        float | None,
        typer.Option("--require", help="Pass or fail: the throughput over the recorded one that is required, as 0.95."),
    ] = None,
    node_hours: Annotated[
        float | None, typer.Option("--node-hours", help="Most node-hours that --require may take, search included.")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write the verdict of --require as JUnit XML.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Accept a recipe that was edited.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run a recipe, and the interpreter that it names, of another user.")
    ] = False,
    work_dir: Annotated[Path, typer.Option("--work-dir", help="Parent folder of the replay's folder.")] = Path("runs"),
    ledger: LedgerUrl = None,
) -> None:
    from orchestrator.recipe.read import read_recipe
    from orchestrator.records.lookup import find_recipe
    from orchestrator.replay.note_in_recipe import note_replay, note_requirement
    from orchestrator.replay.replay import ReplayRules, ReplayStopped
    from orchestrator.replay.requirement import Requirement, junit_xml
    from orchestrator.replay.run import run_replay, with_trainer
    from orchestrator.replay.speed_ratio import ReplayVerdict
    from search_spaces.schema.durations import parse_duration_s

    loaded = read_recipe(find_recipe(recipe, ledger), force)
    if loaded.banner:
        warn(loaded.banner)
    interval_s = parse_duration_s(session_interval, key="--session-interval")
    asked = None if require is None else Requirement(require, node_hours)
    if asked is None and (node_hours, junit) != (None, None):
        key = "--junit" if node_hours is None else "--node-hours"
        raise InputError.of("usage", "belongs to --require", key=key, fix="add --require, for example 0.95")
    rules = ReplayRules(repeats, margin, sessions, interval_s, asked)
    kind = None if launcher is None else launcher.value
    configured, python = with_trainer(loaded, trainer, sets or (), kind, trust)
    stop, table, started_s = StopSignals(), loaded.recipe.replayed_table, time.time()
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
    text, exit_code = _format_replay(answer, table), _REPLAY_EXITS[answer.verdict.value]
    if (found := answer.requirement) is not None:
        note_requirement(loaded, answer)
        if answer.verdict is not ReplayVerdict.IMPOSSIBLE:
            exit_code = _REQUIREMENT_EXITS[found.verdict.value]
        if junit is not None:
            name = f"{loaded.recipe.search_id} at least {found.required:g}"
            junit.write_text(junit_xml(name, found, text, time.time() - started_s), encoding="utf-8")
    print_result(answer, text)
    exit_with(exit_code)


_REPLAY_EXITS = {
    "reproduced": ExitCode.SUCCESS,
    "slower": ExitCode.REPLAY_SLOWER,
    "faster": ExitCode.REPLAY_FASTER,
    "impossible": ExitCode.REPLAY_IMPOSSIBLE,
    "inconclusive": ExitCode.REPLAY_INCONCLUSIVE,
}


_REQUIREMENT_EXITS = {
    "pass": ExitCode.SUCCESS,
    "fail": ExitCode.REPLAY_SLOWER,
    "inconclusive": ExitCode.REPLAY_INCONCLUSIVE,
}


def _format_requirement(found: RequirementAnswer) -> Iterator[str]:
    hours = f"{found.node_hours_used:.3g} of {found.node_hours:.3g} node-hours"
    yield f"{found.verdict}: {found.required:g} of the recorded throughput is required; {hours} used"
    for slow in found.slow:
        how = "by the fabric check"
        if slow.ratio is not None:
            how = f"{slow.ratio:.2f}x as fast as others ({slow.ratio_low:.2f}–{slow.ratio_high:.2f})"
        yield f"slow: {', '.join(slow.nodes)}, {how}"
    if found.search_of_nodes is not None:
        yield f"looked for slow nodes: {found.search_of_nodes}"


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
    if found.requirement is not None:
        lines = [*_format_requirement(found.requirement), *lines]
    lines += [] if table is None else [describe_replayed_table(table)]
    lines += _format_speed(found)
    if len(found.sessions) > 1:
        lines.append("by session: " + ", ".join(f"{session.ratio:.3f}" for session in found.sessions))
    lines += [found.detail] if found.detail else []
    lines += [f"! {describe_flag(flag)}" for flag in found.flags]
    lines += [f"  {d.field}: recorded {d.recorded}, here {d.here}" for d in found.differences]
    return "\n".join(lines)


def _format_speed(found: Ratios) -> Iterator[str]:
    """Speed ratio of the fastest steps, if known."""
    if found.fast_ratio is not None:
        yield (
            f"the fastest tenth of the steps: {found.fast_ratio:.3f}x as fast,"
            f" 95 % confidence interval {found.fast_ratio_low:.3f}–{found.fast_ratio_high:.3f}"
        )
