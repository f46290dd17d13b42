"""`parlay compare`: two recipes or searches side by side, or the two software stacks of an experiment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import LedgerUrl
from orchestrator.cli.output import print_columns, print_result, print_text, prints_json
from orchestrator.cli.replay import format_speed
from search_spaces.errors import InputError
from trials.files.text import plural

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from orchestrator.replay.compare import CommonLayout, CommonSide, CompareAnswer, ComparedSearch, ComparedSide
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
        return [words, *why, *format_speed(result)]
    if result.not_comparable:
        return [
            f"not comparable: {', '.join(result.not_comparable)} differ",
            "speeds are compared only for the same model, global batch and hardware; those of two engines not where a"
            " CPU emulates the device of one",
        ]
    return [f"not comparable: {result.detail}"]
