"""Drivers of a service on a simulated Slurm: everything is real but the cluster, whose clock runs as fast as they can.

Ledger, folders, journals and spec files are on disk. The cost of the simulation and of the sampler is measured
separately and not attributed to the drivers.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from orchestrator.config.loader import load_search_file
from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.lifecycle.create import create_search
from orchestrator.lifecycle.drive import attempt_factory_of
from orchestrator.planning.candidates import candidates_of
from orchestrator.planning.plan import predictor, task_of
from orchestrator.samplers.factory import make_sampler
from orchestrator.search.context import DriverCallbacks, SearchObjective
from orchestrator.search.driver import Driver
from orchestrator.search.event_store import EventStore
from orchestrator.search.stopping import Limits
from orchestrator.service.quota import Quota
from slurm.fake.client import FakeSlurm
from slurm.fake.cluster import FakeCluster
from slurm.fake.jobs import JobPlan, StartedJob
from slurm.fake.placement import FakeNode
from slurm.interface import Slurm
from slurm.poll_backoff import PollBackoff
from slurm.squeue_cache import SqueueCache
from tests.orchestrator.scripted import measured_outcome
from trials.files.folders import AttemptFolder, read_json, write_json
from trials.ledger.journal import Journal
from trials.ledger.reader import LedgerReader
from trials.ledger.writer import LedgerWriter
from trials.trial import Outcome, TrialSpec

POLL_S = 30.0
FIRST, EVERY = 100, 300

ANSWER_S = 0.02
"""Simulated seconds of a command, so that later submissions are newer than earlier answers."""

COMMANDS = {
    "settings": "scontrol config",
    "submit": "sbatch",
    "jobs": "squeue",
    "describe": "scontrol",
    "accounted_jobs": "sacct",
    "cancel": "scancel",
}
"""Calls of the Slurm client, and the commands that they stand for."""

CPUS_PER_NODE = 64

SEARCH = """\
schema: parlay.search/1
name: scale
model: {num_layers: 8, hidden_size: 64, num_attention_heads: 8, vocab_size: 256, seq_length: 64}
cluster: {accelerator: cpu, gpus_per_node: 4, num_nodes: 1}
global_batch_size: 256
space:
  tensor_parallel: [1, 2, 4]
  pipeline_parallel: [1, 2, 4]
  micro_batch_size: [1, 2, 4, 8, 16, 32, 64]
  zero_stage: [0, 1, 2, 3]
  activation_checkpointing: [none, selective, full]
search: {sampler: random, finalists: 0, warm_start: none}
tracking: {enabled: false}
launcher: {kind: slurm}
"""


PARTS: dict[str, tuple[str, ...]] = {
    "slurm": tuple(COMMANDS),
    "journal": ("append",),
    "ledger": ("apply", "pending_commands"),
    "launcher": ("launch", "poll", "cancel", "adopt"),
    "files": ("with_spec_file", "result"),
    "sampler": ("ask", "has_converged"),
}
"""Parts of a driver's work by their calls; the rest is `loop`."""

APART = ("slurm", "sampler")
"""Parts that are not a driver's: the simulation and the sampler."""


class Meter:
    """Exclusive CPU seconds of this process by part; `calls` counts Slurm commands."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.cpu_s: Counter[str] = Counter()

    def measured(self, part: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Result of the call; its CPU time is added to the part."""
        before, began = self.cpu_s.total(), time.process_time()
        try:
            return call(*arguments)
        finally:
            by_others = self.cpu_s.total() - before
            self.cpu_s[part] += time.process_time() - began - by_others

    @property
    def drivers(self) -> Counter[str]:
        """CPU seconds of the drivers, by part."""
        return Counter({part: seconds for part, seconds in self.cpu_s.items() if part not in APART})


class Metered:
    """Proxy that measures calls as those of one part."""

    def __init__(self, whole: Any, part: str, meter: Meter):
        self._whole, self._part, self._meter = whole, part, meter

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._whole, name)
        return partial(self._measured, name, found) if name in PARTS[self._part] else found

    def _measured(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        if self._part == "slurm":
            self._meter.calls[COMMANDS[name]] += 1
        return self._meter.measured(self._part, call, *arguments)


@dataclass(frozen=True)
class Load:
    """Number of searches, trials per search, and trials in flight in all."""

    searches: int = 50
    trials: int = 60
    in_flight: int = 200
    shortest_s: float = 60.0
    longest_s: float = 240.0


@dataclass(frozen=True)
class Sample:
    """State after a number of trials (one in flight counts half), of which some had ended: CPU seconds of all drivers
    by part, bytes of ledger and trials' folders, simulated seconds, and Slurm commands so far."""

    trials: int
    ended: int
    parts_s: Counter[str]
    ledger_bytes: int
    folder_bytes: int
    simulated_s: float
    calls: Counter[str]

    @property
    def cpu_s(self) -> float:
        return self.parts_s.total()


class Service:
    """Drivers of a `load`, run in turn, in this folder."""

    def __init__(self, folder: Path, load: Load, seed: int = 1):
        self.folder = folder
        self.load = load
        num_nodes = -(-load.in_flight * 4 // CPUS_PER_NODE)
        nodes = [FakeNode(f"n{number}", cpus=CPUS_PER_NODE) for number in range(1, num_nodes + 1)]
        self.cluster = FakeCluster(nodes, self._start)
        slurm = FakeSlurm(self.cluster)
        slurm.answer_s = ANSWER_S
        self.meter = Meter()
        self.slurm = cast(Slurm, self._metered(slurm, "slurm"))
        self.ended = 0
        self._random = random.Random(seed)
        self._quota = Quota(load.in_flight)
        self._url = f"sqlite:///{folder / 'ledger.db'}"
        (folder / "slurm").mkdir(mode=0o700)
        self._answer = SqueueCache(self.slurm, folder / "slurm", ["scale"], clock=self.slurm.now)

    def run(self) -> Iterator[Sample]:
        """Samples before the first trial, after the first hundred, after every further three hundred, and after the
        last."""
        with ExitStack() as stack:
            drivers = [self._opened(stack) for _ in range(self.load.searches)]
            for driver in drivers:
                self.meter.measured("loop", driver.recover)
            yield self._sample()
            due = FIRST
            while drivers:
                for driver in drivers:
                    self.meter.measured("loop", driver.iterate)
                self.cluster.advance(self._iteration_interval_s)
                drivers = [driver for driver in drivers if not driver.search.state.is_ended]
                if self._trials >= due:
                    yield self._sample()
                    due += EVERY
            yield self._sample()

    @property
    def _trials(self) -> int:
        """Number of trials, with half for each begin and each end."""
        return (self.meter.calls["sbatch"] + self.ended) // 2

    def _metered(self, whole: Any, part: str) -> Any:
        return Metered(whole, part, self.meter)

    def _opened(self, stack: ExitStack) -> Driver:
        """Search and its driver, built as by `lifecycle.drive`."""
        path = self.folder / "search.yaml"
        path.write_text(SEARCH)
        settings = [f"search.max_trials={self.load.trials}", f"work_dir={self.folder / 'runs'}"]
        spec = load_search_file(path, [*settings, f"search.parallel_trials={self.load.trials}"])
        folder, task = create_search(spec, self._url), task_of(spec, ())
        ledger = stack.enter_context(closing(LedgerWriter(self._url)))
        reader = stack.enter_context(closing(LedgerReader(self._url)))
        journal = stack.enter_context(closing(Journal(folder.journal)))
        book, rows = self._metered(journal, "journal"), self._metered(ledger, "ledger")
        history = EventStore(folder.search_id, book, rows, 2, self.slurm.now)
        launcher = SlurmLauncher(
            self.slurm,
            spec.launcher.slurm.job_options(),
            PollBackoff(POLL_S),
            self._answer.jobs,
            handover=folder.launcher,
        )
        self._iteration_interval_s = launcher.iteration_interval_s
        sampler = make_sampler(spec.search.sampler, candidates_of(spec).layouts, task, spec.search.seed)
        asked = self._metered(reader, "ledger")
        callbacks = DriverCallbacks(
            cancel_requested=lambda: bool(asked.pending_commands(folder.search_id)),
            predict=predictor(task),
            grant_slots=partial(self._quota.grant, folder.search_id),
        )
        limits = Limits(spec.search.max_trials, spec.search.parallel_trials)
        goal = SearchObjective(spec.objective, spec.global_batch_size)
        program, sampler = self._metered(attempt_factory_of(folder, spec), "files"), self._metered(sampler, "sampler")
        return Driver(history, program, sampler, self._metered(launcher, "launcher"), goal, limits, callbacks)

    def _start(self, job: StartedJob) -> JobPlan:
        folder = AttemptFolder(job.directory)
        spec = TrialSpec.from_json(read_json(folder.spec) or {})
        seconds = self._random.uniform(self.load.shortest_s, self.load.longest_s)
        return JobPlan(
            seconds, on_end=partial(self._leave, folder, measured_outcome(spec, self._random.uniform(1000.0, 2000.0)))
        )

    def _leave(self, folder: AttemptFolder, outcome: Outcome) -> None:
        write_json(folder.outcome(), outcome.to_json())
        self.ended += 1

    def _sample(self) -> Sample:
        ledger, folders = _bytes_of(self.folder, "ledger.db*"), _bytes_of(self.folder / "runs", "**/trials/**/*")
        calls = Counter(self.meter.calls)
        return Sample(self._trials, self.ended, self.meter.drivers, ledger, folders, self.cluster.time, calls)


def _bytes_of(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern) if path.is_file())
