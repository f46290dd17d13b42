"""Benchmark of the driver: its cost by the number of trials, on a simulated cluster.

    python -m benchmarks.driver [--searches 50] [--trials 60] [--in-flight 200] [--json]

Lines of a service for the first hundred trials (begun or ended) and for each further three hundred: CPU and bytes of
ledger and folders a trial. Then one for all: `growth`, the CPU a trial of the last window over that of the first in
which trials both begin and end; Slurm's questions (squeue, sacct) a simulated minute and other commands a trial;
memory.

Everything is real but Slurm, whose clock runs as fast as it can: ledger, folders, journals and spec files are on disk.
The CPU time of the simulation and of the sampler is not the drivers'.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from benchmarks.output import Line, arguments_of, show
from orchestrator.launchers.slurm.launcher import SlurmAccess, SlurmLauncher
from orchestrator.launchers.slurm.queries import PollBackoff
from orchestrator.launchers.slurm.squeue_cache import SqueueCache
from orchestrator.lifecycle.observers import attempt_factory_of
from orchestrator.planning.candidates import candidates_of
from orchestrator.planning.plan import predictor, task_of
from orchestrator.search.context import DriverCallbacks, SearchObjective
from orchestrator.search.driver import Driver
from orchestrator.search.event_store import EventStore
from orchestrator.search.samplers.factory import make_sampler
from orchestrator.search.stopping import Limits
from orchestrator.service.quota import QuotaRequest, grant
from slurm.interface import Slurm
from tests.fake_slurm.client import FakeSlurm
from tests.fake_slurm.cluster import FakeCluster
from tests.fake_slurm.jobs import JobPlan, StartedJob
from tests.fake_slurm.placement import FakeNode
from tests.kit import created, loaded
from tests.orchestrator.tabled_trial import measured_outcome
from trials.files.folders import AttemptFolder, read_json, write_json
from trials.ledger.journal import Journal
from trials.ledger.reader import LedgerReader
from trials.ledger.writer import LedgerWriter
from trials.trial import Outcome, TrialSpec

POLL_S = 30.0
FIRST, EVERY = 100, 300

ANSWER_S = 0.02
"""Simulated seconds of a command, so that later submissions are newer than earlier answers."""

QUESTIONS = ("jobs", "jobs_on", "accounted_jobs")
COMMANDS = ("settings", "association_limits", "leaves", "submit", "describe", "cancel")
"""Calls of the Slurm client: those that ask squeue and sacct, and those that stand for other commands."""

CPUS_PER_NODE = 64
SHORTEST_S, LONGEST_S = 60.0, 240.0

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


def main() -> None:
    arguments = arguments_of(__doc__, searches=50, trials=60, in_flight=200)
    show(service_lines(arguments.searches, arguments.trials, arguments.in_flight), arguments.json)


def service_lines(searches: int, trials: int, in_flight: int) -> Iterator[Line]:
    """Line for each window; then one for all. Trials are those of a search, in flight those of all."""
    with tempfile.TemporaryDirectory(prefix="parlay-scale-") as folder:
        samples = list(Service(Path(folder), trials, in_flight).run(searches))
    windows = [window for window in pairwise(samples) if window[1].trials > window[0].trials]
    for before, after in windows:
        yield {"what": "window", "from": before.trials, "to": after.trials} | _per_trial(before, after)
    first, last = samples[0], samples[-1]
    minutes = (last.simulated_s - first.simulated_s) / 60
    yield {
        "what": "service",
        "searches": searches,
        "in_flight": in_flight,
        "trials": last.trials,
        **_per_trial(first, last),
        "growth": _growth(windows),
        "questions_per_minute": round(_count(QUESTIONS, first, last) / minutes, 2),
        "commands_per_trial": round(_count(COMMANDS, first, last) / last.trials, 2),
        "peak_rss_mib": round(_peak_rss_mib()),
    }


def _per_trial(before: Sample, after: Sample) -> Line:
    trials = after.trials - before.trials
    return {
        "cpu_ms_per_trial": round(1000 * (after.cpu_s - before.cpu_s) / trials, 2),
        "ledger_bytes_per_trial": (after.ledger_bytes - before.ledger_bytes) // trials,
        "folder_bytes_per_trial": (after.folder_bytes - before.folder_bytes) // trials,
    }


def _growth(windows: Sequence[tuple[Sample, Sample]]) -> float | None:
    """None where no two windows have trials that begin and trials that end; others cannot be compared."""
    whole = [window for window in windows if _count(["submit"], *window) and window[1].ended > window[0].ended]
    if len(whole) < 2:
        return None
    first, last = ((w[1].cpu_s - w[0].cpu_s) / (w[1].trials - w[0].trials) for w in (whole[0], whole[-1]))
    return round(last / first, 2)


def _count(calls: Iterable[str], before: Sample, after: Sample) -> int:
    return sum(after.calls[call] - before.calls[call] for call in calls)


def _peak_rss_mib() -> float:
    """Peak memory of this process; getrusage would include the parent's before the fork."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


class Meter:
    """CPU seconds of this process but for calls that are apart, those of the simulation and of the sampler; `calls`
    counts these by name."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._apart_s = 0.0

    def cpu_s(self) -> float:
        return time.process_time() - self._apart_s

    def set_apart(self, whole: Any, *names: str) -> None:
        """Set these calls of an object apart."""
        for name in names:
            setattr(whole, name, partial(self._call_apart, name, getattr(whole, name)))

    def _call_apart(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        self.calls[name] += 1
        began_s = self.cpu_s()
        try:
            return call(*arguments)
        finally:
            self._apart_s += self.cpu_s() - began_s


@dataclass(frozen=True)
class Sample:
    """State after a number of trials (one in flight counts half), of which some had ended: CPU seconds of all drivers,
    bytes of ledger and trials' folders, simulated seconds, and calls so far."""

    trials: int
    ended: int
    cpu_s: float
    ledger_bytes: int
    folder_bytes: int
    simulated_s: float
    calls: Counter[str]


class Service:
    """Drivers run in turn in this folder, with so many trials for each and in flight."""

    def __init__(self, folder: Path, trials: int, in_flight: int):
        self.folder = folder
        self.trials = trials
        num_nodes = -(-in_flight * 4 // CPUS_PER_NODE)
        nodes = [FakeNode(f"n{number}", cpus=CPUS_PER_NODE) for number in range(1, num_nodes + 1)]
        self.cluster = FakeCluster(nodes, self._start)
        slurm = FakeSlurm(self.cluster)
        slurm.answer_s = ANSWER_S
        self.meter = Meter()
        self.meter.set_apart(slurm, *QUESTIONS, *COMMANDS)
        self.slurm = cast(Slurm, slurm)
        self.cpu_s = 0.0
        self.ended = 0
        self._random = random.Random(1)
        self._in_flight = in_flight
        self._requests: dict[str, QuotaRequest] = {}
        self._url = f"sqlite:///{folder / 'ledger.db'}"
        (folder / "slurm").mkdir(mode=0o700)
        self._answer = SqueueCache(self.slurm, folder / "slurm", ["scale"], clock=self.slurm.now)

    def run(self, searches: int) -> Iterator[Sample]:
        """Samples before the first trial, after the first hundred, after every further three hundred, and after the
        last."""
        with ExitStack() as stack:
            drivers = [self._opened(stack) for _ in range(searches)]
            for driver in drivers:
                self._step(driver.recover)
            yield self._sample()
            due = FIRST
            while drivers:
                for driver in drivers:
                    self._step(driver.iterate)
                self.cluster.advance(self._iteration_interval_s)
                drivers = [driver for driver in drivers if not driver.search.state.is_ended]
                if self._trials >= due:
                    yield self._sample()
                    due += EVERY
            yield self._sample()

    def _step(self, step: Callable[[], object]) -> None:
        """Take a step of a driver; its CPU time counts."""
        before_s = self.meter.cpu_s()
        step()
        self.cpu_s += self.meter.cpu_s() - before_s

    @property
    def _trials(self) -> int:
        """Number of trials, with half for each begin and each end."""
        return (self.meter.calls["submit"] + self.ended) // 2

    def _opened(self, stack: ExitStack) -> Driver:
        """Search and its driver, built as by `lifecycle.drive`."""
        trials = [f"search.{name}={self.trials}" for name in ("max_trials", "parallel_trials")]
        spec = loaded(self.folder, SEARCH, *trials, f"work_dir={self.folder / 'runs'}")
        folder, task = created(spec, self._url), task_of(spec, ())
        ledger = stack.enter_context(closing(LedgerWriter(self._url)))
        reader = stack.enter_context(closing(LedgerReader(self._url)))
        journal = stack.enter_context(closing(Journal(folder.journal)))
        history = EventStore(folder.search_id, journal, ledger, 2, self.slurm.now)
        options = spec.launcher.slurm.job_options()
        launcher = SlurmLauncher(
            SlurmAccess(
                self.slurm,
                options,
                PollBackoff(POLL_S),
                self._answer.jobs,
                handover=folder.launcher,
                jobs_on=self._answer.jobs_on,
            )
        )
        self._iteration_interval_s = launcher.iteration_interval_s
        sampler = make_sampler(spec.search.sampler, candidates_of(spec).layouts, task, spec.search.seed)
        callbacks = DriverCallbacks(
            cancel_requested=lambda: bool(reader.pending_commands(folder.search_id)),
            predict=predictor(task),
            grant_slots=partial(grant, self._in_flight, self._requests, folder.search_id),
        )
        limits = Limits(spec.search.max_trials, spec.search.parallel_trials)
        goal = SearchObjective(spec.objective, spec.global_batch_size)
        self.meter.set_apart(sampler, "ask", "has_converged")
        return Driver(
            history, attempt_factory_of(folder, spec), lambda failing: sampler, launcher, goal, limits, callbacks
        )

    def _start(self, job: StartedJob) -> JobPlan:
        folder = AttemptFolder(job.directory)
        spec = TrialSpec.from_json(read_json(folder.spec) or {})
        seconds = self._random.uniform(SHORTEST_S, LONGEST_S)
        outcome = measured_outcome(spec, self._random.uniform(1000.0, 2000.0))
        return JobPlan(seconds, on_end=partial(self._leave, folder, outcome))

    def _leave(self, folder: AttemptFolder, outcome: Outcome) -> None:
        write_json(folder.outcome(), outcome.to_json())
        self.ended += 1

    def _sample(self) -> Sample:
        ledger, folders = _bytes_of(self.folder, "ledger.db*"), _bytes_of(self.folder / "runs", "**/trials/**/*")
        calls = Counter(self.meter.calls)
        return Sample(self._trials, self.ended, self.cpu_s, ledger, folders, self.cluster.time, calls)


def _bytes_of(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern) if path.is_file())


if __name__ == "__main__":
    main()
