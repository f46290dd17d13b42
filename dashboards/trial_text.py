"""Text of a trial's outcome: flags, failure reasons, numbers, time breakdown. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import PurePath
from typing import Any

from dashboards.text import cut_word, printable
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.short_name import short_name_words
from search_spaces.verification import Level
from trials.analysis.ranked_layout import RankedLayout
from trials.analysis.training_rate import TrainingRate
from trials.analysis.verdict import TrialCounts
from trials.failure_policy import Memory, policy_of
from trials.files.text import last_line, plural
from trials.outcome_types import MeasuredMetrics
from trials.trial import Attempt, FailureReason, Flag, Trial

FLAG_DESCRIPTIONS: Mapping[Flag, str] = {
    Flag.EXTRAPOLATED: "step time extrapolated from shorter steps with fewer micro-batches; repeats run full steps",
    Flag.TIME_LIMIT: "time limit reached before the interval was narrow enough; enough steps were measured to count",
    Flag.WIDE_INTERVAL: "step times still varied at measure.max_steps: the interval is wider than ci_relative_width",
    Flag.FAILED_AFTER_RESULT: "a rank failed after the result was written; the numbers are valid, see the logs",
    Flag.SUSPECT_NODE: "a slow device or steps that slowed down, perhaps a bad node; one such run is never the best",
    Flag.SHARED_NODE: "other jobs ran on its nodes meanwhile, which may have slowed it: launcher.slurm.exclusive",
    Flag.STRAGGLER: "a rank computes over 15 % longer than those with equal work; see slowest_rank in its outcome",
    Flag.FINGERPRINT_CHANGED: "program, software or hardware is not that of the first measurement: not comparable",
    Flag.HOST_MEMORY_GROWTH: "host memory grows with every step, which may end a long training",
    Flag.DEVICE_MEMORY_GROWTH: "device memory grows with every step, which may end a long training",
    Flag.PROFILE_FAILED: "the profiled steps after the measurement failed; the numbers are valid, without a breakdown",
    Flag.UNPROVEN: "not all that the trainer trained could be seen; see proof.unproven in its outcome",
    Flag.THROUGHPUT_MISMATCH: "a rate or time that the trainer prints is not ours; proof.cross_checks in its outcome",
    Flag.EMULATED_DEVICE: "a CPU emulated the engine's GPU; compare only with layouts of this engine on this machine",
}
"""Meaning of each flag."""

UNKNOWN = "\N{EN DASH}"

_LONGEST_WORD = 40
_MAX_NAMES = 6
_ASKED_FOR = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
"""Message of torch's allocators, on a GPU and on a CPU."""
_ADVICE = re.compile(r"^\s*(rule|fix): ", re.MULTILINE)
_NO_PROGRESS = re.compile(r"no progress for \d+ s")
"""Start of a rank watchdog's message."""
_BYTES_PER_MIB = 2**20
_MIN_SHARE = 0.005
"""Share of the step time below which a part is omitted."""


REPLAYED_VALUE = "Replayed value. Its interval is assumed, or spans the rows of this layout; Parlay measured neither."
"""Confidence in a value of a measured table."""


def describe_replayed_table(table: str) -> str:
    """Origin of the numbers of a search that replayed a measured table."""
    return f"Replayed from {printable(PurePath(table).name)}. Parlay ran nothing in this search."


def format_trial_end(trial: Trial) -> str:
    """Reason of a trial's end, or its state."""
    return str(trial.state) if trial.reason is None else policy_of(trial.reason).label


def format_trial_end_short(trial: Trial) -> str:
    """Reason of a trial's end, or its state, in at most 11 characters."""
    return str(trial.state) if trial.reason is None else policy_of(trial.reason).abbreviation


def layout_name(layout: Layout, varying: Collection[str] = ()) -> str:
    """Short name of a layout in a sentence or as a title: long values of settings are cut."""
    return " ".join(cut_word(word, _LONGEST_WORD) for word in short_name_words(layout, varying) if word)


def format_counts(counts: TrialCounts) -> Iterator[str]:
    """Number of trials in each state; zeros are omitted."""
    for field in fields(counts):
        if count := getattr(counts, field.name):
            yield f"{count} {field.name.replace('_', ' ')}"


def format_number(value: float | None, digits: int = 4) -> str:
    """Number with at least `digits` significant digits and thousands separators; a dash for None."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def format_short(value: float | None, has_zeros: bool = True) -> str:
    """Number with three significant digits: 0.125, 9.27k, 1.50M; a dash for None. Without `has_zeros` 1.5M."""
    if value is None:
        return UNKNOWN
    rounded = float(f"{value:.3g}")
    digits = "#.3g" if has_zeros and rounded else ".3g"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(rounded) >= size:
            return f"{rounded / size:{digits}}".rstrip(".") + unit
    return f"{rounded:{digits}}".rstrip(".")


def format_three_digits(value: float) -> str:
    """Three significant digits, with their zeros: numbers below each other have their points below each other."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def duration(seconds: float | None) -> str:
    """Seconds in days, hours, minutes or seconds; a dash for None."""
    if seconds is None:
        return UNKNOWN
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def format_setting(value: object) -> str:
    """Value of a layout's field: booleans as on and off, None as default."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "default" if value is None else str(value).replace("_", " ")


def format_range(low: float | None, high: float | None) -> str | None:
    """Interval from `low` to `high`; None where either is unknown."""
    return None if low is None or high is None else f"{format_number(low)}\N{EN DASH}{format_number(high)}"


def format_short_interval(metrics: MeasuredMetrics) -> str | None:
    """95 % interval of a measured throughput with three significant digits; None where unknown."""
    low, high = metrics.tokens_per_sec_low, metrics.tokens_per_sec_high
    return None if low is None or high is None else f"{format_short(low)}\N{EN DASH}{format_short(high)}"


def format_throughput_interval(metrics: MeasuredMetrics) -> str | None:
    """95 % interval of a measured throughput; None where unknown."""
    return format_range(metrics.tokens_per_sec_low, metrics.tokens_per_sec_high)


def describe_flag(flag: Flag) -> str:
    """Flag and its meaning in one line."""
    return f"{flag}: {FLAG_DESCRIPTIONS[flag]}"


def flag_lines(trials: Sequence[Trial]) -> list[str]:
    """Line for each flag of the measured trials, with the trials' names, then one for each straggler."""
    flagged: dict[Flag, list[str]] = {}
    for trial in trials:
        for flag in trial.flags if trial.measured else ():
            flagged.setdefault(flag, []).append(trial.trial)
    lines = [f"! {join_names(names)} {describe_flag(flag)}" for flag, names in flagged.items()]
    stragglers = ((trial.trial, describe_straggler(trial)) for trial in trials if trial.measured)
    return [*lines, *(f"! {name} {words}" for name, words in stragglers if words is not None)]


def describe_failure(attempt: Attempt, limit_gib: float | None) -> str | None:
    """Rank and phase in which an attempt ran out of memory or hung, with the user's memory limit in GiB.

    None for other failures, and where no rank reported.
    """
    outcome, excerpt = attempt.outcome, attempt.excerpt or ""
    if outcome is None or outcome.rank is None:
        return None
    if attempt.reason is FailureReason.GPU_OOM:
        words = f"rank {outcome.rank} ran out of memory in phase {outcome.phase}"
        if asked := _ASKED_FOR.findall(excerpt):
            words += f", asking for {_size(*asked[-1])} more"
        return words + (f"; its limit is {limit_gib:g} GiB (measure.memory_limit_gib)" if limit_gib else "")
    if attempt.reason is FailureReason.HANG and (found := _NO_PROGRESS.match(excerpt)) is not None:
        return f"rank {outcome.rank} made {found[0]} in phase {outcome.phase}"
    return None


def failure_cause(excerpt: str) -> str:
    """Cause of a failure in the end of its log: the first line of a problem, the last line of a traceback or a log; ""
    without one."""
    text = excerpt.strip()
    is_problem = _ADVICE.search(text) and not text.startswith("Traceback")
    return text.splitlines()[0] if is_problem else last_line(text)


def advice_after(reason: FailureReason | None, attempts: Sequence[Attempt], limit_gib: float | None) -> str | None:
    """Changes of the search file to try after these attempts, which all ended with this reason under the user's memory
    limit in GiB; None if only the logs help."""
    policy = policy_of(reason)
    if policy.exceeded is not Memory.ACCELERATOR or limit_gib is None:
        return policy.advice
    raise_limit = f"a larger measure.memory_limit_gib (now {limit_gib:g})"
    if had_no_room_for_a_model(attempts):
        return f"{raise_limit}: the process exceeds it before the model is built"
    return f"{raise_limit}, {policy.advice}"


def had_no_room_for_a_model(attempts: Sequence[Attempt]) -> bool:
    """True if all these attempts, out of memory, ended before they built anything: no layout changes that."""
    return {attempt.outcome.phase if attempt.outcome else None for attempt in attempts} == {"start"}


def describe_training_rate(rate: TrainingRate) -> str:
    """Tokens a day, and what checkpoints take of the time."""
    tokens = f"{format_tokens(rate.tokens_per_day)} tokens a day"
    if rate.stalled_share is None:
        return f"{tokens} without checkpoints, whose cost is not stated (trainer.checkpoint)"
    stall = f"{format_number(rate.checkpoint_stall_s, 3)} s"
    return f"{tokens}: checkpoints stall the training for {stall} each, {100 * rate.stalled_share:.3g} % of its time"


def format_tokens(count: float) -> str:
    """Number of tokens with three digits, in millions or billions where it is large."""
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if count >= size:
            return f"{format_number(count / size, 3)} {name}"
    return format_number(count)


def describe_step_time(time_s: Mapping[str, float] | None) -> str | None:
    """Time breakdown of a step, largest part first; None where the trial was not profiled."""
    if not time_s:
        return None
    shares = {part: seconds / sum(time_s.values()) for part, seconds in time_s.items()}
    shown = sorted((part for part in shares if shares[part] >= _MIN_SHARE), key=lambda part: -shares[part])
    return "step time: " + ", ".join(f"{part} {100 * shares[part]:.0f} %" for part in shown)


def describe_expert_tokens(metrics: MeasuredMetrics) -> str | None:
    """Loads of the experts in the measured steps; None where they were not counted."""
    most, mean = metrics.expert_tokens_most, metrics.expert_tokens_mean
    if most is None or mean is None:
        return None
    return f"tokens of an expert in a step: at most {most:,.0f}, mean {mean:,.0f}"


def describe_energy(metrics: MeasuredMetrics) -> str | None:
    """Energy of the measured steps; None where it is unknown."""
    if metrics.joules_per_token is None:
        return None
    return f"energy: {format_number(metrics.joules_per_token, 3)} J a token, of the GPUs alone"


def describe_slowest_rank(slowest: Mapping[str, Any] | None) -> str | None:
    """The rank that computes longest, of a `SlowestRank`; None where ranks could not be compared."""
    if not slowest:
        return None
    times = f"{format_number(slowest['compute_s'], 3)} s (p95 {format_number(slowest['compute_p95_s'], 3)} s)"
    return (
        f"slowest rank: {slowest['rank']} on {printable(slowest['host'])} computes {times} of a step,"
        f" {slowest['slowdown']:.2f} times as long as ranks with equal work"
    )


def describe_fullest_rank(fullest: Mapping[str, Any] | None) -> str | None:
    """The rank with least memory left, what is left and what takes the rest, of a `FullestRank`; None where unknown."""
    if not fullest:
        return None
    known = {name: format_number(gib, 3) for name, gib in fullest.items() if name.endswith("_gib")}
    of = f" of {known['device_gib']}" if "device_gib" in known else ""
    words = f"fullest rank: {fullest['rank']} on {printable(fullest['host'])}, {known['used_gib']}{of} GiB used"
    if "free_gib" in known:
        limit = f" (measure.memory_limit_gib: {known['limit_gib']})" if "limit_gib" in known else ""
        words += f", {known['free_gib']} GiB free{limit}"
    if "allocated_gib" in known:
        words += f": {known['allocated_gib']} tensors"
    if "cached_gib" in known:
        words += f", {known['cached_gib']} kept by the allocator"
    if "outside_gib" in known:
        words += f", {known['outside_gib']} outside of it (context, communication, graphs)"
    if "inactive_split_gib" in known:
        words += f"; up to {known['inactive_split_gib']} GiB lay in fragments"
    if retries := fullest.get("alloc_retries"):
        words += f"; {plural(retries, 'allocation')} failed until the allocator had given back what it kept"
    return words


def describe_node_sets(on_disjoint_nodes: bool | None) -> str | None:
    """Sentence on whether a layout's runs were on disjoint sets of nodes; None where that says nothing."""
    if on_disjoint_nodes is None:
        return None
    return f"{'two' if on_disjoint_nodes else 'no two'} of its runs were on disjoint sets of nodes"


def describe_host_memory(metrics: MeasuredMetrics) -> str | None:
    """Memory that the fullest node's ranks take, and that is left; None where unknown."""
    peak_gib, left_gib = metrics.peak_host_memory_gib, metrics.host_memory_available_gib
    if peak_gib is None or left_gib is None:
        return None
    peak, left = format_number(peak_gib, 3), format_number(left_gib, 3)
    return f"host memory: the ranks of a node take up to {peak} GiB, and {left} GiB were left after the last step"


def memory_growth_lines(metrics: MeasuredMetrics) -> Iterator[str]:
    """Sentences on memory that grows, of a node and of a device: by what, and when it is full."""
    if (full_at := metrics.host_memory_full_at_step) is not None:
        slope = "" if metrics.host_memory_slope_mib_per_step is None else _slope(metrics.host_memory_slope_mib_per_step)
        yield (
            f"Host memory grows{slope}: at this rate a node is full at step {full_at}, and a longer training fails"
            " there."
        )
    if (full_at := metrics.device_memory_full_at_step) is not None:
        slopes = {
            "used of the device": metrics.device_memory_slope_mib_per_step,
            "reserved by the allocator": metrics.reserved_memory_slope_mib_per_step,
            "allocated to tensors": metrics.allocated_memory_slope_mib_per_step,
        }
        known = ", ".join(f"{format_number(slope, 3)} {what}" for what, slope in slopes.items() if slope is not None)
        yield (
            f"Device memory grows, in MiB a step: {known}. At this rate a GPU is full at step {full_at}, and a longer"
            " training fails there."
        )


def _slope(mib_per_step: float) -> str:
    return f" by {format_number(mib_per_step, 3)} MiB a step"


def describe_straggler(trial: Trial) -> str | None:
    """The slowest rank of a trial that has a straggler; None for others."""
    last = trial.last_attempt
    return (
        describe_slowest_rank(last.outcome.slowest_rank)
        if last and last.outcome and Flag.STRAGGLER in trial.flags
        else None
    )


def describe_verification(verified: Mapping[str, Any] | None) -> str:
    """Knowledge of Parlay's tests of a layout's axis values with its engine; docs/trainers.md."""
    if not verified or not verified["values"]:
        return "verified: tests of Parlay trained all axis values of the layout with its engine"
    known = "its trainer's parser accepts" if verified["level"] == Level.PARSED.text else "Parlay's rules allow"
    return f"verified: {verified['level']}; {known}, but no test of Parlay trained: {', '.join(verified['values'])}"


def time_lines(layouts: Sequence[RankedLayout]) -> list[str]:
    """Line with the time breakdown of each profiled layout."""
    texts = {layout.trial: describe_step_time(layout.measured.time_s) for layout in layouts}
    return [f"{name} {text}" for name, text in texts.items() if text is not None]


def _size(number: str, unit: str) -> str:
    return f"{float(number) / _BYTES_PER_MIB:.3g} MiB" if unit == "bytes" else f"{number} {unit}"


def join_names(names: Sequence[str]) -> str:
    """Names joined by commas, shortened after the first few."""
    omitted = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {omitted} more" if omitted > 0 else "")
