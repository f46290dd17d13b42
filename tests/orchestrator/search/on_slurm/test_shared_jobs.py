"""Shared jobs on a simulated Slurm: repeats of finalists are steps of one job, through faults, crashes and limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator.launchers.slurm_pilot.launcher import SlurmPilotLauncher
from orchestrator.launchers.slurm_pilot.shared_jobs import SharedJobsLauncher
from orchestrator.launchers.slurm_pilot.sizing import ROOM_S, STARTUP_S, STEP_ENDING_S, PilotRules, RemainingWork
from orchestrator.search.context import DriverCallbacks, SearchObjective
from orchestrator.search.driver import Driver
from orchestrator.search.remaining_work import RemainingRepeats
from orchestrator.search.stopping import TIME_LIMIT_FACTOR, TIME_LIMIT_MARGIN_S, Limits
from search_spaces.layouts.layout import Layout
from slurm.fake.jobs import FakeJob
from slurm.poll_backoff import PollBackoff
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.on_slurm.test_crashes import KillPoint, counting, story
from tests.rig import LAYOUTS, POLL_S, Killed, Rig, asking, attempts_of, speed_of
from trials.analysis.finals import Finals
from trials.analysis.ranking import Objective
from trials.ledger.events import SearchRecord, SearchState
from trials.trial import Attempt, FailureReason, Trial, TrialKind, TrialState

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
    return with_finals(tmp_path)


def with_finals(path: Path) -> SharedJobsRig:
    """Four layouts, two at a time, the baseline first; then two rounds of the two fastest and the baseline."""
    limits = Limits(4, 2, budget_node_hours=6.0, finalists=2, finalist_repeats=2, finals=Finals.FIXED)
    rig = SharedJobsRig("jobs", path, limits, first=(LAYOUTS[-1],), settings={"min_job_age_s": 86400.0})
    rig.script = lambda spec, restart: Script(duration_s=TRIAL_S, tokens_per_sec=4000.0 - speed_of(spec))
    return rig


def repeats(search: SearchRecord) -> list[Trial]:
    return [trial for trial in search.trials if trial.kind is TrialKind.REPEAT]


def repeat_attempts(search: SearchRecord) -> list[Attempt]:
    return [attempt for trial in repeats(search) for attempt in trial.attempts]


def job_ids(attempts: list[Attempt]) -> list[str]:
    return [str(attempt.job_id).split(".")[0] for attempt in attempts]


def test_repeats_of_finalists_and_of_the_baseline_are_steps_of_one_job_and_other_trials_are_jobs(rig):
    search = rig.run()
    [shared] = rig.shared_jobs()
    steps = repeat_attempts(search)
    assert {trial.layout.key for trial in repeats(search)} >= {LAYOUTS[-1].key}
    assert [attempt.job_id for attempt in steps] == [f"{shared.job_id}.{number}" for number in range(6)]
    assert len({step.nodes for step in steps}) == 1
    others = [trial.last_attempt for trial in search.trials if trial.kind is TrialKind.SEARCH]
    assert len({*job_ids(others)} - {shared.job_id}) == 4
    limit_s = TIME_LIMIT_FACTOR * TRIAL_S + TIME_LIMIT_MARGIN_S
    assert shared.request.time_limit_s == (6 + 1) * (limit_s + STEP_ENDING_S) + STARTUP_S + ROOM_S


def test_a_shared_job_has_the_nodes_of_the_largest_finalist(rig):
    large = Layout(num_nodes=2, data_parallel=8, micro_batch_size=1, grad_accum_steps=2)
    rig.layouts, rig.num_nodes, rig.first = (*LAYOUTS[:2], large), 4, ()
    rig.script = lambda spec, restart: Script(duration_s=TRIAL_S, tokens_per_sec=1000.0 * spec.layout.num_nodes)
    search = rig.run()
    assert {trial.layout.num_nodes for trial in repeats(search)} == {1, 2}
    assert [job.request.num_nodes for job in rig.shared_jobs()] == [2]


def test_attempts_not_begun_when_the_job_has_no_room_left_wait_for_the_next_job(rig):
    rig.longest_s = TIME_LIMIT_FACTOR * TRIAL_S + TIME_LIMIT_MARGIN_S + ROOM_S + 20.0
    search = rig.run()
    first, second = rig.shared_jobs()
    in_second = [a for a in repeat_attempts(search) if job_ids([a]) == [second.job_id]]
    assert in_second[0].submitted_at < first.ended_at, "it was to be a step of the first"
    assert [(len(trial.attempts), trial.state) for trial in repeats(search)] == [(1, TrialState.MEASURED)] * 6


@pytest.mark.parametrize(
    ("end", "reason"), [("cancel", FailureReason.INTERRUPTED), ("preempt", FailureReason.PREEMPTED)]
)
def test_only_the_step_that_runs_when_the_job_ends_is_retried(rig, end, reason):
    """Two repeats are in flight: one runs, the other waits for its turn and keeps its only attempt."""
    ends_at: list[float] = []

    def on_event(search, event) -> None:
        if not ends_at and any(a.state is TrialState.RUNNING for a in repeat_attempts(search)):
            ends_at.append(rig.cluster.time + 20.0)
            rig.cluster.at(ends_at[0], lambda: getattr(rig.cluster, end)(rig.shared_jobs()[0].job_id))

    rig.callbacks = DriverCallbacks(on_event=on_event)
    first, waiting = repeats(rig.run())[:2]
    assert [attempt.reason for attempt in first.attempts] == [reason, None]
    assert [attempt.reason for attempt in waiting.attempts] == [None]
    assert waiting.last_attempt.submitted_at < ends_at[0]
    assert len(rig.shared_jobs()) == 2


@pytest.mark.parametrize("seconds", [0.5, 30.0])
def test_a_search_cancelled_in_its_finals_leaves_nothing(rig, seconds):
    cancel_at: list[float] = []

    def on_event(search, event) -> None:
        if repeats(search) and not cancel_at:
            cancel_at.append(rig.cluster.time + seconds)

    is_due = lambda: bool(cancel_at) and rig.cluster.time >= cancel_at[0]  # noqa: E731
    rig.callbacks = DriverCallbacks(on_event=on_event, cancel_requested=is_due)
    search = rig.run()
    assert search.state is SearchState.CANCELLED
    assert {a.reason for a in repeat_attempts(search)} <= {FailureReason.CANCELLED_BY_USER, None}


@pytest.mark.parametrize(("budget", "num_repeats"), [(0.21, 0), (0.7, 2), (1.2, 6)])
def test_the_finals_stay_within_the_budget(rig, budget, num_repeats):
    """An attempt in a shared job reserves what it would pay alone in it, the late start of its agent included."""
    rig.startup_s = 280.0
    rig.script = lambda spec, restart: Script(
        duration_s=400.0 if spec.kind is TrialKind.REPEAT else TRIAL_S, tokens_per_sec=4000.0 - speed_of(spec)
    )
    rig.limits = replace(rig.limits, parallel_trials=1, budget_node_hours=budget)
    assert sum(trial.state is TrialState.MEASURED for trial in repeats(rig.run())) == num_repeats


def test_a_driver_killed_at_the_very_end_leaves_a_job_that_the_next_one_ends(rig, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(SlurmPilotLauncher, "release", lambda _: True)
        assert rig.open_driver().run().state.is_ended
    assert [job.state.is_ended for job in rig.shared_jobs()] == [False]
    rig.open_driver()
    assert rig.launcher.cancel_leftovers() == []
    rig.cluster.advance(10.0)
    assert [job.state.is_ended for job in rig.shared_jobs()] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a step's request", "job.json and job_end.json", "sbatch", "spec.json"])
def test_killed_at_the_last_call_and_resumed_the_search_is_the_same(tmp_path, name):
    counter = KillPoint()
    with counting("pilot", name, counter):
        wanted = story(with_finals(tmp_path / "undisturbed").run())
    rig = with_finals(tmp_path / "killed")
    with counting("pilot", name, KillPoint(counter.calls, after=True)), pytest.raises(Killed):
        rig.run()
    rig.cluster.advance(7.0)
    assert story(rig.run()) == wanted
