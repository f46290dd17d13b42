"""Simulated launcher: replays a measured table on a simulated clock, so that a search takes milliseconds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.launchers.base import Launcher, LaunchRefused, LaunchRequest
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.tables.benchmark_problem import BenchmarkProblem, problem_for
from search_spaces.tables.measured_table import Observation
from trials.attempt_result import LaunchStatus, Liveness, expected_proof
from trials.files.folders import AttemptFolder, read_as, write_json
from trials.measurement.metrics import throughput_fields
from trials.outcome_types import MeasuredMetrics
from trials.trial import (
    FailureReason,
    Flag,
    Outcome,
    OutcomeStatus,
    TrialSpec,
    utc_seconds,
    utc_text,
)

SIMULATED_SCHEMA = "parlay.simulated/1"

UNREPEATED_SPREAD = 0.01
"""Relative half-width of the interval around a step time that was measured once: an assumption."""


@dataclass
class _SimulatedAttempt:
    """An attempt on the simulated clock, with all its times known from the start (UTC seconds since the epoch)."""

    request: LaunchRequest
    row: Observation
    started_at: float
    ended_at: float
    timed_out: bool
    settled: bool = False
    cancelled: bool = False


class SimulatedLauncher(Launcher):
    """Starts every attempt `queue_wait_s` after its launch (or as its row says) and ends it as its row did.

    Any number of attempts run at once, and they outlive the driver. Time advances only in `wait`, to the next start or
    end. It begins at `now` (UTC seconds since the epoch; default: real time), which for a resumed search is its last
    time.
    """

    name = "simulated"

    def __init__(self, observations: Sequence[Observation], queue_wait_s: float = 0.0, now: float | None = None):
        self._observations = observations
        self._queue_wait_s = queue_wait_s
        self._now = time.time() if now is None else now
        self._attempts: dict[str, _SimulatedAttempt] = {}
        self._problems: dict[tuple[Any, ...], BenchmarkProblem] = {}

    def launch(self, request: LaunchRequest) -> str | None:
        """LaunchRefused when the table has no row of the layout."""
        request.require_taken()
        key = request.spec.attempt_key
        if request.folder.ranks.exists():
            raise ValueError(f"{key} was launched before")
        self._attempts[key] = self._simulate(request, launched_at=self._now)
        launched = {"schema": SIMULATED_SCHEMA, **asdict(_SimulatedLaunch(key, utc_text(self._now)))}
        write_json(request.folder.ranks, launched)
        return key

    def adopt(self, requests: Mapping[str, LaunchRequest]) -> dict[str, str]:
        accepted = {}
        for key, request in requests.items():
            launched_at = _launched_at(request.folder)
            if launched_at is not None:
                self._now = max(self._now, launched_at)
                self._attempts[key] = self._simulate(request, launched_at)
                accepted[key] = key
        self._settle()
        return accepted

    def _simulate(self, request: LaunchRequest, launched_at: float) -> _SimulatedAttempt:
        row = self._row(request.spec)
        waited_s = self._queue_wait_s if row.queue_wait_s is None else row.queue_wait_s
        started_at = launched_at + waited_s
        return _SimulatedAttempt(
            request=request,
            row=row,
            started_at=started_at,
            ended_at=started_at + min(row.duration_s, request.time_limit_s),
            timed_out=row.duration_s > request.time_limit_s,
        )

    def _row(self, spec: TrialSpec) -> Observation:
        problem = self._problem(spec)
        row = problem.result(spec.layout)
        if row is None:
            raise LaunchRefused(
                f"the table has no row of {spec.layout.key}: set `space.candidates` to the same table to restrict the"
                f" search to its {len(problem.results)} layouts"
            )
        return row

    def _problem(self, spec: TrialSpec) -> BenchmarkProblem:
        cluster = Cluster(ACCELERATORS[spec.accelerator], min(spec.gpus_per_node, spec.num_gpus), spec.num_nodes)
        workload = (spec.model, cluster, spec.global_batch_size)
        if workload not in self._problems:
            try:
                self._problems[workload] = problem_for(self._observations, *workload)
            except InputError as error:
                raise LaunchRefused(str(error)) from error
        return self._problems[workload]

    def poll(self, keys: Iterable[str]) -> dict[str, LaunchStatus]:
        return {key: self._status(key) for key in keys}

    def _status(self, key: str) -> LaunchStatus:
        attempt = self._attempts.get(key)
        if attempt is None:
            return LaunchStatus(Liveness.UNKNOWN)
        started = attempt.started_at <= self._now
        started_at = attempt.started_at if started else None
        if not attempt.settled:
            return LaunchStatus(Liveness.ALIVE, started, started_at=started_at)
        reason = detail = None
        if attempt.cancelled:
            reason, detail = FailureReason.CANCELLED_BY_SEARCH, "cancelled"
        elif attempt.timed_out:
            reason, detail = FailureReason.TIME_LIMIT, "the time limit was reached"
        failed = reason is not None or attempt.row.outcome != "ok"
        return LaunchStatus(Liveness.ENDED, started, failed, reason, detail, (), started_at, attempt.ended_at)

    def cancel(self, keys: Iterable[str]) -> set[str]:
        for attempt in (self._attempts[key] for key in keys if key in self._attempts):
            if not attempt.settled:
                attempt.settled = attempt.cancelled = True
                attempt.ended_at = self._now
        return set()

    def now(self) -> float:
        return self._now

    def wait(self, seconds: float) -> None:
        """Advance to the next start or end, or by `seconds` when nothing is in flight."""
        in_flight = [attempt for attempt in self._attempts.values() if not attempt.settled]
        moments = [moment for attempt in in_flight for moment in (attempt.started_at, attempt.ended_at)]
        self._now = min((moment for moment in moments if moment > self._now), default=self._now + seconds)
        self._settle()

    def close(self) -> None:
        """Nothing to free."""

    def _settle(self) -> None:
        """Write the outcome of every attempt that has ended."""
        for attempt in self._attempts.values():
            if not attempt.settled and attempt.ended_at <= self._now:
                if not attempt.timed_out:
                    outcome = self._outcome(attempt)
                    write_json(attempt.request.folder.outcome(), outcome.to_json())
                attempt.settled = True

    def _outcome(self, attempt: _SimulatedAttempt) -> Outcome:
        spec, row = attempt.request.spec, attempt.row
        said = Outcome(
            search_id=spec.search_id,
            trial=spec.trial,
            attempt=spec.attempt,
            nonce=spec.nonce,
            status=OutcomeStatus.FAILED,
            fingerprint={"recorded": row.source},
            started_at=utc_text(attempt.started_at),
            ended_at=utc_text(attempt.ended_at),
        )
        if row.step_time_s is None:
            return replace(said, reason=_reason(row), excerpt=_excerpt(row))
        metrics = _metrics(spec, row, row.step_time_s, self._interval_s(row, row.step_time_s))
        flags = (Flag.EMULATED_DEVICE,) if spec.is_emulated else ()
        return replace(said, status=OutcomeStatus.MEASURED, measured=metrics, proof=_proof(spec), flags=flags)

    def _interval_s(self, answer: Observation, step_time_s: float) -> tuple[float, float]:
        """Return the range of step times over the rows of this layout, which repeat one measurement."""
        alike = [o.step_time_s for o in self._observations if o.step_time_s is not None and _same(o, answer)]
        if len(alike) < 2:
            return step_time_s * (1 - UNREPEATED_SPREAD), step_time_s * (1 + UNREPEATED_SPREAD)
        return min(alike), max(alike)


def _launched_at(folder: AttemptFolder) -> float | None:
    launch = read_as(_SimulatedLaunch, folder.ranks, SIMULATED_SCHEMA)
    return None if launch is None else utc_seconds(launch.launched_at)


@dataclass(frozen=True)
class _SimulatedLaunch:
    """ranks.json of a simulated attempt."""

    attempt_key: str
    launched_at: str


def _same(a: Observation, b: Observation) -> bool:
    workload_a, workload_b = ((o.model, o.cluster, o.global_batch_size, o.layout) for o in (a, b))
    return workload_a == workload_b


def _reason(row: Observation) -> FailureReason:
    if row.outcome == "oom":
        return FailureReason.GPU_OOM
    try:
        return FailureReason(row.failure_reason or FailureReason.SCRIPT_ERROR)
    except ValueError:
        return FailureReason.SCRIPT_ERROR


def _excerpt(row: Observation) -> str:
    """Name the layout, so that failures of unknown cause are not taken for one broken script."""
    cause = row.failure_reason or ("out of memory" if row.outcome == "oom" else "failed, cause unknown")
    return f"{row.source}: {row.layout.key}: {cause}"


def _metrics(spec: TrialSpec, row: Observation, step_time_s: float, interval_s: tuple[float, float]) -> MeasuredMetrics:
    """Return the metrics as far as a table has them."""
    return MeasuredMetrics(
        measured_steps=spec.measure.min_steps,
        step_time_p95_s=row.step_time_p95_s,
        peak_memory_gib=row.peak_memory_gib,
        **throughput_fields(spec, spec.global_batch_size, step_time_s, interval_s),
    )


def _proof(spec: TrialSpec) -> dict[str, Any]:
    layout = spec.layout
    samples = spec.measure.min_steps * layout.micro_batch_size * layout.grad_accum_steps
    return expected_proof(spec) | {"samples_per_data_rank": [samples] * layout.data_parallel}
