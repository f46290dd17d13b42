"""Launcher with a simulated clock and scripted attempts, for searches, replays and single jobs."""

from __future__ import annotations

import math
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.launchers.base import Launcher, LaunchPostponed, LaunchRequest
from search_spaces.errors import ExternalError
from tests.orchestrator.tabled_trial import measured_outcome
from trials.attempt_result import LaunchStatus, Liveness
from trials.diagnostics.fabric import Exchange, ExchangeTime, FabricTimes, exchanges_of, shapes_of
from trials.files.folders import write_json
from trials.trial import FailureReason, Outcome, OutcomeStatus, TrialKind, TrialSpec, utc_text

NODE = socket.gethostname()
FINGERPRINT = {"torch": "2.14.0", "python": "3.11.2", "kernel": "1e3", "host": "node01", "executable": sys.executable}


@dataclass(frozen=True)
class Script:
    """Script of one attempt: it waits `waits_s`, runs `duration_s`, and leaves an outcome or ends as `reason` says.

    `look`, given the request and how many looks this makes, says what is seen of it; where it says None, the rest does.
    """

    waits_s: float = 0.0
    duration_s: float | None = 60.0
    tokens_per_sec: float | None = 1000.0
    reason: FailureReason | None = None
    excerpt: str = "it broke"
    leaves_outcome: bool = True
    flags: tuple[str, ...] = ()
    peak_memory_gib: float | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    look: Callable[[LaunchRequest, int], LaunchStatus | None] = lambda request, number: None

    @property
    def lasts_s(self) -> float:
        return math.inf if self.duration_s is None else self.duration_s


@dataclass
class Job:
    request: LaunchRequest
    script: Script
    started_at: float
    node: str
    cancelled: bool = False
    seen_alive: bool = False
    looks: int = 0


@dataclass
class ScriptedLauncher(Launcher):
    """`script` decides how each attempt goes; jobs outlive the driver, as Slurm's do.

    `meets` is what the next launches meet, one each: no free slot (None), or an exception.
    An attempt runs on the first of the `nodes` that it does not keep away from, where there is one. `on_cancel` says
    which of these keys could not be reached.
    """

    script: Callable[[TrialSpec], Script] = lambda spec: Script()
    nodes: tuple[str, ...] = (NODE,)
    name = "scripted"
    meets: list[Exception | None] = field(default_factory=list)
    on_wait: Callable[[], object] = lambda: None
    on_cancel: Callable[[set[str]], set[str]] = lambda keys: set()
    jobs: dict[str, Job] = field(default_factory=dict)
    launched: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    clock: float = 1_000_000.0
    most_in_flight: int = 0

    @property
    def requests(self) -> list[LaunchRequest]:
        return [job.request for job in self.jobs.values()]

    def launch(self, request: LaunchRequest) -> str | None:
        if self.meets:
            if (met := self.meets.pop(0)) is None:
                return None
            raise met
        key = request.spec.attempt_key
        assert key not in self.jobs, f"{key} was launched twice"
        script = self.script(request.spec)
        node = next((node for node in self.nodes if node not in request.exclude), self.nodes[0])
        self.jobs[key] = Job(request, script, self.clock + script.waits_s, node)
        self.launched.append(key)
        self.most_in_flight = max(self.most_in_flight, sum(not self._is_over(job) for job in self.jobs.values()))
        return f"job-{len(self.launched)}"

    def adopt(self, requests: Mapping[str, LaunchRequest]) -> dict[str, str]:
        return {key: f"job-{self.launched.index(key) + 1}" for key in requests if key in self.jobs}

    def poll(self, keys: Iterable[str]) -> dict[str, LaunchStatus]:
        return {key: self._status(key) for key in keys}

    def cancel(self, keys: Iterable[str]) -> set[str]:
        self.cancelled += keys
        for key in self.jobs.keys() & set(keys):
            self.jobs[key].cancelled = True
        return self.on_cancel(set(keys))

    def now(self) -> float:
        return self.clock

    def wait(self, seconds: float) -> None:
        running = [job for job in self.jobs.values() if not self._is_over(job)]
        ends = [self._next_change(job) for job in running if job.seen_alive]
        self.clock = max(self.clock + seconds, min(ends, default=0.0) if len(ends) == len(running) else 0.0)
        self.on_wait()

    def close(self) -> None:
        """Nothing to close."""

    def _next_change(self, job: Job) -> float:
        if self.clock < job.started_at:
            return min(job.started_at, self.clock + 600.0)  # a driver looks now and then at what only waits
        return min(job.started_at + job.script.lasts_s, self.clock + 600.0)

    def _is_over(self, job: Job) -> bool:
        return job.cancelled or self.clock >= job.started_at + job.script.lasts_s

    def _status(self, key: str) -> LaunchStatus:
        job = self.jobs.get(key)
        if job is None:
            return LaunchStatus(Liveness.UNKNOWN)
        job.looks += 1
        if (seen := job.script.look(job.request, job.looks)) is not None:
            return seen
        if not self._is_over(job):
            job.seen_alive = True
            if self.clock < job.started_at:
                return LaunchStatus(Liveness.ALIVE, detail="Priority")
            return LaunchStatus(Liveness.ALIVE, started=True, started_at=job.started_at, nodes=(job.node,))
        if job.script.leaves_outcome and not job.cancelled:
            write_json(job.request.folder.outcome(), self._outcome(job).to_json())
        launcher_knows = job.script.reason if not job.script.leaves_outcome else None
        detail = job.script.excerpt if launcher_knows else None
        ended_at = min(self.clock, job.started_at + job.script.lasts_s)
        return LaunchStatus(Liveness.ENDED, True, False, launcher_knows, detail, (job.node,), job.started_at, ended_at)

    def _outcome(self, job: Job) -> Outcome:
        return replace(outcome_of(job.request.spec, job.script), started_at=utc_text(job.started_at))


def outcome_of(spec: TrialSpec, script: Script, restart: int = 0) -> Outcome:
    """What the ranks of an attempt leave that goes by this script."""
    ids = (spec.search_id, spec.trial, spec.attempt, spec.nonce)
    if spec.kind is TrialKind.CHECK and script.reason is None:
        return Outcome(*ids, OutcomeStatus.MEASURED, restart, fabric=fabric_times(spec).to_json())
    if script.tokens_per_sec is not None and script.reason in (None, FailureReason.PRUNED):
        outcome = measured_outcome(spec, script.tokens_per_sec, peak_memory_gib=script.peak_memory_gib)
        outcome = replace(outcome, flags=script.flags, restart=restart, fingerprint=script.fingerprint)
        if script.reason is None:
            return outcome
        return replace(outcome, status=OutcomeStatus.FAILED, reason=script.reason, excerpt=script.excerpt)
    reason = script.reason or FailureReason.SCRIPT_ERROR
    return Outcome(*ids, OutcomeStatus.FAILED, restart, reason=reason, excerpt=script.excerpt)


def fabric_times(spec: TrialSpec) -> FabricTimes:
    """Times of a fabric check whose groups are all alike."""

    def time_of(exchange: Exchange) -> ExchangeTime:
        num_bytes = exchange.small_bytes if exchange.is_small else 2**20
        return ExchangeTime(exchange, num_bytes, (0.5,) * len(exchange.groups(spec.gpus_per_node, spec.num_gpus)))

    exchanges = exchanges_of(shapes_of(spec.trainer), spec.gpus_per_node, spec.num_nodes)
    nodes = tuple(f"n{1 + rank // spec.gpus_per_node}" for rank in range(spec.num_gpus))
    return FabricTimes(nodes, tuple(map(time_of, exchanges)))


def in_turn(
    *endings: float | FailureReason | BaseException, fingerprint: Mapping[str, Any] = FINGERPRINT
) -> ScriptedLauncher:
    """A launcher that has no slot at first, and whose attempts end one after the other like this.

    A number is a step time in seconds; an exception is raised when the attempt is looked at, or when it is launched
    where it is an answer from outside.
    """
    left = iter(endings)

    def script(spec: TrialSpec) -> Script:
        ending = next(left)
        if isinstance(ending, ExternalError):
            raise ending
        if isinstance(ending, BaseException):
            return Script(duration_s=0.0, look=lambda request, number: _raise(ending))
        if isinstance(ending, FailureReason):
            return Script(duration_s=0.0, reason=ending, excerpt="its words", leaves_outcome=False)
        speed = spec.global_batch_size * spec.model.seq_length / ending
        return Script(duration_s=0.0, tokens_per_sec=speed, fingerprint=fingerprint)

    return ScriptedLauncher(script, meets=[None], clock=1e9)


def _raise(error: BaseException) -> None:
    raise error


def one_job(ending: LaunchStatus, leave: Callable[[LaunchRequest, int], object], lasts: int = 1) -> ScriptedLauncher:
    """A launcher that is asked twice for its only attempt, which lives for so many looks and then ends like this.

    `leave` leaves what its ranks have written by each look.
    """

    def look(request: LaunchRequest, number: int) -> LaunchStatus:
        leave(request, number)
        return ending if number > lasts else LaunchStatus(Liveness.ALIVE, started=True)

    script = Script(duration_s=0.0, look=look)
    return ScriptedLauncher(lambda spec: script, meets=[LaunchPostponed("the queue is full")], clock=0.0)


def leave_words_of_a_rank(
    request: LaunchRequest, excerpt: str, reason: FailureReason = FailureReason.SCRIPT_ERROR
) -> None:
    """Outcome of an attempt whose rank 1 failed with this message."""
    ids = (request.spec.search_id, request.spec.trial, request.spec.attempt, request.spec.nonce)
    outcome = Outcome(*ids, OutcomeStatus.FAILED, reason=reason, rank=1, excerpt=excerpt)
    write_json(request.folder.outcome(), outcome.to_json())
