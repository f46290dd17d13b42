"""A search on a simulated Slurm, and its invariants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.launchers.base import Launcher
from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.search.driver import Driver
from slurm.fake.client import FakeSlurm
from slurm.fake.cluster import FakeCluster
from slurm.fake.jobs import JobPlan, StartedJob
from slurm.poll_backoff import PollBackoff
from slurm.request import JobOptions
from tests.orchestrator.launchers.on_fake_slurm import POLL_S, asking, four_nodes
from tests.orchestrator.scripted import Script, measured_outcome
from tests.orchestrator.search.rig import LAYOUTS, Rig
from trials.files.folders import AttemptFolder, read_json, write_json
from trials.ledger.events import SearchRecord
from trials.trial import Attempt, FailureReason, Outcome, OutcomeStatus, TrialSpec


def speed_of(spec: TrialSpec) -> float:
    """Throughput of a layout, different for each, so that there is one best."""
    return 1000.0 + 10.0 * [layout.key for layout in LAYOUTS].index(spec.layout.canonical().key)


@dataclass
class SlurmRig(Rig):
    """Nine layouts on a cluster of four nodes with four CPUs each. `open_driver` is a new driver on the same cluster.

    `script` returns the script of each start of a trial's job, given its spec and restart.
    """

    cluster: FakeCluster = field(default_factory=four_nodes)
    script: Callable[[TrialSpec, int], Script] = lambda spec, restart: Script(tokens_per_sec=speed_of(spec))
    options: JobOptions = field(default_factory=JobOptions)
    slurm: FakeSlurm = field(init=False)

    def __post_init__(self) -> None:
        self.slurm = FakeSlurm(self.cluster)
        self.cluster.on_start = self._start

    def open_driver(self) -> Driver:
        handover = self.path / "runs" / "rig-aaaaaa" / "launcher.json"
        self.launcher = SlurmLauncher(  # type: ignore[assignment]
            self.slurm, self.options, PollBackoff(POLL_S), asking(self.slurm), self._sleep, handover=handover
        )
        return super().open_driver()

    def _sleep(self, seconds: float) -> None:
        self.cluster.advance_to_next_event(at_most=max(seconds, POLL_S / 2))
        self.cluster.advance(seconds)

    def _start(self, job: StartedJob) -> JobPlan:
        if job.user != self.slurm.user:
            return JobPlan()
        folder = AttemptFolder(job.directory)
        data = read_json(folder.spec)
        assert data is not None, "the spec is there before the job is"
        spec = TrialSpec.from_json(data)
        script = self.script(spec, job.restart)
        leave_outcome = lambda: leave(folder, spec, script, job.restart)  # noqa: E731
        failed = 0 if script.reason is None and script.tokens_per_sec is not None else 1
        return JobPlan(script.duration_s, exit_code=failed, on_end=leave_outcome if script.leaves_outcome else _nothing)

    # -- what must hold

    def check(
        self, search: SearchRecord, twins: bool = False, books_are_uncertain: bool = False, requeued: bool = False
    ) -> None:
        """Check the invariants I1 to I6 and I10 of an ended search.

        `twins`: a job appeared long after its submission was given up. `books_are_uncertain`: nodes were held while the
        controller was down for longer than any limit, or a clock jumped, so that a job's duration is unknown.
        `requeued`: jobs were requeued while there was no driver to cancel what the budget no longer covers.
        """
        attempts = [attempt for trial in search.trials for attempt in trial.attempts]
        assert search.state.is_ended
        assert not [job for job in self.cluster.jobs() if job.user == self.slurm.user and not job.state.is_ended]
        assert len({(t.layout.key, t.kind) for t in search.trials}) == len(search.trials)
        for attempt in attempts:
            name = f"{search.search_id}.{attempt.trial}.{attempt.attempt}"
            assert twins or self.slurm.most_alive(name) <= 1, f"{name} was alive twice"
            assert attempt.state.is_ended
            assert (attempt.reason is None) == (attempt.outcome is not None and not attempt.outcome.reason)
            used_h = self.slurm.used_node_s(name) / 3600
            is_booked = attempt.node_hours >= used_h - POLL_S / 3600
            assert books_are_uncertain or is_booked, f"{name} used {used_h} node-hours, {attempt.node_hours} are booked"
        known = {f"{search.search_id}.{a.trial}.{a.attempt}" for a in attempts}
        assert {job.request.name for job in self.cluster.jobs() if job.user == self.slurm.user} <= known
        if self.limits.budget_node_hours is not None and not (books_are_uncertain or requeued):
            used_h = sum(self.slurm.used_node_s(name) for name in known) / 3600
            assert used_h <= self.limits.budget_node_hours + 1e-9
            assert search.node_hours_used <= self.limits.budget_node_hours + 1e-9


def iterate_times(driver: Driver, launcher: Launcher, turns: int) -> None:
    """Run this many iterations with the launcher's waits between them, or fewer if the search ends."""
    for _ in range(turns):
        if driver.search.state.is_ended:
            break
        driver.iterate()
        launcher.wait(launcher.iteration_interval_s)


def one_attempt(search: SearchRecord, trial: str = "t0001") -> Attempt:
    """The only attempt of a trial."""
    [attempt] = search.trial(trial).attempts
    return attempt


def slurm_rig(path: Path, **settings: object) -> SlurmRig:
    """A rig whose cluster has these settings."""
    return SlurmRig(path, cluster=four_nodes(**settings))


def _nothing() -> None:
    """A job that writes no outcome."""


def leave(folder: AttemptFolder, spec: TrialSpec, script: Script, restart: int) -> None:
    if script.reason is None and script.tokens_per_sec is not None:
        outcome = replace(measured_outcome(spec, script.tokens_per_sec), restart=restart, flags=script.flags)
    else:
        ids = (spec.search_id, spec.trial, spec.attempt, spec.nonce)
        reason = script.reason or FailureReason.SCRIPT_ERROR
        outcome = Outcome(*ids, OutcomeStatus.FAILED, restart, reason=reason, excerpt=script.excerpt)
    write_json(folder.outcome(restart), outcome.to_json())
