"""Sentences of the report: confidence, state, cost, and layouts as text. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from dashboards.cost_text import describe_search_cost
from dashboards.report.data import BestLayout, ReportData, TrialView
from dashboards.terminal.headline import describe_ending
from dashboards.terminal.progress import describe_node_time
from dashboards.text import with_full_stop
from dashboards.trial_text import (
    REPLAYED_VALUE,
    UNKNOWN,
    describe_flag,
    describe_fullest_rank,
    describe_node_sets,
    describe_slowest_rank,
    describe_verification,
    format_counts,
    format_short,
    format_short_interval,
    format_value,
    join_names,
    memory_growth_lines,
)
from search_spaces.layouts.layout import AXES, DEGREES, Layout, axis_of
from search_spaces.layouts.short_name import short_name
from search_spaces.routing import micro_batches_of_losses
from search_spaces.verification import Verification
from trials.analysis.final_rounds import describe_finals_end
from trials.analysis.verdict import DisplayState, VerdictKind
from trials.failure_policy import policy_of
from trials.files.text import plural
from trials.trial import TrialState

SHAPE_FIELDS = (*DEGREES.values(), "micro_batch_size")
"""Fields of a layout that are always shown."""

TIMES = "\N{MULTIPLICATION SIGN}"


def best_title(data: ReportData) -> str:
    """Title of the best layout; without one, and where nothing else was measured, of the baseline."""
    if data.best is None or data.verdict.kind is VerdictKind.ONLY_BASELINE:
        return "Baseline"
    word = _capitalized(data.verdict.best_word)
    return f"{word} layout" if data.verdict.is_complete else word


def describe_confidence(data: ReportData) -> list[str]:
    """Sentences about the confidence in the result."""
    best = data.best
    return [] if best is None else list(_confidence_sentences(best, data))


def describe_comparison(data: ReportData) -> str | None:
    """The baseline, and the interval of the speedup over it; None where the two cannot be compared."""
    speedup, baseline = data.verdict.speedup, data.verdict.baseline
    if speedup is None or baseline is None:
        return None
    words = f"The baseline is your {short_name(baseline.layout, data.varying)}"
    if speedup.low is None or speedup.high is None:
        return f"{words}."
    return f"{words}; the 95 % interval of the speedup is {speedup.low:.2f}\N{EN DASH}{speedup.high:.2f}."


def describe_tradeoffs(data: ReportData) -> list[str]:
    """Sentence for each alternative to the best layout, where there are several objectives."""
    return [] if data.best is None else [f"Alternative: {trade}." for trade in data.best.trades]


def alternatives(data: ReportData) -> Iterator[tuple[str, str]]:
    """Short name of each alternative to the best layout, and its trade-off."""
    if data.best is not None:
        names = {view.trial: short_name(view.layout, data.varying) for view in data.layouts}
        yield from zip((names[trial] for trial in data.best.points[1:]), data.best.trades, strict=True)


def describe_state(data: ReportData) -> str:
    """State of the search, or the reason of its end."""
    verdict = data.verdict
    state, ending = str(verdict.state).capitalize(), describe_ending(verdict)
    if ending:  # "Cancelled: cancelled by the user" would say it twice
        is_repeated = verdict.state is DisplayState.CANCELLED
        return with_full_stop(_capitalized(ending) if is_repeated else f"{state}: {ending}")
    return f"{state}." if verdict.is_ended else f"{state}, {plural(verdict.counts.in_flight, 'trial')} in flight."


def describe_empty(data: ReportData) -> str:
    """Text in place of figures where nothing was measured."""
    return "No layout was measured." if data.state.is_ended else "No layout has been measured yet."


def describe_cost(data: ReportData) -> str:
    """Node-hours, trials and time used so far."""
    counts = ", ".join(format_counts(data.verdict.counts))
    trials = (
        f"{plural(len(data.trials), 'trial')} ({counts})"
        if counts
        else "no trial" + ("" if data.state.is_ended else " yet")
    )
    simulated = "Simulated: " if data.replayed_table else ""
    used = format_hours(data.progress.node_hours_used)
    return f"{simulated}{used}, {trials}, {duration(data.progress.elapsed_h * 3600)}."


def describe_spending(data: ReportData) -> str | None:
    """Share of the node-hours that measured something, the use of the others, billing hours and the pay-back, and what
    the fabric check found.

    None before any were used, and where they come from a measured table.
    """
    if data.replayed_table:
        return None
    found, cost = data.progress.node_time, data.progress.cost
    told = (describe_node_time(found), describe_search_cost(cost))
    known = [words for words in (*told, *data.progress.fabric_check) if words is not None]
    return " ".join(f"{_capitalized(words)}." for words in known) or None


def _capitalized(words: str) -> str:
    return words[0].upper() + words[1:]


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
    return f"{axis.label} {format_value(value)} {unit}".rstrip()


def format_trial(trial: TrialView, varying: Collection[str]) -> str:
    """Trial and the short name of its layout, for a tooltip."""
    return f"{trial.trial}: {short_name(trial.layout, varying)}"


def format_reason(trial: TrialView) -> str:
    """Reason of a trial's end, or its state."""
    ended = trial.state in (TrialState.FAILED, TrialState.CANCELLED)
    return policy_of(trial.reason).label if ended and trial.reason else str(trial.state)


def percent(share: float) -> str:
    """Fraction in percent, never rounded to 0."""
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.2g} %"


def duration(seconds: float | None) -> str:
    """Seconds in days, hours, minutes or seconds."""
    if seconds is None:
        return UNKNOWN
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def step_time(seconds: float | None) -> str:
    """Seconds of a step, with three significant digits."""
    return UNKNOWN if seconds is None else f"{format_short(seconds)} s"


def format_hours(hours: float) -> str:
    """Node-hours, never rounded to 0."""
    return f"{hours:.3g} node-hours" if hours >= 0.001 or not hours else "below 0.001 node-hours"


def _confidence_sentences(best: BestLayout, data: ReportData) -> Iterator[str]:
    interval = format_short_interval(best.metrics)
    if interval is not None:
        yield f"95 % confidence interval {interval} tokens/s."
    else:
        yield "No confidence interval: a run had too few steps."
    only = ": the interval covers the steps of that run, not the spread between runs" if best.num_runs == 1 else ""
    yield REPLAYED_VALUE if data.replayed_table else f"Based on {plural(best.num_runs, 'run')}{only}."
    if data.progress.finals is not None:
        yield with_full_stop(_capitalized(describe_finals_end(data.progress.finals)))
    if not data.state.is_ended:
        yield "It may be measured again before the search ends."
    verified = Verification.of(best.layout.canonical()).to_json()
    few = verified | {"values": [join_names(verified["values"])] if verified["values"] else []}
    yield with_full_stop(_capitalized(describe_verification(few)))
    if data.has_balancing_loss and (
        found := micro_batches_of_losses(trial.layout.micro_batch_size for trial in data.measured)
    ):
        yield with_full_stop(_capitalized(found))
    for words in (
        describe_node_sets(best.on_disjoint_nodes),
        describe_slowest_rank(best.slowest_rank),
        describe_fullest_rank(best.fullest_rank),
    ):
        if words is not None:
            yield with_full_stop(_capitalized(words))
    yield from memory_growth_lines(best.metrics)
    yield from (f"Flag {describe_flag(flag)}." for flag in best.flags)
