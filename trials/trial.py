"""Data model of a trial: identity, states, reasons, the spec that a trial program reads and the outcome it writes.

Standard library only: the trial program imports this on a compute node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum
from typing import Annotated, Any

from search_spaces.decoding import Amount, Bound, Count, JsonObject, WrittenAs
from search_spaces.engines import PARLAY, is_emulated
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.measure_rules import MeasureRules
from trials.outcome_types import (
    Fingerprint,
    FullestRank,
    LayoutProof,
    MeasuredMetrics,
    SlowestRank,
    ThroughputBound,
)


def utc_text(epoch_s: float | None = None) -> str:
    """UTC RFC 3339 with `Z`, microseconds kept; now when no time is given. ValueError beyond the year 9999."""
    try:
        moment = datetime.now(timezone.utc) if epoch_s is None else datetime.fromtimestamp(epoch_s, timezone.utc)
    except (OverflowError, OSError) as error:
        raise ValueError(f"{epoch_s} is not a time") from error
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def utc_seconds(text: Any) -> float:
    """Seconds since the epoch of `utc_text`'s form; ValueError for anything else."""
    if not isinstance(text, str):
        raise ValueError(f"{text!r:.80} is not a time")
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc).timestamp()


UtcSeconds = Annotated[float, WrittenAs(utc_text, utc_seconds)]
"""UTC seconds since the epoch; RFC 3339 text in JSON."""


class LowerStrEnum(str, Enum):
    """Enum whose members are their own lower-case value in text, JSON and SQL, on Python 3.10 and later alike."""

    __str__ = str.__str__


class TrialState(LowerStrEnum):
    """State of a trial or an attempt. Each ends once, in one of the last three."""

    PROPOSED = "proposed"
    """Recorded; nothing is launched yet."""
    SUBMITTED = "submitted"
    """The intent to launch is recorded; the job id may be unknown."""
    QUEUED = "queued"
    """Waiting for nodes."""
    RUNNING = "running"
    """Its ranks have started."""
    MEASURED = "measured"
    """Ended with a valid measurement."""
    FAILED = "failed"
    """Ended with a `FailureReason`."""
    CANCELLED = "cancelled"
    """Ended on request, with a `FailureReason`."""

    @property
    def is_ended(self) -> bool:
        return self in (TrialState.MEASURED, TrialState.FAILED, TrialState.CANCELLED)


class FailureReason(LowerStrEnum):
    """Reason why a trial or an attempt ended without a value (docs/lifecycle.md).

    trials/failure_policy.py has the consequences and words of each.
    """

    INVALID_LAYOUT = "invalid_layout"
    GPU_OOM = "gpu_oom"
    HOST_OOM = "host_oom"
    PRUNED = "pruned"
    TIME_LIMIT = "time_limit"
    HANG = "hang"
    NODE_FAILURE = "node_failure"
    PREEMPTED = "preempted"
    BOOT_FAILURE = "boot_failure"
    LAUNCH_FAILURE = "launch_failure"
    GPU_MEMORY_IN_USE = "gpu_memory_in_use"
    SCRIPT_ERROR = "script_error"
    SETTING_FAILURE = "setting_failure"
    STEPS_UNREAD = "steps_unread"
    RESULT_INVALID = "result_invalid"
    ENERGY_UNKNOWN = "energy_unknown"
    CANCELLED_BY_USER = "cancelled_by_user"
    CANCELLED_BY_SEARCH = "cancelled_by_search"
    INTERRUPTED = "interrupted"
    JOB_LOST = "job_lost"


class Flag(LowerStrEnum):
    """Caveat of a measurement; dashboards/trial_text.py has the texts."""

    EXTRAPOLATED = "extrapolated"
    TIME_LIMIT = "time_limit"
    WIDE_INTERVAL = "wide_interval"
    FAILED_AFTER_RESULT = "failed_after_result"
    SUSPECT_NODE = "suspect_node"
    SHARED_NODE = "shared_node"
    STRAGGLER = "straggler"
    FINGERPRINT_CHANGED = "fingerprint_changed"
    HOST_MEMORY_GROWTH = "host_memory_growth"
    DEVICE_MEMORY_GROWTH = "device_memory_growth"
    PROFILE_FAILED = "profile_failed"
    UNPROVEN = "unproven"
    THROUGHPUT_MISMATCH = "throughput_mismatch"
    EMULATED_DEVICE = "emulated_device"


class TrialKind(LowerStrEnum):
    SEARCH = "search"
    """A layout that the sampler chose, or the baseline."""
    REPEAT = "repeat"
    """A layout measured again: a finalist, the baseline, or after a run on a suspect node."""
    REPLAY = "replay"
    """A run of a recipe's layout."""
    CHECK = "check"
    """A diagnostic program in place of a training: the search's fabric check, whose layout has the ranks. It counts as
    no trial of the search."""


def _has_kind(trainer: Mapping[str, Any]) -> bool:
    return isinstance(trainer.get("kind"), str)


@dataclass(frozen=True)
class TrialSpec(JsonObject):
    """spec.json: the whole input of a trial program. Immutable; written once, before the launch."""

    SCHEMA = "parlay.spec/1"

    search_id: str
    trial: str
    attempt: str
    nonce: str
    """32 hexadecimal digits, repeated in the outcome."""
    kind: TrialKind
    layout: Layout
    model: ModelShape
    global_batch_size: int
    num_gpus: int
    """World size."""
    gpus_per_node: int
    """Ranks of a node; on a CPU a GPU is a rank."""
    accelerator: str
    measure: MeasureRules
    """The trial's own time limit is `measure.time_limit_s`, counted from its start on its own clock."""
    trainer: Annotated[Mapping[str, Any], Bound("an object with a kind", _has_kind)] = field(
        default_factory=lambda: {"kind": PARLAY}
    )
    """The `trainer` section of search.json."""
    seed: int = 1234

    @property
    def attempt_key(self) -> str:
        """`search_id.t0001.a1`, which is also the job's name."""
        return f"{self.search_id}.{self.trial}.{self.attempt}"

    @property
    def num_nodes(self) -> int:
        return -(-self.num_gpus // self.gpus_per_node)

    @property
    def is_emulated(self) -> bool:
        """True if its ranks only emulate the device that its engine is written for."""
        return is_emulated(self.layout.engine, self.accelerator)

    @property
    def reads_tokens(self) -> bool:
        """True if it trains on a dataset, `trainer["data"]`, rather than on synthetic sequences."""
        return self.trainer.get("data", {}).get("kind") == "tokens"


class OutcomeStatus(LowerStrEnum):
    MEASURED = "measured"
    """Has `measured`."""
    FAILED = "failed"
    """Has `reason`."""


@dataclass(frozen=True)
class Outcome(JsonObject):
    """outcome.r0.json: the trial program's report, renamed into place once complete."""

    SCHEMA = "parlay.outcome/1"

    search_id: str
    trial: str
    attempt: str
    nonce: str
    status: OutcomeStatus
    restart: Count = 0
    """Number of the run: SLURM_RESTART_COUNT or 0."""
    reason: FailureReason | None = None
    phase: str | None = None
    """Phase of the failure: `start`, `build`, `warmup` or `measured`."""
    rank: Count | None = None
    """Rank that failed first; of a measurement the reporting one."""
    excerpt: str | None = None
    """First real traceback."""
    flags: tuple[Flag, ...] = ()
    measured: ThroughputBound | MeasuredMetrics | None = None
    """Measurement, of a pruned trial so far; an upper bound of one out of time."""
    fabric: Mapping[str, Any] | None = None
    """Times of a fabric check, as `FabricTimes` has them."""
    proof: LayoutProof = field(default_factory=lambda: LayoutProof())
    """Counts that show that the layout took effect."""
    fingerprint: Fingerprint = field(default_factory=lambda: Fingerprint())
    slowest_rank: SlowestRank | None = None
    """None where ranks cannot be compared."""
    fullest_rank: FullestRank | None = None
    step_times_s: tuple[float, ...] = ()
    """Times of all steps, those of warm-up first."""
    started_at: str | None = None
    ended_at: str | None = None
    started_warm: bool | None = None
    """True if the reporting rank was forked after its imports, false if it was started plain."""

    @property
    def metrics(self) -> MeasuredMetrics | None:
        """The measurement, complete or until the trial was pruned."""
        return self.measured if isinstance(self.measured, MeasuredMetrics) else None


@dataclass(frozen=True)
class Attempt:
    """One launch of a trial, as the ledger and the driver know it. Times are UTC seconds since the epoch.

    The launcher ends it `time_limit_s` seconds after its start; its nodes may be held for `reserved_s` at most (None:
    the limit itself). `is_step`: it is a step of a pilot, which is reserved and charged in its place; its own
    `node_hours`, the time on its own nodes, are for reports only. `exclude` are nodes to avoid. `restart` counts
    requeues of its job by others;
    `earlier_node_hours` is what its runs before that used. `billed_hours` are Slurm's billing hours of its own job,
    None where Slurm does not tell them; a step is billed with its pilot. `leaves` are the leaf switch, or the block, of
    each of its nodes, () where they are unknown. `waits_for` is why an attempt in flight makes no progress, where that
    is more than its place in the queue: the launcher's text, or `suspended`.
    """

    trial: str
    attempt: str
    nonce: str
    num_nodes: Count
    time_limit_s: Amount
    reserved_s: float | None = None
    is_step: bool = False
    exclude: tuple[str, ...] = ()
    state: TrialState = TrialState.SUBMITTED
    job_id: str | None = None
    nodes: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    submitted_at: UtcSeconds | None = None
    started_at: UtcSeconds | None = None
    ended_at: UtcSeconds | None = None
    unknown_since: UtcSeconds | None = None
    waits_for: str | None = None
    restart: Count = 0
    earlier_node_hours: Amount = 0.0
    node_hours: float | None = None
    billed_hours: float | None = None
    reason: FailureReason | None = None
    outcome: Outcome | None = None
    excerpt: str | None = None

    @property
    def longest_s(self) -> float:
        """Longest time in seconds for which one run of it may hold its nodes."""
        return self.time_limit_s if self.reserved_s is None else self.reserved_s

    @property
    def queue_wait_s(self) -> float | None:
        """Seconds in the queue; None before its start.

        Slurm reports the start in whole seconds by its own clock, so it may appear to precede the submission.
        """
        if self.started_at is None or self.submitted_at is None:
            return None
        return max(0.0, self.started_at - self.submitted_at)

    @property
    def reserved_node_hours(self) -> float:
        """Upper bound of what an attempt in flight will be charged, runs before a requeue included; 0 of a step."""
        return 0.0 if self.is_step else self.earlier_node_hours + self.num_nodes * self.longest_s / 3600


@dataclass(frozen=True)
class Trial:
    """One layout being measured, with its attempts in order; a retry is a new attempt."""

    trial: str
    layout: Layout
    kind: TrialKind = TrialKind.SEARCH
    state: TrialState = TrialState.PROPOSED
    reason: FailureReason | None = None
    prediction: Mapping[str, Any] | None = None
    attempts: tuple[Attempt, ...] = ()
    proposed_at: UtcSeconds | None = None

    @property
    def layout_key(self) -> str:
        return self.layout.key

    @property
    def last_attempt(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def ended_at(self) -> float | None:
        """End of an ended trial: that of its last attempt, or its proposal where nothing was launched."""
        last = self.last_attempt
        return (last.ended_at if last else None) or self.proposed_at

    @property
    def measured(self) -> MeasuredMetrics | None:
        """The measurement of a measured trial, else None."""
        last = self.last_attempt
        if self.state is not TrialState.MEASURED or last is None or last.outcome is None:
            return None
        return last.outcome.metrics

    @property
    def flags(self) -> tuple[Flag, ...]:
        last = self.last_attempt
        return last.outcome.flags if last and last.outcome else ()

    def with_attempt(self, attempt: Attempt) -> Trial:
        """The trial with this attempt added, or replacing the one of its name."""
        kept = tuple(a for a in self.attempts if a.attempt != attempt.attempt)
        return replace(self, attempts=tuple(sorted((*kept, attempt), key=lambda a: int(a.attempt[1:]))))
