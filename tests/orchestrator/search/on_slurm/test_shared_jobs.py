"""Shared jobs on a simulated Slurm: repeats of finalists are steps of one job, through faults, crashes and limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.launchers.slurm_pilot.launcher import SlurmPilotLauncher
from orchestrator.launchers.slurm_pilot.shared_jobs import SharedJobsLauncher
from orchestrator.launchers.slurm_pilot.sizing import ROOM_S, STARTUP_S, STEP_ENDING_S, PilotRules, RemainingWork
from orchestrator.search.context import SearchObjective
from orchestrator.search.driver import Driver
from orchestrator.search.remaining_work import RemainingRepeats
from orchestrator.search.stopping import TIME_LIMIT_FACTOR, TIME_LIMIT_MARGIN_S, Limits
from slurm.fake.jobs import FakeJob
from slurm.poll_backoff import PollBackoff
from tests.orchestrator.scripted import Script
from tests.rig import LAYOUTS, POLL_S, Rig, asking, attempts_of, speed_of
from trials.analysis.finals import Finals
from trials.analysis.ranking import Objective
from trials.ledger.events import SearchRecord
from trials.trial import Trial, TrialKind

TRIAL_S = 60.0


@dataclass
class SharedJobsRig(Rig):
    """Shared jobs for at most `longest_s`, on the nodes of the largest finalist; all other trials are jobs."""

    def open_driver(self) -> Driver:
        repeats = RemainingRepeats(SearchObjective(Objective.TOKENS_PER_SEC, 16, self.first), self.limits)
        self._work_left = lambda search: repeats.work(search, self.cluster.time)  # type: ignore[method-assign]
        return super().open_driver()

    def new_launcher(self, work: Callable[[], RemainingWork]) -> SharedJobsLauncher:
        rules = PilotRules(self.num_nodes, 4, self.longest_s)
        parts = self.slurm, self.options, rules, PollBackoff(POLL_S), asking(self.slurm), work
        shared = SlurmPilotLauncher(*parts, self.cluster.advance, self.folder.shared_jobs)
        return SharedJobsLauncher(super().new_launcher(work), shared)

    def _sleep(self, seconds: float) -> None:
        self.cluster.advance(seconds)

    def shared_jobs(self) -> list[FakeJob]:
        """The jobs that attempts shared, in the order of submission."""
        return [job for job in self.cluster.jobs() if ".p0" in job.request.name]

    def check(self, search: SearchRecord, **allowed: object) -> None:
        """Check also that what shared jobs held is booked exactly."""
        self.launcher.close()
        self.cluster.advance(POLL_S)
        super().check(search, **allowed)
        ids = {job.job_id for job in self.shared_jobs()}
        sharing = [a.node_hours or 0.0 for a in attempts_of(search) if (a.job_id or "").split(".")[0] in ids]
        held_h = sum(self.slurm.used_node_s(job.request.name) for job in self.shared_jobs()) / 3600
        assert held_h == pytest.approx(sum(sharing) + sum(p.node_hours for p in search.pilots.values()), abs=1e-6)


@pytest.fixture
def rig(tmp_path: Path) -> SharedJobsRig:
    """Four layouts, two at a time, the baseline first; then two rounds of the two fastest and the baseline."""
    limits = Limits(4, 2, budget_node_hours=6.0, finalists=2, finalist_repeats=2, finals=Finals.FIXED)
    rig = SharedJobsRig("jobs", tmp_path, limits, first=(LAYOUTS[-1],), settings={"min_job_age_s": 86400.0})
    rig.script = lambda spec, restart: Script(duration_s=TRIAL_S, tokens_per_sec=4000.0 - speed_of(spec))
    return rig


def repeats(search: SearchRecord) -> list[Trial]:
    return [trial for trial in search.trials if trial.kind is TrialKind.REPEAT]


def test_repeats_of_finalists_and_of_the_baseline_are_steps_of_one_job_and_other_trials_are_jobs(rig):
    search = rig.run()
    [shared] = rig.shared_jobs()
    steps = [attempt for trial in repeats(search) for attempt in trial.attempts]
    assert {trial.layout.key for trial in repeats(search)} >= {LAYOUTS[-1].key}
    assert [attempt.job_id for attempt in steps] == [f"{shared.job_id}.{number}" for number in range(6)]
    assert len({step.nodes for step in steps}) == 1
    others = {trial.last_attempt.job_id for trial in search.trials if trial.kind is TrialKind.SEARCH}
    assert len(others - {shared.job_id}) == 4
    limit_s = TIME_LIMIT_FACTOR * TRIAL_S + TIME_LIMIT_MARGIN_S
    assert shared.request.time_limit_s == (6 + 1) * (limit_s + STEP_ENDING_S) + STARTUP_S + ROOM_S
