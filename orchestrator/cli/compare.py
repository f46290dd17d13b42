"""`parlay compare`: two recipes or searches side by side."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import AsJson, LedgerUrl
from orchestrator.cli.output import print_result, print_text
from orchestrator.cli.replay import format_speed
from search_spaces.errors import InputError, format_value
from trials.files.text import plural

if TYPE_CHECKING:
    from rich.table import Table

    from orchestrator.comparison.compare import ComparedSearch, CompareResult, ComparisonSide, LayoutPair

_MAX_PAIRS = 20
_MAX_CELL = 40


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
    as_json: AsJson = False,
) -> None:
    """Show what differs between two recipes or searches, and how much faster B's best layout is than A's."""
    if b is None:
        _compare_stacks(a, ledger, as_json)
        return
    from orchestrator.comparison.compare import compare_sides
    from orchestrator.comparison.lookup import find_side
    from orchestrator.replay.replay import ReplayRules

    rules = ReplayRules(margin=margin)
    result = compare_sides(find_side(a, ledger, force), find_side(b, ledger, force), rules.margin)
    if as_json:
        print_result(result.answer, True)
    else:
        _print_comparison(result)


def _compare_stacks(search: str, ledger: str | None, as_json: bool) -> None:
    """Print the two software stacks of an experiment. InputError for a search that is none."""
    from orchestrator.cli.stacks_table import print_stacks
    from orchestrator.comparison.stacks import stack_comparison
    from orchestrator.records.lookup import find_search

    found = find_search(search, ledger)
    result = stack_comparison(found.record, found.spec)
    if result is None:
        rule = "one search alone is compared with itself where it measured two software stacks (run --against)"
        raise InputError.of("usage", "is missing", rule=rule, key="B", fix="name the recipe or search to compare with")
    if as_json:
        print_result(result.answer(found.record.search_id, found.spec), True)
    else:
        print_stacks(result, found.spec)


def _print_comparison(result: CompareResult) -> None:
    """Print the whole comparison, the result last."""
    from dashboards.terminal.live_table import console_for

    console = console_for(sys.stdout)
    a, b = result.a, result.b
    lines = [f"A  {_describe_side(a)}", f"B  {_describe_side(b)}"]
    print_text("\n".join(lines))
    for heading, rows in (
        ("configuration", result.question),
        ("layouts", _layout_rows(result)),
        ("software", result.software),
    ):
        if rows:
            console.print()
            console.print(_table(heading, rows))
    if rows := _search_rows(a, b):
        console.print()
        console.print(_table("search", rows, mark_differences=False))
    if result.pairs:
        console.print()
        console.print(_pairs_table(result))
    print_text("\n" + "\n".join(_verdict_lines(result)))


def _describe_side(side: ComparisonSide) -> str:
    best = side.best
    found = "no layout measured" if best is None else f"{best.trial}, {best.layout.key}"
    speed = "" if best is None else f", {side.tokens_per_sec(best.runs):,.0f} tokens/s"
    runs = "" if best is None else f" over {plural(len(best.runs), 'run')}"
    return f"{side.what} {side.name}: {found}{speed}{runs}"


def _layout_rows(result: CompareResult) -> list[Mapping[str, Any]]:
    """All fields of both layouts."""
    a, b = result.a.best, result.b.best
    if a is None or b is None:
        return []
    one, other = a.layout.to_json(), b.layout.to_json()
    return [{"field": name, "a": one.get(name), "b": other.get(name)} for name in {**one, **other}]


def _search_rows(a: ComparisonSide, b: ComparisonSide) -> list[Mapping[str, Any]]:
    """State, trials and cost of both searches; empty unless both sides are searches."""
    if a.search is None or b.search is None:
        return []
    one, other = _search_facts(a.search), _search_facts(b.search)
    return [{"field": name, "a": one.get(name), "b": other.get(name)} for name in {**one, **other}]


def _search_facts(search: ComparedSearch) -> dict[str, Any]:
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


def _table(heading: str, rows: Sequence[Mapping[str, Any]], mark_differences: bool = True) -> Table:
    """A row per field; rows that differ are bold and marked if `mark_differences`."""
    table = _columns(heading, "A", "B", "")
    for row in rows:
        differs = mark_differences and row["a"] != row["b"]
        cells = (row["field"], _cell(row["a"]), _cell(row["b"]), "differs" if differs else "")
        table.add_row(*cells, style="bold" if differs else None)
    return table


def _pairs_table(result: CompareResult) -> Table:
    """Layouts that both sides tried, in order of their trials, at most _MAX_PAIRS."""
    table = _columns("layouts that both tried", "A", "B", "B over A")
    for pair in result.pairs[:_MAX_PAIRS]:
        found = pair.found
        ratio = "" if found is None else f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"
        table.add_row(pair.layout_key, *_pair_cells(result, pair), ratio)
    if len(result.pairs) > _MAX_PAIRS:
        table.add_row(f"and {len(result.pairs) - _MAX_PAIRS} more, with --json", "", "", "")
    return table


def _pair_cells(result: CompareResult, pair: LayoutPair) -> Iterable[str]:
    from trials.failure_policy import policy_of

    for side, found in ((result.a, pair.a), (result.b, pair.b)):
        failure = policy_of(found.reason).label if found.reason else str(found.state)
        yield f"{side.tokens_per_sec(found.runs):,.0f}" if found.runs else failure


def _columns(*names: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _cell(value: Any) -> str:
    """A value as in a YAML file, cut to _MAX_CELL characters."""
    from dashboards.text import printable

    if value is None:
        return "-"
    text = printable(value if isinstance(value, str) else format_value(value))
    return text if len(text) <= _MAX_CELL else text[: _MAX_CELL - 1] + "…"


def _verdict_lines(result: CompareResult) -> list[str]:
    if result.found is not None:
        ratio, low, high = result.found.ratio, result.found.low, result.found.high
        words = f"{result.verdict}: B is {ratio:.3f}x as fast as A (95 % confidence interval {low:.3f}–{high:.3f})"
        differ = any(side.best is not None and len(side.best.runs) > 2 for side in (result.a, result.b))
        why = ["that is the ratio of the means over sessions; tokens/s are medians over the runs"] if differ else []
        return [words, *why, *format_speed(result.found)]
    if result.obstacles:
        return [
            f"not comparable: {', '.join(result.obstacles)} differ",
            "speeds are compared only for the same model, global batch and hardware; those of two engines not where a"
            " CPU emulates the device of one",
        ]
    return [f"not comparable: {result.detail}"]
