"""A launcher whose attempts end as a script says, on a simulated clock, and a search to drive with it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.launchers.base import Launcher, LaunchRefused, LaunchRequest
from orchestrator.samplers.ordered import GridSampler
from orchestrator.search.attempts import TrialProgram
from orchestrator.search.course import Goal, Hooks
from orchestrator.search.driver import Driver
from orchestrator.search.history import History
from orchestrator.search.limits import Limits
from search_spaces.cluster import ACCELERATORS, Cluster
from search_spaces.layout import Layout
from search_spaces.memory_floor import MemoryFloor
from search_spaces.model_shape import ModelShape
from trials.classify import Ending, Life
from trials.folder import SearchFolder, write_json
from trials.ledger.events import EventKind
from trials.ledger.journal import Journal
from trials.ledger.writer import LedgerWriter
from trials.ranking import Objective
from trials.trial import FailureReason, MeasureRules, Outcome, OutcomeStatus, TrialSpec

MODEL = ModelShape(4, 64, 4, 4, 256, False, 256, 64, False, "learned", "layernorm")
NODE = socket.gethostname()
RULES = MeasureRules(min_steps=5, time_limit_s=570.0)


@dataclass(frozen=True)
class Script:
    """How one attempt goes: it waits `waits_s`, runs `duration_s`, and leaves an outcome or ends as `reason` says."""

    waits_s: float = 0.0
    duration_s: float = 60.0
    tokens_per_sec: float | None = 1000.0
    reason: FailureReason | None = None
    excerpt: str = "it broke"
    leaves_outcome: bool = True
    flags: tuple[str, ...] = ()
    peak_memory_gib: float | None = None


def measured_outcome(
    spec: TrialSpec, tokens_per_sec: float, flags: tuple[str, ...] = (), peak_memory_gib: float | None = None
) -> Outcome:
    """An outcome that classify believes, with a 1 % interval."""
    tokens = spec.global_batch_size * spec.model.seq_length
    layout = spec.layout
    return Outcome(
        spec.search_id,
        spec.trial,
        spec.attempt,
        spec.nonce,
        OutcomeStatus.MEASURED,
        measured={
            "measured_steps": spec.measure.min_steps,
            "step_time_s": tokens / tokens_per_sec,
            "tokens_per_sec": tokens_per_sec,
            "tokens_per_sec_low": tokens_per_sec * 0.995,
            "tokens_per_sec_high": tokens_per_sec * 1.005,
            "tokens_per_sec_per_gpu": tokens_per_sec / spec.num_gpus,
            "samples_per_sec": tokens_per_sec / spec.model.seq_length,
            **({} if peak_memory_gib is None else {"peak_memory_gib": peak_memory_gib}),
        },
        proof={
            "world_size": spec.num_gpus,
            "tensor_parallel": layout.tensor_parallel,
            "pipeline_parallel": layout.pipeline_parallel,
            "data_parallel": layout.data_parallel,
            "parameters": spec.model.parameters,
            "local_parameters_sum": spec.model.parameters,
            "micro_batches_per_step": layout.grad_accum_steps,
            "samples_per_data_rank": [layout.micro_batch_size * layout.grad_accum_steps] * layout.data_parallel,
        },
        flags=flags,
    )


@dataclass
class Job:
    request: LaunchRequest
    script: Script
    started_at: float
    node: str
    cancelled: bool = False
    seen_alive: bool = False


@dataclass
class ScriptedLauncher(Launcher):
    """`script` decides how each attempt goes; jobs outlive the driver, as Slurm's do. `refuses` refuses all.

    An attempt runs on the first of the `nodes` that it does not keep away from, where there is one.
    """

    script: Callable[[TrialSpec], Script] = lambda spec: Script()
    refuses: str | None = None
    nodes: tuple[str, ...] = (NODE,)
    name = "scripted"
    jobs: dict[str, Job] = field(default_factory=dict)
    launched: list[str] = field(default_factory=list)
    clock: float = 1_000_000.0
    most_in_flight: int = 0
    unknown: set[str] = field(default_factory=set)

    def _launch(self, request: LaunchRequest) -> str | None:
        if self.refuses:
            raise LaunchRefused(self.refuses)
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

    def poll(self, keys: Iterable[str]) -> dict[str, Ending]:
        return {key: self._ending(key) for key in keys}

    def cancel(self, keys: Iterable[str]) -> set[str]:
        for key in self.jobs.keys() & set(keys):
            self.jobs[key].cancelled = True
        return set()

    def now(self) -> float:
        return self.clock

    def wait(self, seconds: float) -> None:
        running = [job for job in self.jobs.values() if not self._is_over(job)]
        ends = [self._next_change(job) for job in running if job.seen_alive]
        self.clock = max(self.clock + seconds, min(ends, default=0.0) if len(ends) == len(running) else 0.0)

    def close(self) -> None:
        """Nothing is held."""

    def _next_change(self, job: Job) -> float:
        if self.clock < job.started_at:
            return min(job.started_at, self.clock + 600.0)  # a driver looks now and then at what only waits
        return job.started_at + job.script.duration_s

    def _is_over(self, job: Job) -> bool:
        return job.cancelled or self.clock >= job.started_at + job.script.duration_s

    def _ending(self, key: str) -> Ending:
        job = self.jobs.get(key)
        if job is None or key in self.unknown:
            return Ending(Life.UNKNOWN)
        if not self._is_over(job):
            job.seen_alive = True
            if self.clock < job.started_at:
                return Ending(Life.ALIVE, detail="Priority")
            return Ending(Life.ALIVE, started=True, started_at=job.started_at, nodes=(job.node,))
        if job.script.leaves_outcome and not job.cancelled:
            write_json(job.request.folder.outcome(), self._outcome(job).to_json())
        launcher_knows = job.script.reason if not job.script.leaves_outcome else None
        detail = job.script.excerpt if launcher_knows else None
        ended_at = min(self.clock, job.started_at + job.script.duration_s)
        return Ending(Life.ENDED, True, False, launcher_knows, detail, (job.node,), job.started_at, ended_at)

    def _outcome(self, job: Job) -> Outcome:
        spec = job.request.spec
        script = job.script
        if script.reason is None and script.tokens_per_sec is not None:
            return measured_outcome(spec, script.tokens_per_sec, script.flags, script.peak_memory_gib)
        if job.script.reason is FailureReason.DOMINATED and job.script.tokens_per_sec is not None:
            seen = measured_outcome(spec, job.script.tokens_per_sec)
            return replace(seen, status=OutcomeStatus.FAILED, reason=job.script.reason, excerpt=job.script.excerpt)
        ids = (spec.search_id, spec.trial, spec.attempt, spec.nonce)
        return Outcome(*ids, OutcomeStatus.FAILED, reason=job.script.reason, excerpt=job.script.excerpt)


LAYOUTS = tuple(
    Layout(tensor_parallel=tp, data_parallel=4 // tp, micro_batch_size=mb, grad_accum_steps=16 * tp // (4 * mb))
    for tp in (1, 2, 4)
    for mb in (1, 2, 4)
)


def speed_by_layout(spec: TrialSpec) -> Script:
    """Each of LAYOUTS is faster than the one before."""
    return Script(tokens_per_sec=1000.0 + 100 * LAYOUTS.index(spec.layout))


class Killed(BaseException):
    """Stands for the driver's process being killed at this instruction."""


def raise_killed(now: bool) -> None:
    if now:
        raise Killed


@dataclass
class Rig:
    """A search of nine layouts for one node of four ranks. `open_driver` may be called again, as after a crash."""

    path: Path
    launcher: ScriptedLauncher = field(default_factory=ScriptedLauncher)
    limits: Limits = field(default_factory=lambda: Limits(max_trials=9, parallel_trials=2))
    layouts: tuple[Layout, ...] = LAYOUTS
    first: tuple[Layout, ...] = ()
    hooks: Hooks = field(default_factory=Hooks)
    num_nodes: int = 1
    fencing: int = 0
    floor: MemoryFloor | None = None
    others: tuple[Objective, ...] = ()

    def open_driver(self) -> Driver:
        folder = SearchFolder(self.path / "runs" / "rig-aaaaaa")
        folder.path.mkdir(parents=True, exist_ok=True)
        self.fencing += 1
        ledger = LedgerWriter(f"sqlite:///{self.path / 'ledger.db'}")
        history = History(folder.search_id, Journal(folder.journal), ledger, self.fencing, self.launcher.now)
        if history.is_empty:
            spec = {"name": "rig", "folder": str(folder.path)}
            history.record(EventKind.SEARCH_CREATED, spec=spec, code_hash="0" * 64)
        cluster = Cluster(ACCELERATORS["cpu"], 4, self.num_nodes)
        baseline = self.first[0] if self.first else None
        program = TrialProgram(folder, MODEL, cluster, RULES, "python3", baseline=baseline)
        goal = Goal(Objective.TOKENS_PER_SEC, 16, self.first, self.floor, self.others)
        return Driver(history, program, GridSampler(self.layouts), self.launcher, goal, self.limits, self.hooks)
