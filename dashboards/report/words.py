"""The report's sentences: the answer, how sure it is, and what a figure shows to somebody who cannot see it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dashboards.report.data import Answer, ReportData, TrialView
from dashboards.text import printable
from dashboards.trial_words import flag_words
from search_spaces.layout import Layout
from trials.ledger.events import EndReason
from trials.ranking import Objective
from trials.text import counted
from trials.trial import TrialState

UNITS: Mapping[Objective, str] = {
    Objective.TOKENS_PER_SEC: "tokens/s",
    Objective.TOKENS_PER_SEC_PER_GPU: "tokens/s per GPU",
    Objective.NODE_HOURS_PER_BILLION_TOKENS: "tokens/s per node",
}
"""Of a speed, by what is optimised: larger is better, also where node-hours are to be few."""

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
UNKNOWN = "\N{EN DASH}"

_END_WORDS: Mapping[EndReason, str] = {
    EndReason.MAX_TRIALS: "as many layouts were tried as search.max_trials allows",
    EndReason.BUDGET: "its node-hours are used up",
    EndReason.CONVERGED: "no layout that is left promises to be worth its trial",
    EndReason.SPACE_EXHAUSTED: "every layout was tried",
    EndReason.WALL_TIME: "search.max_wall_time is over",
    EndReason.IDLE: "no trial started, ran or ended for as long as search.idle_limit allows",
    EndReason.NO_FEASIBLE_LAYOUT: "no layout could be measured",
    EndReason.SCRIPT_ERROR: "the training script failed in every trial",
    EndReason.CANCELLED_BY_USER: "it was cancelled",
    EndReason.SITE_REFUSED: "the site refused its jobs",
}


def answer_words(data: ReportData) -> str:
    """The first thing to be read."""
    answer = data.answer
    if answer is None:
        if data.measured and data.state.is_ended:
            return "No layout that was measured may be the best"
        return "No layout could be measured" if data.state.is_ended else "No layout has been measured yet"
    if _is_only_today(data, answer):
        return "Only what you run today has been measured so far"
    if answer.is_today:
        which = f"No layouts measured{answer.room} beat" if answer.room else "Nothing measured beats"
        return f"{which} what you run today"
    if answer.speedup is None:
        return f"{amount(answer.tokens_per_sec)} tokens/s"
    if data.objective is Objective.TOKENS_PER_SEC:
        how = "faster than" if answer.speedup.ratio >= 1 else "as fast as"  # best within constraints
        return f"{answer.speedup.ratio:.2f} times {how} what you run today"
    how = "better than" if answer.speedup.ratio >= 1 else "as good as"
    return f"{answer.speedup.ratio:.2f} times {how} what you run today, in {UNITS[data.objective]}"


def answer_below(data: ReportData) -> str:
    """What the answer is about, in a sentence below it."""
    answer = data.answer
    if answer is None:
        return _without_answer(data)
    if _is_only_today(data, answer):
        return "How other layouts compare appears here once one of them has been measured."
    which = f"those{answer.room}, of {_measured_layouts(data)}" if answer.room else _measured_layouts(data)
    of_all = f"{'the fastest' if answer.is_fastest else 'as fast as the fastest'} of {which}"
    if answer.is_today:
        return f"What you run today is {of_all}."
    of_all = of_all[0].upper() + of_all[1:]
    if answer.speedup is not None:
        return f"{of_all}, against the baseline measured in the same search."
    if data.has_baseline:
        return f"{of_all}. What you run today has not been measured."
    return f"{of_all}. The search file names no baseline to compare it with."


def sure_words(data: ReportData) -> list[str]:
    """How sure the answer is, a sentence each."""
    answer = data.answer
    return [] if answer is None else list(_sure_words(answer, data))


def trade_words(data: ReportData) -> list[str]:
    """What other answers to several goals give for what, a sentence each."""
    return [] if data.answer is None else [f"Another answer: {trade}." for trade in data.answer.trades]


def state_words(data: ReportData) -> str:
    """What the search is doing, or why it ended."""
    if data.end_reason is not None:
        return f"{str(data.state).capitalize()}: {end_words(data.end_reason)}."
    if data.state.is_ended:
        return f"{str(data.state).capitalize()}."
    in_flight = data.progress.counts["in flight"]
    return f"{str(data.state).capitalize()}, {counted(in_flight, 'trial')} in flight."


def end_words(reason: EndReason) -> str:
    """Why a search ended."""
    return _END_WORDS[reason]


def cost_words(data: ReportData) -> str:
    """What it took so far."""
    progress = data.progress
    counts = ", ".join(f"{count} {what}" for what, count in progress.counts.items() if count)
    trials = f"{counted(len(data.trials), 'trial')} ({counts})" if counts else "no trial yet"
    clock = " of the simulated clock" if data.is_simulated else ""
    return f"{hours_words(progress.node_hours_used)} on nodes, {trials}, {duration(progress.elapsed_h * 3600)}{clock}."


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
    return str(trial.reason if ended and trial.reason else trial.state).replace("_", " ")


def amount(value: float | None, digits: int = 4) -> str:
    """A number with so many significant digits at least, thousands apart; a dash for what is unknown."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


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
    speedup = answer.speedup
    if speedup is not None and speedup.low is not None and speedup.high is not None:
        yield f"With 95 % confidence between {speedup.low:.2f} and {speedup.high:.2f} times."
    elif answer.tokens_per_sec_low is not None and answer.tokens_per_sec_high is not None:
        low, high = amount(answer.tokens_per_sec_low), amount(answer.tokens_per_sec_high)
        yield f"With 95 % confidence between {low} and {high} tokens/s."
    else:
        yield "How far another run would be off is not known."
    again = " It may be measured again before the search ends." if not data.state.is_ended else ""
    yield f"Measured in {counted(answer.num_runs, 'run')} of its own.{again}"
    if not answer.is_fastest:
        yield f"Chosen for its memory: {answer.why}."
    if answer.ties:
        yield f"Not to be told from {_listed(answer.ties)}: their intervals overlap."
    yield from (f"Flag {flag_words(flag)}." for flag in answer.flags)


def _is_only_today(data: ReportData, answer: Answer) -> bool:
    """Whether there is nothing yet to compare with what runs today."""
    return answer.is_today and not data.state.is_ended and len({trial.layout.key for trial in data.measured}) == 1


def _without_answer(data: ReportData) -> str:
    if not data.state.is_ended:
        return "The first numbers appear here once a trial has been measured."
    return printable(data.detail) if data.detail else "The failures below say why, each with what it wrote last."


def _measured_layouts(data: ReportData) -> str:
    count = len({trial.layout.key for trial in data.measured})
    return f"{counted(count, 'layout')} measured"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
