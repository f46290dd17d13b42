"""Sentences of the report: confidence, state, cost, and layouts as text. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from dashboards.columns import SHAPE_FIELDS, TIMES
from dashboards.cost_text import describe_search_cost
from dashboards.fabric_check_text import describe_fabric_check
from dashboards.search_view import SearchView, recorded_section
from dashboards.terminal.headline import describe_ending
from dashboards.terminal.progress import describe_node_time
from dashboards.text import sentence_of, upper_first, with_full_stop
from dashboards.trial_text import (
    REPLAYED_VALUE,
    UNKNOWN,
    describe_flag,
    describe_fullest_rank,
    describe_node_sets,
    describe_slowest_rank,
    describe_verification,
    duration,
    format_counts,
    format_setting,
    format_short,
    format_short_interval,
    join_names,
    memory_growth_lines,
)
from search_spaces.layouts.layout import AXES, DEGREES, Layout, axis_of
from search_spaces.layouts.short_name import short_name
from search_spaces.routing import micro_batches_of_losses
from search_spaces.verification import Verification
from trials.analysis.final_rounds import describe_finals_end, finals_end_of
from trials.analysis.node_sets import runs_on_disjoint_nodes
from trials.analysis.node_time import search_node_time
from trials.analysis.pareto import pareto, trade_offs
from trials.analysis.ranked_layout import RankedLayout, TrialOrLayout
from trials.analysis.search_cost import SearchCost
from trials.analysis.verdict import DisplayState, VerdictKind
from trials.files.text import plural


def best_title(view: SearchView) -> str:
    """Title of the best layout; without one, and where nothing else was measured, of the baseline."""
    if view.best is None or view.verdict.kind is VerdictKind.ONLY_BASELINE:
        return "Baseline"
    word = upper_first(view.verdict.best_word)
    return f"{word} layout" if view.verdict.is_complete else word


def describe_confidence(view: SearchView) -> list[str]:
    """Sentences about the confidence in the result."""
    return [] if view.best is None else list(_confidence_sentences(view.best, view))


def describe_comparison(view: SearchView) -> str | None:
    """The baseline, and the interval of the speedup over it; None where the two cannot be compared."""
    speedup, baseline = view.verdict.speedup, view.verdict.baseline
    if speedup is None or baseline is None:
        return None
    words = f"The baseline is your {short_name(baseline.layout, view.varying)}"
    if speedup.low is None or speedup.high is None:
        return f"{words}."
    return f"{words}; the 95 % interval of the speedup is {speedup.low:.2f}\N{EN DASH}{speedup.high:.2f}."


def describe_tradeoffs(view: SearchView) -> list[str]:
    """Sentence for each alternative to the best layout, where there are several objectives."""
    return [f"Alternative: {trade}." for trade in trade_offs(view.ranking)]


def alternatives(view: SearchView) -> Iterator[tuple[str, str]]:
    """Short name of each alternative to the best layout, and its trade-off."""
    names = (short_name(point.layout, view.varying) for point in pareto(view.ranking)[1:])
    yield from zip(names, trade_offs(view.ranking), strict=True)


def describe_state(view: SearchView) -> str:
    """State of the search, or the reason of its end."""
    verdict = view.verdict
    state, ending = str(verdict.state).capitalize(), describe_ending(verdict)
    if ending:  # "Cancelled: cancelled by the user" would say it twice
        is_repeated = verdict.state is DisplayState.CANCELLED
        return sentence_of(ending) if is_repeated else with_full_stop(f"{state}: {ending}")
    return f"{state}." if verdict.is_ended else f"{state}, {plural(verdict.counts.in_flight, 'trial')} in flight."


def describe_empty(view: SearchView) -> str:
    """Text in place of figures where nothing was measured."""
    return "No layout was measured." if view.search.state.is_ended else "No layout has been measured yet."


def describe_cost(view: SearchView) -> str:
    """Node-hours, trials and time used so far."""
    counts = ", ".join(format_counts(view.verdict.counts))
    trials = (
        f"{plural(len(view.search.trials), 'trial')} ({counts})"
        if counts
        else "no trial" + ("" if view.search.state.is_ended else " yet")
    )
    simulated = "Simulated: " if view.search.replayed_table else ""
    used = format_hours(view.search.node_hours_used)
    return f"{simulated}{used}, {trials}, {duration(view.elapsed_s)}."


def describe_spending(view: SearchView) -> str | None:
    """Share of the node-hours that measured something, the use of the others, billing hours and the pay-back, and what
    the fabric check found.

    None before any were used, and where they come from a measured table.
    """
    if view.search.replayed_table:
        return None
    search = view.search
    told = (describe_node_time(search_node_time(search)), describe_search_cost(SearchCost.of(search, view.verdict)))
    known = [words for words in (*told, *describe_fabric_check(search)) if words is not None]
    return " ".join(sentence_of(words) for words in known) or None


def format_parallelism(layout: Layout) -> str:
    """Tensor, pipeline and data parallel sizes, and the micro-batch."""
    shares = f" {TIMES} ".join(f"{AXES[name].label} {getattr(layout, name)}" for name in DEGREES.values())
    return f"{shares}, micro-batch {layout.micro_batch_size}"


def format_other_fields(layout: Layout, varying: Sequence[str]) -> list[str]:
    """Other fields of a layout, of those that were searched and that it has."""
    values = layout.canonical().axis_values
    shown = [name for name in varying if name not in SHAPE_FIELDS and values.get(name) != "none"]
    return [format_field(name, values.get(name)) for name in shown]


def format_field(name: str, value: object) -> str:
    """Label, value and unit of a field."""
    axis = axis_of(name)
    unit = axis.unit if value is not None else ""
    return f"{axis.label} {format_setting(value)} {unit}".rstrip()


def format_trial(trial: TrialOrLayout, varying: Collection[str]) -> str:
    """Trial and the short name of its layout, for a tooltip."""
    return f"{trial.trial}: {short_name(trial.layout, varying)}"


def percent(share: float) -> str:
    """Fraction in percent, never rounded to 0."""
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.2g} %"


def step_time(seconds: float | None) -> str:
    """Seconds of a step, with three significant digits."""
    return UNKNOWN if seconds is None else f"{format_short(seconds)} s"


def format_hours(hours: float) -> str:
    """Node-hours, never rounded to 0."""
    return f"{hours:.3g} node-hours" if hours >= 0.001 or not hours else "below 0.001 node-hours"


def _confidence_sentences(best: RankedLayout, view: SearchView) -> Iterator[str]:
    interval, num_runs = format_short_interval(best.measured), len(best.runs)
    if interval is not None:
        yield f"95 % confidence interval {interval} tokens/s."
    else:
        yield "No confidence interval: a run had too few steps."
    only = ": the interval covers the steps of that run, not the spread between runs" if num_runs == 1 else ""
    yield REPLAYED_VALUE if view.search.replayed_table else f"Based on {plural(num_runs, 'run')}{only}."
    if (finals := finals_end_of(view.search)) is not None:
        yield sentence_of(describe_finals_end(finals))
    if not view.search.state.is_ended:
        yield "It may be measured again before the search ends."
    verified = Verification.of(best.layout.canonical()).to_json()
    few = verified | {"values": [join_names(verified["values"])] if verified["values"] else []}
    yield sentence_of(describe_verification(few))
    if recorded_section(view.search.spec, "model").get("aux_loss_coefficient") is not None:
        found = micro_batches_of_losses(layout.layout.micro_batch_size for layout in view.ranking.ordered)
        yield from [sentence_of(found)] if found else []
    for words in (
        describe_node_sets(runs_on_disjoint_nodes(best.counted)),
        describe_slowest_rank(best.slowest_rank),
        describe_fullest_rank(best.fullest_rank),
    ):
        if words is not None:
            yield sentence_of(words)
    yield from memory_growth_lines(best.measured)
    yield from (f"Flag {describe_flag(flag)}." for flag in best.flags)
