"""From what a trial said and what its launcher saw to a value or a reason: one pure function."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trials.trial import FailureReason, Outcome, OutcomeStatus, TrialSpec, TrialState, Word, utc_seconds


class Life(Word):
    """Absent is not done, and unreachable is not gone: unknown is a value."""

    ALIVE = "alive"
    ENDED = "ended"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Ending:
    """What a launcher knows about an attempt, translated from its own words.

    `reason` is set when the launcher itself knows why (it cancelled, the time limit passed, the node died); else
    None. `failed` says that some rank ended badly. `detail` of an attempt that is alive is what it waits for. Times
    are UTC seconds since the epoch. `job_id` is given where it may have changed, `restart` counts the times the job
    was put back into the queue; an outcome of an earlier run is none.
    """

    life: Life
    started: bool = False
    failed: bool = False
    reason: FailureReason | None = None
    detail: str | None = None
    nodes: tuple[str, ...] = ()
    started_at: float | None = None
    ended_at: float | None = None
    job_id: str | None = None
    restart: int = 0


@dataclass(frozen=True)
class Verdict:
    """How an attempt ended: its state, the reason unless it was measured, and the outcome it rests on."""

    state: TrialState
    reason: FailureReason | None = None
    outcome: Outcome | None = None
    excerpt: str | None = None


RETRIES: Mapping[FailureReason, float] = {
    FailureReason.HANG: 1,
    FailureReason.NODE_FAILURE: 2,
    FailureReason.PREEMPTED: 2,
    FailureReason.BOOT_FAILURE: 2,
    FailureReason.LAUNCH_FAILURE: 2,
    FailureReason.DIRTY_GPU: 2,
    FailureReason.INTERRUPTED: math.inf,  # the driver's end is never the layout's fault
    FailureReason.LOST: 1,
}
"""How often a trial is tried again after each reason; reasons not named are final."""

COMPARABLE = ("python", "torch", "deepspeed", "cuda", "device")
"""What in a fingerprint must be the same for two measurements of a search to be compared."""

_CANCELLED = (FailureReason.CANCELLED_BY_USER, FailureReason.CANCELLED_BY_SEARCH)
_KNOWN_BY_THE_RANK = (
    FailureReason.INVALID_LAYOUT,
    FailureReason.GPU_OOM,
    FailureReason.HOST_OOM,
    FailureReason.DOMINATED,
    FailureReason.DIRTY_GPU,
    FailureReason.RESULT_INVALID,
)
"""What only a rank can have seen: true whatever ended the others. Its other reasons may be echoes of that end."""

_TIMES_AND_RATES = ("step_time_s", "tokens_per_sec", "tokens_per_sec_per_gpu", "samples_per_sec")
_DIVIDED = ("startup_parts_s", "time_s")
_INTERVALS = (
    ("step_time_s", "step_time_low_s", "step_time_high_s"),
    ("tokens_per_sec", "tokens_per_sec_low", "tokens_per_sec_high"),
)


def classify(spec: TrialSpec, outcome: Outcome | None, ending: Ending) -> Verdict:
    """The verdict on an ended attempt; ValueError while it is alive or unknown.

    A complete outcome of this very attempt counts first, even if the launcher calls the job failed afterwards; then
    what the launcher knows; an end without either is a broken script. An outcome that cannot be believed is not kept
    in the verdict: the excerpt says what is wrong with it.
    """
    if ending.life is not Life.ENDED:
        raise ValueError(f"an attempt that is {ending.life} has no verdict yet")
    if outcome is not None:
        return _from_outcome(spec, outcome, ending)
    reason = ending.reason or FailureReason.SCRIPT_ERROR
    detail = ending.detail or "the ranks ended without an outcome"
    return Verdict(_state_for(reason), reason, None, detail)


def flag_other_fingerprint(verdict: Verdict, reference: Mapping[str, Any]) -> Verdict:
    """The verdict, its measurement flagged where its fingerprint differs from the reference in what both name."""
    outcome = verdict.outcome
    if outcome is None or outcome.status is not OutcomeStatus.MEASURED:
        return verdict
    found = outcome.fingerprint
    if all(found.get(name, reference.get(name)) == reference.get(name, found.get(name)) for name in COMPARABLE):
        return verdict
    return replace(verdict, outcome=replace(outcome, flags=(*outcome.flags, "fingerprint_changed")))


def _from_outcome(spec: TrialSpec, outcome: Outcome, ending: Ending) -> Verdict:
    fault = outcome_fault(spec, outcome)
    if fault is not None:
        return Verdict(TrialState.FAILED, FailureReason.RESULT_INVALID, None, fault)
    if outcome.status is OutcomeStatus.MEASURED:
        return Verdict(TrialState.MEASURED, None, _flagged_if_failed_after(outcome, ending))
    reason = _reason(outcome, ending)
    return Verdict(_state_for(reason), reason, outcome, outcome.excerpt or ending.detail)


def _reason(outcome: Outcome, ending: Ending) -> FailureReason:
    """A launcher that cancelled, or saw the node die, knows better than a rank that only saw its peers vanish."""
    if outcome.reason in _KNOWN_BY_THE_RANK:
        return outcome.reason
    return ending.reason or outcome.reason or FailureReason.SCRIPT_ERROR


def _state_for(reason: FailureReason) -> TrialState:
    return TrialState.CANCELLED if reason in _CANCELLED else TrialState.FAILED


def _flagged_if_failed_after(outcome: Outcome, ending: Ending) -> Outcome:
    if not ending.failed:
        return outcome
    return replace(outcome, flags=(*outcome.flags, "failed_after_result"))


def outcome_fault(spec: TrialSpec, outcome: Outcome) -> str | None:
    """Why this outcome cannot be believed, or None: another attempt's, impossible numbers, a layout not proven."""
    mine = (spec.search_id, spec.trial, spec.attempt, spec.nonce)
    if (outcome.search_id, outcome.trial, outcome.attempt, outcome.nonce) != mine:
        return "the outcome belongs to another attempt (search, trial, attempt or nonce differ)"
    if outcome.status is not OutcomeStatus.MEASURED:
        return None
    return _number_fault(spec, outcome) or _proof_fault(spec, outcome.proof) or _clock_fault(outcome)


def _number_fault(spec: TrialSpec, outcome: Outcome) -> str | None:
    measured = outcome.measured
    for name, value in measured.items():
        parts = value.values() if name in _DIVIDED and isinstance(value, Mapping) else (value,)
        if not all(part is None or _is_number(part) for part in parts):
            return f"{name} is {value!r}, not a finite number"
    for name in (*_TIMES_AND_RATES, "measured_steps"):
        if (measured.get(name) or 0) <= 0:
            return f"{name} is {measured.get(name)!r}, not a positive number"
    if measured["measured_steps"] < spec.measure.min_steps and "extrapolated" not in outcome.flags:
        return f"{measured['measured_steps']} measured steps, {spec.measure.min_steps} are the least that counts"
    return _order_fault(measured)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _order_fault(measured: Mapping[str, Any]) -> str | None:
    """A median outside its own interval, or a utilisation that no hardware has."""
    for name, low, high in _INTERVALS:
        value = measured[name]
        if not (measured.get(low) or value) <= value <= (measured.get(high) or value):
            return f"{name} {value} lies outside its own interval {measured.get(low)} to {measured.get(high)}"
    for name in ("mfu", "hfu"):
        if (measured.get(name) or 0) > 1:
            return f"{name.upper()} {measured[name]:.2f} is above the hardware's peak"
    return None


def _proof_fault(spec: TrialSpec, proof: Mapping[str, Any]) -> str | None:
    layout = spec.layout
    expected = {
        "world_size": spec.num_gpus,
        "tensor_parallel": layout.tensor_parallel,
        "pipeline_parallel": layout.pipeline_parallel,
        "data_parallel": layout.data_parallel,
        "parameters": spec.model.parameters,
        "local_parameters_sum": spec.model.parameters,
        "micro_batches_per_step": layout.grad_accum_steps,
    }
    if "optimizer_parameters_sum" in proof:  # a search may run trials of older code, which did not count it
        expected["optimizer_parameters_sum"] = spec.model.parameters
    for name, value in expected.items():
        if proof.get(name) != value:
            return f"the layout did not take effect: {name} is {proof.get(name)!r}, the spec says {value}"
    return _samples_fault(spec, proof.get("samples_per_data_rank"))


def _samples_fault(spec: TrialSpec, samples: Any) -> str | None:
    """Every data rank counts the same samples, a whole number of steps: the global batch is what the spec says."""
    layout = spec.layout
    per_step = layout.micro_batch_size * layout.grad_accum_steps
    is_list = isinstance(samples, list) and len(samples) == layout.data_parallel and all(map(_is_number, samples))
    if not is_list or len(set(samples)) != 1 or samples[0] <= 0 or samples[0] % per_step:
        return f"samples per data rank are {samples!r}, not {layout.data_parallel} times whole steps of {per_step}"
    return None


def _clock_fault(outcome: Outcome) -> str | None:
    if outcome.started_at is None or outcome.ended_at is None:
        return None
    try:
        seconds = utc_seconds(outcome.ended_at) - utc_seconds(outcome.started_at)
    except (TypeError, ValueError):
        return f"{outcome.started_at!r} to {outcome.ended_at!r} are not UTC times"
    return f"the clock went back by {-seconds:.0f} s during the trial" if seconds < 0 else None
