"""What a trial's outcome holds, in words for people. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from trials.analysis.verdict import TrialCounts
from trials.trial import Attempt, FailureReason, Flag, Trial

FLAG_DESCRIPTIONS: Mapping[str, str] = {
    Flag.EXTRAPOLATED: "its step time follows from shorter steps of fewer micro-batches; repeats run full ones",
    Flag.TIME_LIMIT: "the time limit came before the interval was narrow enough; enough steps were measured to count",
    Flag.WIDE_INTERVAL: "steps still differed at measure.max_steps: its interval is wider than ci_relative_width asks",
    Flag.FAILED_AFTER_RESULT: "a rank ended badly after the result was written; the numbers stand, the logs say why",
    Flag.SUSPECT_NODE: "a slow device, or steps that slowed down: perhaps the machine; one such run is never the best",
    Flag.FINGERPRINT_CHANGED: "other software or hardware than the first measurement's, so not to be compared with it",
    Flag.HOST_MEMORY_GROWTH: "host memory grows with the steps, and a long training may end for it",
    Flag.PROFILE_FAILED: "the profiled steps after the measurement failed; the numbers stand, without a breakdown",
    Flag.LAYOUT_UNVERIFIED: "the trainer's log does not prove the whole layout; see the outcome's proof.unproven",
    Flag.THROUGHPUT_MISMATCH: "the trainer's own rate is over 10 % off; the outcome's proof.cross_checks has both",
}
"""What each of the contract's flags means, after a colon."""

REASON_LABELS: Mapping[FailureReason, str] = {
    FailureReason.INVALID_LAYOUT: "refused by the engine",
    FailureReason.GPU_OOM: "out of GPU memory",
    FailureReason.HOST_OOM: "out of host memory",
    FailureReason.PRUNED: "stopped early",
    FailureReason.TIME_LIMIT: "time limit",
    FailureReason.HANG: "hang",
    FailureReason.NODE_FAILURE: "node failure",
    FailureReason.PREEMPTED: "preempted",
    FailureReason.BOOT_FAILURE: "node failed to boot",
    FailureReason.LAUNCH_FAILURE: "launch failure",
    FailureReason.GPU_MEMORY_IN_USE: "GPU memory already in use",
    FailureReason.SCRIPT_ERROR: "trainer crashed",
    FailureReason.RESULT_INVALID: "invalid result",
    FailureReason.CANCELLED_BY_USER: "cancelled by the user",
    FailureReason.CANCELLED_BY_SEARCH: "cancelled by the search",
    FailureReason.INTERRUPTED: "interrupted",
    FailureReason.JOB_LOST: "job lost",
}
"""Why a trial ended without a value, short enough for a table."""

UNKNOWN = "\N{EN DASH}"

_MOST_NAMED = 6
_ASKED_FOR = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
"""What torch's allocators say, on a GPU and on a CPU."""
_STOOD_STILL = re.compile(r"no progress for \d+ s")
"""How a rank's watchdog begins."""
_BYTES_PER_MIB = 2**20
_LEAST_SHARE = 0.005
"""Of a step's time; what takes less is left out."""


def format_trial_end(trial: Trial) -> str:
    """How a trial ended, or where it is."""
    return str(trial.state) if trial.reason is None else REASON_LABELS[trial.reason]


def format_counts(counts: TrialCounts) -> Iterator[str]:
    """How many trials stand how; what is zero is left out."""
    for field in fields(counts):
        if count := getattr(counts, field.name):
            yield f"{count} {field.name.replace('_', ' ')}"


def format_number(value: float | None, digits: int = 4) -> str:
    """A number with so many significant digits at least, thousands apart; a dash for what is unknown."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def format_range(low: float | None, high: float | None) -> str | None:
    """An interval from its low to its high end; None where one is unknown."""
    return None if low is None or high is None else f"{format_number(low)}\N{EN DASH}{format_number(high)}"


def format_throughput_interval(measured: Mapping[str, Any]) -> str | None:
    """The 95 % interval of a measured throughput; None where it is unknown."""
    return format_range(measured.get("tokens_per_sec_low"), measured.get("tokens_per_sec_high"))


def describe_flag(flag: str) -> str:
    """The flag and what it means, in one line."""
    return f"{flag}: {FLAG_DESCRIPTIONS.get(flag, 'a flag of another version of Parlay')}"


def flag_lines(trials: Sequence[Trial]) -> list[str]:
    """A line for each flag that measurements have, with the names of these trials."""
    flagged: dict[str, list[str]] = {}
    for trial in trials:
        for flag in trial.flags if trial.measured else ():
            flagged.setdefault(flag, []).append(trial.trial)
    return [f"! {join_names(names)} {describe_flag(flag)}" for flag, names in flagged.items()]


def describe_failure(attempt: Attempt, limit_gib: float | None) -> str | None:
    """Which rank of an attempt that ended as gpu_oom or hang ran into it, in which phase, and for memory under which
    limit of the user's own, GiB; None of any other attempt, or where no rank told."""
    outcome, excerpt = attempt.outcome, attempt.excerpt or ""
    if outcome is None or outcome.rank is None:
        return None
    if attempt.reason is FailureReason.GPU_OOM:
        words = f"rank {outcome.rank} ran out of memory in phase {outcome.phase}"
        if asked := _ASKED_FOR.findall(excerpt):
            words += f", asking for {_size(*asked[-1])} more"
        return words + (f"; its limit is {limit_gib:g} GiB (measure.memory_limit_gib)" if limit_gib else "")
    if attempt.reason is FailureReason.HANG and (stood := _STOOD_STILL.match(excerpt)) is not None:
        return f"rank {outcome.rank} made {stood[0]} in phase {outcome.phase}"
    return None


def describe_step_time(measured: Mapping[str, Any]) -> str | None:
    """Where the time of a step goes, the largest part first; None where the trial was not profiled."""
    time_s = measured.get("time_s")
    if not time_s:
        return None
    shares = {part: seconds / sum(time_s.values()) for part, seconds in time_s.items()}
    told = sorted((part for part in shares if shares[part] >= _LEAST_SHARE), key=lambda part: -shares[part])
    return "step time: " + ", ".join(f"{part} {100 * shares[part]:.0f} %" for part in told)


def time_lines(trials: Sequence[Trial]) -> list[str]:
    """A line for each trial that was profiled."""
    words = {trial.trial: describe_step_time(trial.measured or {}) for trial in trials}
    return [f"{name} {told}" for name, told in words.items() if told is not None]


def _size(number: str, unit: str) -> str:
    return f"{float(number) / _BYTES_PER_MIB:.3g} MiB" if unit == "bytes" else f"{number} {unit}"


def join_names(names: Sequence[str]) -> str:
    """The trials, or the first few of many."""
    left_out = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {left_out} more" if left_out > 0 else "")
