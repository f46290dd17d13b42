"""The report's sentences beside the verdict: confidence, state, cost, and layouts in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dashboards.report.data import Answer, ReportData, TrialView
from dashboards.terminal.headline import ending_words
from dashboards.trial_words import REASON_WORDS, UNKNOWN, count_words, flag_words, span
from search_spaces.layouts.layout import Layout
from trials.analysis.verdict import ShownState
from trials.files.text import counted
from trials.trial import TrialState

FIELD_WORDS: Mapping[str, str] = {
    "num_nodes": "nodes",
    "tensor_parallel": "tensor",
    "pipeline_parallel": "pipeline",
    "data_parallel": "data",
    "micro_batch_size": "micro-batch",
    "grad_accum_steps": "accumulation",
    "zero_stage": "ZeRO",
    "offload": "offload",
    "activation_checkpointing": "recomputation",
    "sequence_parallel": "sequence parallel",
    "virtual_pipeline_stages": "chunks a stage",
    "pipeline_schedule": "schedule",
    "precision": "precision",
    "attention_kernel": "attention",
    "engine": "engine",
    "torch_compile": "compiled",
    "rank_order": "rank order",
    "overlap_comm": "overlap",
    "bucket_mib": "bucket (MiB)",
}
"""Of a layout's fields, short enough for an axis."""

TIMES = "\N{MULTIPLICATION SIGN}"


def sure_words(data: ReportData) -> list[str]:
    """How far the answer can be trusted, a sentence each."""
    answer = data.answer
    return [] if answer is None else list(_sure_words(answer, data))


def trade_words(data: ReportData) -> list[str]:
    """What other answers to several goals give for what, a sentence each."""
    return [] if data.answer is None else [f"Another answer: {trade}." for trade in data.answer.trades]


def state_words(data: ReportData) -> str:
    """What the search is doing, or why it ended."""
    verdict = data.verdict
    state, ending = str(verdict.state).capitalize(), ending_words(verdict)
    if ending:  # "Cancelled: cancelled by the user" would say it twice
        is_said = verdict.state is ShownState.CANCELLED
        return _stopped(ending[0].upper() + ending[1:] if is_said else f"{state}: {ending}")
    return f"{state}." if verdict.is_ended else f"{state}, {counted(verdict.counts.in_flight, 'trial')} in flight."


def nothing_words(data: ReportData) -> str:
    """That there is nothing to draw."""
    return "No layout was measured." if data.state.is_ended else "No layout has been measured yet."


def cost_words(data: ReportData) -> str:
    """What it took so far."""
    counts = ", ".join(count_words(data.verdict.counts))
    trials = f"{counted(len(data.trials), 'trial')} ({counts})" if counts else "no trial yet"
    clock = " (simulated, replayed from a table)" if data.is_simulated else ""
    spent = hours_words(data.progress.node_hours_used)
    return f"{spent}, {trials}, {duration(data.progress.elapsed_h * 3600)}{clock}."


def _stopped(words: str) -> str:
    return words if words.endswith((".", "!", "?")) else f"{words}."


def shape_words(layout: Layout) -> str:
    """The three ways the model is shared."""
    sizes = {"tensor": layout.tensor_parallel, "pipeline": layout.pipeline_parallel, "data": layout.data_parallel}
    shares = f" {TIMES} ".join(f"{name} {size}" for name, size in sizes.items())
    return f"{shares}, micro-batch {layout.micro_batch_size}"


def other_words(layout: Layout, varying: Sequence[str]) -> list[str]:
    """What else was chosen about a layout, of the fields that were searched."""
    said = ("tensor_parallel", "pipeline_parallel", "data_parallel", "micro_batch_size")
    values = layout.canonical().to_json()
    return [field_words(name, values[name]) for name in varying if name not in said]


def field_words(name: str, value: object) -> str:
    """A field and its value."""
    return f"{FIELD_WORDS[name]} {value_words(value)}"


def value_words(value: object) -> str:
    """A field's value: on, off, and the engine's own default in words."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "default" if value is None else str(value).replace("_", " ")


def trial_words(trial: TrialView) -> str:
    """A trial in one line, for those who hover over it."""
    return f"{trial.trial}: {shape_words(trial.layout)}"


def reason_words(trial: TrialView) -> str:
    """How it ended, or where it is."""
    ended = trial.state in (TrialState.FAILED, TrialState.CANCELLED)
    return REASON_WORDS[trial.reason] if ended and trial.reason else str(trial.state)


def percent(share: float) -> str:
    """A fraction in percent, never rounded to nothing."""
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.2g} %"


def duration(seconds: float | None) -> str:
    """Seconds in the unit that suits them."""
    if seconds is None:
        return UNKNOWN
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def hours_words(hours: float) -> str:
    """Node-hours; fewer than a hundredth are not called none."""
    return f"{hours:.3g} node-hours" if hours >= 0.001 or not hours else "below 0.001 node-hours"


def _sure_words(answer: Answer, data: ReportData) -> Iterator[str]:
    speedup, interval = data.verdict.speedup, span(answer.tokens_per_sec_low, answer.tokens_per_sec_high)
    if speedup is not None and speedup.low is not None and speedup.high is not None:
        yield f"95 % confidence interval {speedup.low:.2f}\N{EN DASH}{speedup.high:.2f}x."
    elif interval is not None:
        yield f"95 % confidence interval {interval} tokens/s."
    else:
        yield "No confidence interval: a run had too few steps."
    only = ": the interval covers the steps of that run, not the spread between runs" if answer.num_runs == 1 else ""
    yield f"Based on {counted(answer.num_runs, 'run')}{only}."
    if not data.state.is_ended:
        yield "It may be measured again before the search ends."
    yield from (f"Flag {flag_words(flag)}." for flag in answer.flags)
