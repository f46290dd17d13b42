"""A search with shared jobs on a simulated Slurm: repeats of the finalists are steps, all other trials are jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.launchers.slurm_pilot.launcher import SlurmPilotLauncher
from orchestrator.launchers.slurm_pilot.shared_jobs import SharedJobsLauncher
from orchestrator.launchers.slurm_pilot.sizing import PilotRules, RemainingWork
from orchestrator.search.context import SearchObjective
from orchestrator.search.driver import Driver
from orchestrator.search.remaining_work import RemainingRepeats
from slurm.fake.jobs import FakeJob, JobPlan, StartedJob
from slurm.poll_backoff import PollBackoff
from tests.orchestrator.launchers.on_fake_slurm import POLL_S, asking, four_nodes
from tests.orchestrator.search.pilot_rig import PilotRig
from tests.orchestrator.search.rig import Rig
from tests.orchestrator.search.slurm_rig import SlurmRig
from trials.analysis.ranking import Objective
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord
from trials.pilot.files import PilotFolder
from trials.trial import Attempt


@dataclass
class SharedJobsRig(PilotRig):
    """Shared jobs for at most `longest_s`, on the nodes of the largest finalist."""

    def open_driver(self) -> Driver:
        repeats = RemainingRepeats(SearchObjective(Objective.TOKENS_PER_SEC, 16, self.first), self.limits)
        work = lambda: repeats.work(driver.search, self.cluster.time)  # noqa: E731
        folder = SearchFolder(self.path / "runs" / "rig-aaaaaa")
        self.launcher = self.new_launcher(work, folder.launcher, folder.shared_jobs)  # type: ignore[assignment]
        driver = Rig.open_driver(self)
        return driver

    def new_launcher(
        self, work: Callable[[], RemainingWork], handover: Path | None = None, shared_handover: Path | None = None
    ) -> SharedJobsLauncher:
        slurm, jobs, sleep = self.slurm, asking(self.slurm), self.cluster.advance
        rules = PilotRules(self.num_nodes, 4, self.longest_s)
        alone = SlurmLauncher(slurm, self.options, PollBackoff(POLL_S), jobs, sleep, handover)
        backoff = PollBackoff(POLL_S)
        shared = SlurmPilotLauncher(slurm, self.options, rules, backoff, jobs, work, sleep, shared_handover)
        return SharedJobsLauncher(alone, shared)

    def _start(self, job: StartedJob) -> JobPlan:
        is_shared = PilotFolder(job.directory).plan.exists()
        return PilotRig._start(self, job) if is_shared else SlurmRig._start(self, job)

    def shared_jobs(self) -> list[FakeJob]:
        """The jobs that attempts shared, in the order of submission."""
        return [job for job in self.cluster.jobs() if ".p0" in job.request.name]

    # -- what must hold

    def check_shared(self, search: SearchRecord) -> None:
        """Check of an ended search that nothing is left or ran twice, and that what Slurm charged is booked: of shared
        jobs exactly, of the others at least, and all within the budget."""
        self.launcher.close()
        self.cluster.advance(POLL_S)
        jobs = [job for job in self.cluster.jobs() if job.user == self.slurm.user]
        names = {job.request.name for job in jobs}
        assert search.state.is_ended
        assert not [job for job in jobs if not job.state.is_ended]
        assert all(self.slurm.most_alive(name) <= 1 for name in names)
        attempts = attempts_of(search)
        steps = [attempt for attempt in attempts if "." in (attempt.job_id or "")]
        assert len({step.job_id for step in steps}) == len(steps)
        shared_ids = {job.job_id for job in self.shared_jobs()}
        sharing = [attempt for attempt in attempts if (attempt.job_id or "").split(".")[0] in shared_ids]
        held_h = sum(self.slurm.used_node_s(job.request.name) for job in self.shared_jobs()) / 3600
        idle_h = sum(pilot.node_hours for pilot in search.pilots.values())
        booked_h = sum(attempt.node_hours or 0.0 for attempt in sharing) + idle_h
        assert abs(held_h - booked_h) < 1e-6, f"{held_h} node-hours were held, {booked_h} are booked"
        used_h = sum(self.slurm.used_node_s(name) for name in names) / 3600
        budget = self.limits.budget_node_hours or float("inf")
        assert used_h - 1e-6 <= search.node_hours_used <= budget + 1e-9


def attempts_of(search: SearchRecord) -> list[Attempt]:
    return [attempt for trial in search.trials for attempt in trial.attempts]


def shared_jobs_rig(path: Path) -> SharedJobsRig:
    """A rig on four nodes whose controller keeps its job records."""
    return SharedJobsRig(path, cluster=four_nodes(min_job_age_s=86400.0))
