"""Data model of a trial: identity, states, reasons, the spec that a trial program reads and the outcome it writes.

Standard library only: the trial program imports this on a compute node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from search_spaces.decoding import T, decode
from search_spaces.engines import PARLAY, is_emulated
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.json_types import (
    FieldTypes,
    is_flag,
    is_integer,
    is_list_of,
    is_number,
    is_object,
    is_text,
    or_null,
    require_types,
)
from trials.measure_rules import MeasureRules
from trials.outcome_types import MeasuredMetrics, ThroughputBound, measured_of, ranks_fault

SPEC_SCHEMA = "parlay.spec/1"
OUTCOME_SCHEMA = "parlay.outcome/1"


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


@dataclass(frozen=True)
class Rendezvous:
    """Way in which the ranks find each other: `file` on one machine, `tcp` between nodes.

    With `tcp` rank 0 takes a free port of 20000-29999 on its own node and publishes host and port in the attempt's
    folder, so that nothing has to be known before the nodes are.
    """

    kind: str = "file"


@dataclass(frozen=True)
class TrialSpec:
    """spec.json: the whole input of a trial program. Immutable; written once, before the launch."""

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
    trainer: Mapping[str, Any] = field(default_factory=lambda: {"kind": PARLAY})
    """The `trainer` section of search.json."""
    seed: int = 1234
    rendezvous: Rendezvous = Rendezvous()
    """Rendezvous of the ranks."""

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

    def to_json(self) -> dict[str, Any]:
        data = asdict(self) | {"kind": self.kind.value, "trainer": dict(self.trainer)}
        return {"schema": SPEC_SCHEMA} | data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrialSpec:
        """The inverse of `to_json`; ValueError for other data or a trainer without a kind, InputError for a bad layout
        or model."""
        spec = decode_as(cls, SPEC_SCHEMA, data)
        if not isinstance(spec.trainer.get("kind"), str):
            raise ValueError(f"its trainer is {dict(spec.trainer)!r:.80}, not an object with a kind")
        return spec


class OutcomeStatus(LowerStrEnum):
    MEASURED = "measured"
    """Has `measured`."""
    FAILED = "failed"
    """Has `reason`."""


@dataclass(frozen=True)
class Outcome:
    """outcome.r0.json: the trial program's report, renamed into place once complete.

    `measured` is the measurement (of a pruned trial so far, of one out of time an upper bound; an empty object in JSON
    where there is none), `proof` the counts that show that the layout took effect, `excerpt` the first real traceback,
    `phase` the phase at the end (`start`, `build`, `warmup`, `measured`), `rank` the reporting rank.
    """

    search_id: str
    trial: str
    attempt: str
    nonce: str
    status: OutcomeStatus
    restart: int = 0
    """Number of the run: SLURM_RESTART_COUNT or 0."""
    reason: FailureReason | None = None
    phase: str | None = None
    """Phase of the failure: `start`, `build`, `warmup` or `measured`."""
    rank: int | None = None
    """Rank that failed first."""
    excerpt: str | None = None
    flags: tuple[Flag, ...] = ()
    measured: MeasuredMetrics | ThroughputBound | None = None
    proof: Mapping[str, Any] = field(default_factory=dict)
    """`LayoutProof`."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """`Fingerprint`."""
    slowest_rank: Mapping[str, Any] = field(default_factory=dict)
    """`SlowestRank`; an empty object where ranks cannot be compared."""
    fullest_rank: Mapping[str, Any] = field(default_factory=dict)
    """`FullestRank`; an empty object where it is unknown."""
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

    def to_json(self) -> dict[str, Any]:
        measured = {} if self.measured is None else self.measured.to_json()
        return {"schema": OUTCOME_SCHEMA} | asdict(self) | {"measured": measured}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """The inverse of `to_json`. ValueError for another schema, an unknown value, or a wrong set of fields or
        types."""
        require_schema(data, OUTCOME_SCHEMA)
        require_types(data, _OUTCOME_TYPES, "the outcome's")
        values = {name: value for name, value in data.items() if name != "schema"}
        values["status"] = OutcomeStatus(data.get("status"))
        values["reason"] = None if data.get("reason") is None else FailureReason(data["reason"])
        values["flags"] = tuple(map(Flag, data.get("flags", ())))
        values["step_times_s"] = tuple(data.get("step_times_s", ()))
        values["measured"] = measured_of(data.get("measured", {}))
        if (fault := ranks_fault(data)) is not None:
            raise ValueError(fault)
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"an outcome with missing or unknown fields: {error}") from error


_OUTCOME_TYPES: FieldTypes = {
    "text": (("search_id", "trial", "attempt", "nonce"), is_text),
    "text or null": (("phase", "excerpt", "started_at", "ended_at"), or_null(is_text)),
    "a whole number": (("restart",), is_integer),
    "a whole number or null": (("rank",), or_null(is_integer)),
    "true, false or null": (("started_warm",), or_null(is_flag)),
    "a list of texts": (("flags",), is_list_of(is_text)),
    "a list of numbers": (("step_times_s",), is_list_of(is_number)),
    "an object": (("measured", "proof", "fingerprint", "slowest_rank", "fullest_rank"), is_object),
}


@dataclass(frozen=True)
class Attempt:
    """One launch of a trial, as the ledger and the driver know it. Times are UTC seconds since the epoch.

    The launcher ends it `time_limit_s` seconds after its start; its nodes may be held for `reserved_s` at most (None:
    the limit itself). `exclude` are nodes to avoid. `restart` counts requeues of its job by others;
    `earlier_node_hours` is what its runs before that used. `billed_hours` are Slurm's billing hours of its own job,
    None where Slurm does not tell them; a step is billed with its pilot. `leaves` are the leaf switch, or the block, of
    each of its nodes, () where they are unknown. `waits_for` is why an attempt in flight makes no progress, where that
    is more than its place in the queue: the launcher's text, or `suspended`.
    """

    trial: str
    attempt: str
    nonce: str
    num_nodes: int
    time_limit_s: float
    reserved_s: float | None = None
    exclude: tuple[str, ...] = ()
    state: TrialState = TrialState.SUBMITTED
    job_id: str | None = None
    nodes: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    unknown_since: float | None = None
    waits_for: str | None = None
    restart: int = 0
    earlier_node_hours: float = 0.0
    node_hours: float | None = None
    billed_hours: float | None = None
    reason: FailureReason | None = None
    outcome: Outcome | None = None
    excerpt: str | None = None

    @property
    def is_step(self) -> bool:
        """True if it is a step of a Slurm job that it shares with others."""
        return "." in (self.job_id or "")

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
        """Upper bound of the cost of an attempt in flight, runs before a requeue included."""
        return self.earlier_node_hours + self.num_nodes * self.longest_s / 3600


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
    proposed_at: float | None = None

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


def require_schema(data: Mapping[str, Any], schema: str) -> None:
    """ValueError unless `data` is of this kind and version."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{data!r:.80} is not an object")
    if data.get("schema") != schema:
        raise ValueError(f"schema is {str(data.get('schema'))!r}, this Parlay reads {schema}")


def decode_as(kind: type[T], schema: str, data: Mapping[str, Any]) -> T:
    """The dataclass whose fields stand beside this schema. ValueError for anything else."""
    require_schema(data, schema)
    return decode(kind, {name: value for name, value in data.items() if name != "schema"})


def utc_text(epoch_s: float | None = None) -> str:
    """UTC RFC 3339 with `Z`, microseconds kept; now when no time is given."""
    moment = datetime.now(timezone.utc) if epoch_s is None else datetime.fromtimestamp(epoch_s, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def utc_seconds(text: Any) -> float:
    """Seconds since the epoch of `utc_text`'s form; ValueError for anything else."""
    if not isinstance(text, str):
        raise ValueError(f"{text!r:.80} is not a time")
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc).timestamp()
