"""Classification of an ended attempt: from its outcome and its launcher's report to a measured value or a failure
reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from search_spaces.engines import PARLAY
from search_spaces.hardware.arithmetic import arithmetic_of, speedup_over_fp16
from search_spaces.hardware.cluster import ACCELERATORS
from search_spaces.layouts.layout import DEGREES, EXPERT_GROUPS, OTHER_DEGREES
from trials.diagnostics.fabric import FabricTimes
from trials.failure_policy import Ending, policy_of
from trials.files.tracebacks import is_device_failure
from trials.measurement.protocol import PROBE_SIZE, extrapolation_of
from trials.observed_step import observed_step_fault
from trials.outcome_types import MeasuredMetrics, ObservedStep
from trials.trial import (
    Attempt,
    FailureReason,
    Flag,
    LowerStrEnum,
    Outcome,
    OutcomeStatus,
    Trial,
    TrialKind,
    TrialSpec,
    TrialState,
    utc_seconds,
)


class Liveness(LowerStrEnum):
    """State of an attempt's job. A job that is absent or unreachable is unknown, not ended."""

    ALIVE = "alive"
    ENDED = "ended"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class LaunchStatus:
    """A launcher's report on an attempt, in terms common to all launchers.

    `reason` is set when the launcher itself knows it (it cancelled, the time limit passed, the node died); else None.
    `failed`: some rank exited with an error. `detail` of an attempt that is alive is what it waits for. Times are UTC
    seconds since the epoch; `is_metered`: start and end are those by which the cluster accounts usage. `extra_node_s`
    are node-seconds used in addition, by other jobs of its name. `job_id` is given where it may have changed.
    `restart` counts requeues of the job; outcomes of earlier runs do not count.
    `nodes_were_silent`: the nodes had not answered for long before the end. `billing` is what Slurm bills the job in an
    hour, in billing units, with the factor of its QOS. `had_neighbours`: other jobs were seen on its nodes meanwhile.
    """

    liveness: Liveness
    started: bool = False
    failed: bool = False
    reason: FailureReason | None = None
    detail: str | None = None
    nodes: tuple[str, ...] = ()
    started_at: float | None = None
    ended_at: float | None = None
    job_id: str | None = None
    restart: int = 0
    is_metered: bool = False
    extra_node_s: float = 0.0
    nodes_were_silent: bool = False
    billing: float | None = None
    had_neighbours: bool = False


@dataclass(frozen=True)
class AttemptResult:
    """Result of an attempt: its state, the reason unless it was measured, and the outcome it rests on."""

    state: TrialState
    reason: FailureReason | None = None
    outcome: Outcome | None = None
    excerpt: str | None = None


PROGRAM = ("scripts", "script_python_files")
"""Fingerprint fields of the user's program."""

COMPARABLE = (
    *PROGRAM,
    *("python", "torch", "deepspeed", "megatron_core", "transformer_engine", "megatron_layers"),
    *("torchtitan", "torchao", "accelerate", "transformers", "peft", "bitsandbytes", "cuda", "device"),
)
"""Fingerprint fields that must be equal for two measurements to be compared."""

MAX_PROBE_RATIO = 1.25
"""Largest plausible ratio of a training's FLOP/s to those of the probe, which is in fp16, scaled to the training's
arithmetic; larger products are faster by a tenth or two."""

_NO_THREAD = "terminate called without an active exception"
"""C++'s message where a thread cannot be started: under our memory limit there is no room for its stack, and Python
raises nothing."""

_NO_CODE = "Error while finding module specification for 'trials."
"""Python's message for `-m trials.train` where the folder of the search's code cannot be read."""

_INTERVALS = (
    ("step_time_s", "step_time_low_s", "step_time_high_s"),
    ("tokens_per_sec", "tokens_per_sec_low", "tokens_per_sec_high"),
    ("joules_per_token", "joules_per_token_low", "joules_per_token_high"),
)


def classify(spec: TrialSpec, outcome: Outcome | None, status: LaunchStatus) -> AttemptResult:
    """Classify an ended attempt; ValueError while it is alive or unknown.

    A complete outcome of this attempt counts first, even if the launcher reports failure afterwards; then the
    launcher's reason. Without either the script is at fault, unless the log names a dead GPU. An outcome that cannot be
    believed is dropped; the excerpt says what is wrong with it.
    """
    if status.liveness is not Liveness.ENDED:
        raise ValueError(f"an attempt that is {status.liveness} has no result yet")
    if outcome is not None:
        return _from_outcome(spec, outcome, status)
    reason = status.reason or _reason_of_output(spec, status.detail)
    detail = status.detail or "the ranks ended without an outcome"
    return AttemptResult(_state_for(reason), reason, None, detail)


def flag_other_fingerprint(result: AttemptResult, reference: Mapping[str, Any]) -> AttemptResult:
    """Flag a measurement whose fingerprint differs from the reference in a field that both have."""
    outcome = result.outcome
    if outcome is None or outcome.status is not OutcomeStatus.MEASURED:
        return result
    found = outcome.fingerprint
    if are_comparable(found, reference):
        return result
    return replace(result, outcome=replace(outcome, flags=(*outcome.flags, Flag.FINGERPRINT_CHANGED)))


def may_retry(trial: Trial, attempt: Attempt, is_reference: bool = False) -> bool:
    """True if the trial is tried again after this last attempt. `is_reference`: the baseline, which has more
    retries."""
    if attempt.reason is None or trial.reason is FailureReason.SETTING_FAILURE:
        return False
    alike = sum(a.reason is attempt.reason for a in trial.attempts)
    policy = policy_of(attempt.reason)
    return alike <= policy.retries + (policy.baseline_retries if is_reference else 0)


def are_comparable(found: Mapping[str, Any], reference: Mapping[str, Any]) -> bool:
    """True if two fingerprints agree in all comparable fields that both have."""
    return _agree(found, reference, COMPARABLE)


def program_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Difference between two fingerprints' programs, with hashes; None where they agree in all that both know.

    Files that the command names come first, then other ones of the checkout.
    """
    if _agree(before, now, PROGRAM):
        return None
    commits = (f"commit {fingerprint.get('script_commit')}" for fingerprint in (before, now))
    changes = (
        _changed_files(before.get("scripts"), now.get("scripts"), "absent", "SHA-256")
        or _changed_files(before.get("script_modified"), now.get("script_modified"), "unmodified", "blob")
        or ["Python files beside the script (before {}, now {})".format(*commits)]
    )
    more = f" and {len(changes) - _MOST_NAMED} more" if len(changes) > _MOST_NAMED else ""
    return ", ".join(changes[:_MOST_NAMED]) + more


def _changed_files(before: Any, now: Any, absent: str, hash_name: str) -> list[str]:
    """Names of the files whose hashes differ, with both; a file without one is `absent`, an empty one is deleted."""

    def described(value: str | None) -> str:
        return absent if value is None else f"{hash_name} {value[:_HASH_DIGITS]}" if value else "deleted"

    was, is_now = before or {}, now or {}
    changed = [file for file in {**was, **is_now} if was.get(file) != is_now.get(file)]
    return [f"{file} (before {described(was.get(file))}, now {described(is_now.get(file))})" for file in changed]


_MOST_NAMED, _HASH_DIGITS = 5, 12


def _agree(found: Mapping[str, Any], reference: Mapping[str, Any], names: Iterable[str]) -> bool:
    """True if both have equal values in all of these fields that both have."""
    return all(found.get(name, reference.get(name)) == reference.get(name, found.get(name)) for name in names)


def _from_outcome(spec: TrialSpec, outcome: Outcome, status: LaunchStatus) -> AttemptResult:
    fault = _fault_of_decoded(spec, outcome)
    if fault is not None:
        return AttemptResult(TrialState.FAILED, FailureReason.RESULT_INVALID, None, fault)
    if outcome.status is OutcomeStatus.MEASURED:
        return AttemptResult(TrialState.MEASURED, None, _with_flags(outcome, status))
    reason = _reason(spec, outcome, status)
    return AttemptResult(_state_for(reason), reason, outcome, outcome.excerpt or status.detail)


def _reason(spec: TrialSpec, outcome: Outcome, status: LaunchStatus) -> FailureReason:
    """The failure reason. A launcher that cancelled or saw the node die overrides a rank that saw its peers vanish."""
    if outcome.reason is not None and policy_of(outcome.reason).only_rank_knows:
        return outcome.reason
    reason = status.reason or outcome.reason or FailureReason.SCRIPT_ERROR
    return _reason_of_output(spec, outcome.excerpt) if reason is FailureReason.SCRIPT_ERROR else reason


def _reason_of_output(spec: TrialSpec, words: str | None) -> FailureReason:
    """The reason derived from log text where neither rank nor launcher gave one."""
    if is_device_failure(words or ""):
        return FailureReason.NODE_FAILURE
    if _NO_CODE in (words or ""):
        return FailureReason.LAUNCH_FAILURE
    is_limited = spec.accelerator == "cpu" and spec.measure.memory_limit_gib is not None
    return FailureReason.GPU_OOM if is_limited and _NO_THREAD in (words or "") else FailureReason.SCRIPT_ERROR


def _state_for(reason: FailureReason) -> TrialState:
    return TrialState.CANCELLED if policy_of(reason).ending is Ending.CANCELLED else TrialState.FAILED


def _with_flags(outcome: Outcome, status: LaunchStatus) -> Outcome:
    """The outcome with the flags that its launcher knows."""
    found = {Flag.FAILED_AFTER_RESULT: status.failed, Flag.SHARED_NODE: status.had_neighbours}
    return replace(outcome, flags=(*outcome.flags, *(flag for flag, is_so in found.items() if is_so)))


def outcome_fault(spec: TrialSpec, outcome: Outcome) -> str | None:
    """The reason why an outcome made by this process cannot be believed; None where it can.

    Checked are types and bounds, identity, plausibility of numbers and proof of the layout. A pruned trial's numbers
    are checked alike, since they bound its layout's throughput.
    """
    try:
        Outcome.from_json(outcome.to_json())
    except ValueError as error:
        return str(error)
    return _fault_of_decoded(spec, outcome)


def _fault_of_decoded(spec: TrialSpec, outcome: Outcome) -> str | None:
    """As `outcome_fault`, of an outcome whose types and bounds the codec has checked."""
    mine = (spec.search_id, spec.trial, spec.attempt, spec.nonce)
    if (outcome.search_id, outcome.trial, outcome.attempt, outcome.nonce) != mine:
        return "the outcome belongs to another attempt (search, trial, attempt or nonce differ)"
    is_pruned = outcome.reason is FailureReason.PRUNED and outcome.measured is not None
    if outcome.status is not OutcomeStatus.MEASURED and not is_pruned:
        return None
    if spec.kind is TrialKind.CHECK:
        return _fabric_fault(spec, outcome)
    if outcome.metrics is None:
        return "it has no measurement"
    return _number_fault(spec, outcome, outcome.metrics) or _proof_fault(spec, outcome) or _clock_fault(outcome)


def _fabric_fault(spec: TrialSpec, outcome: Outcome) -> str | None:
    try:
        FabricTimes.of(outcome, spec.trainer, spec.gpus_per_node, spec.num_nodes)
    except ValueError as error:
        return str(error)
    return None


def _number_fault(spec: TrialSpec, outcome: Outcome, metrics: MeasuredMetrics) -> str | None:
    if metrics.measured_steps < spec.measure.min_steps and outcome.status is OutcomeStatus.MEASURED:
        return f"{metrics.measured_steps} measured steps, at least {spec.measure.min_steps} are required"
    if spec.measure.energy and metrics.joules_per_token is None and outcome.status is OutcomeStatus.MEASURED:
        return "it has no joules_per_token, an objective of the search"
    return _order_fault(metrics) or _peak_fault(spec, metrics, outcome.fingerprint.get("probe_ms_by_rank"))


def _order_fault(metrics: MeasuredMetrics) -> str | None:
    """Check that known values lie inside their own intervals, which are positive."""
    for name, *ends in _INTERVALS:
        value, low, high = (getattr(metrics, field) for field in (name, *ends))
        if value is not None and not 0 < (value if low is None else low) <= value <= (value if high is None else high):
            return f"{name} {value} is outside of its interval {low} to {high}"
    return None


def _peak_fault(spec: TrialSpec, metrics: MeasuredMetrics, probes_ms: Sequence[float] | None) -> str | None:
    """Check utilisation and throughput against the hardware's peak and the device's own probe."""
    for name, utilisation in (("MFU", metrics.mfu), ("HFU", metrics.hfu)):
        if (utilisation or 0) > 1:
            return f"{name} {utilisation:.2f} is above the hardware's peak"
    if not probes_ms:
        return None
    speedup = speedup_over_fp16(ACCELERATORS.get(spec.accelerator), arithmetic_of(spec.layout))
    reached = speedup * 2 * PROBE_SIZE**3 / (min(probes_ms) / 1e3)
    model = spec.model.with_documents(metrics.document_length)
    computed = model.causal_flops_per_token * metrics.tokens_per_sec_per_gpu
    if computed <= MAX_PROBE_RATIO * reached:
        return None
    return f"{computed / 1e12:.0f} TFLOP/s per GPU, but a plain matrix product there reaches {reached / 1e12:.0f}"


def _proof_fault(spec: TrialSpec, outcome: Outcome) -> str | None:
    proof, expected = outcome.proof, expected_proof(spec)
    if spec.trainer["kind"] != PARLAY:
        expected["global_batch_size"] = spec.global_batch_size
        return (
            _log_proof_fault(proof, expected)
            or _vocabulary_fault(proof, spec.model.vocab_size)
            or _observed_step_fault(spec, proof.get("observed_step"))
        )
    if Flag.EXTRAPOLATED in outcome.flags and (extrapolation := extrapolation_of(spec)) is not None:
        expected["micro_batches_per_step"] = [extrapolation.short, extrapolation.long]
    for name, value in expected.items():
        if proof.get(name) != value:
            return _mismatch(name, proof.get(name), value)
    return _samples_fault(spec, proof.get("samples_per_data_rank"))


def expected_proof(spec: TrialSpec) -> dict[str, Any]:
    """The proof that a trial has to give, by the contract's names under outcome.proof.

    Logs of third-party trainers do not show the optimizer's share.
    """
    layout, parameters = spec.layout, spec.model.parameters
    trained = ("optimizer_parameters_sum", *(() if spec.model.trainable is None else ("trainable_parameters",)))
    own = dict.fromkeys(trained, spec.model.trainable_parameters) if spec.trainer["kind"] == PARLAY else {}
    of_all = {
        "world_size": spec.num_gpus,
        **{name: getattr(layout, name) for name in DEGREES.values()},
        **{name: degree for name in OTHER_DEGREES.values() if (degree := getattr(layout, name)) > 1},
        **{name: getattr(layout, name) for name in EXPERT_GROUPS if spec.model.num_experts is not None},
        "parameters": parameters,
        "local_parameters_sum": parameters,
        "micro_batches_per_step": layout.grad_accum_steps,
    }
    return of_all | own


def _log_proof_fault(proof: Mapping[str, Any], expected: Mapping[str, Any]) -> str | None:
    """Compare with the spec only what a third-party trainer's log shows."""
    for name, value in expected.items():
        if name in proof and proof[name] != value:
            return _mismatch(name, proof[name], value)
    return None


def _vocabulary_fault(proof: Mapping[str, Any], expected: int) -> str | None:
    found = proof.get("vocab_size", expected)
    if found == expected:
        return None
    return (
        f"the trainer's model has a vocabulary of {found} tokens, padding included; model.vocab_size is {expected}:"
        f" name a tokenizer of at most {expected} tokens, or set model.vocab_size to at least the tokenizer's size"
    )


def _observed_step_fault(spec: TrialSpec, seen: ObservedStep | None) -> str | None:
    """Compare with the spec what an observer saw of a third-party trainer's second step."""
    fault = None if seen is None else observed_step_fault(spec, seen)
    fix = "give the script the layout's and the model's values by placeholders, or correct the search file"
    return None if fault is None else f"the script trains something else: {fault}; {fix}"


def _mismatch(name: str, found: Any, expected: Any) -> str:
    return f"the layout did not take effect: {name} is {found!r}, the spec says {expected}"


def _samples_fault(spec: TrialSpec, samples: Any) -> str | None:
    """Check that every data-parallel rank counts the same whole number of steps (of micro-batches where steps may be
    short)."""
    layout = spec.layout
    per_step = layout.micro_batch_size * (layout.grad_accum_steps if extrapolation_of(spec) is None else 1)
    is_whole = samples is not None and len(samples) == layout.data_parallel
    if not is_whole or len(set(samples)) != 1 or samples[0] <= 0 or samples[0] % per_step:
        expected = f"{layout.data_parallel} times a multiple of {per_step}"
        return f"samples per data-parallel rank are {samples!r}, not {expected}"
    return None


def _clock_fault(outcome: Outcome) -> str | None:
    if outcome.started_at is None or outcome.ended_at is None:
        return None
    try:
        seconds = utc_seconds(outcome.ended_at) - utc_seconds(outcome.started_at)
    except (TypeError, ValueError):
        return f"{outcome.started_at!r} to {outcome.ended_at!r} are not UTC times"
    return f"the clock went back by {-seconds:.0f} s during the trial" if seconds < 0 else None
