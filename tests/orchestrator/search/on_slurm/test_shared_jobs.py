"""Shared jobs on a simulated Slurm: repeats of finalists are steps of one job, through faults, crashes and limits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator.launchers.slurm import job_files
from orchestrator.launchers.slurm_pilot.sizing import ROOM_S, STARTUP_S, STEP_ENDING_S
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import TIME_LIMIT_FACTOR, TIME_LIMIT_MARGIN_S, Limits
from search_spaces.layouts.layout import Layout
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.kill_points import (
    KillPoint,
    every_call,
    kill_and_resume,
    one_call,
    story,
    undisturbed,
    walks,
)
from tests.orchestrator.search.on_slurm.test_pilot_crashes import KILL_POINTS as PILOT_KILL_POINTS
from tests.orchestrator.search.rig import LAYOUTS
from tests.orchestrator.search.shared_jobs_rig import SharedJobsRig, attempts_of, shared_jobs_rig
from tests.orchestrator.search.slurm_rig import speed_of
from trials.analysis.finals import Finals
from trials.failure_policy import policy_of
from trials.ledger.events import SearchRecord, SearchState
from trials.trial import Attempt, FailureReason, Flag, Trial, TrialKind, TrialState

TRIAL_S = 60.0
KILL_POINTS = {**PILOT_KILL_POINTS, "job.sh": (job_files, "write_text", 2)}


@pytest.fixture
def rig(tmp_path: Path) -> SharedJobsRig:
    return with_finals(tmp_path)


def with_finals(path: Path) -> SharedJobsRig:
    """Four layouts, two at a time, the baseline first; then two rounds of the two fastest and the baseline."""
    path.mkdir(exist_ok=True)
    rig = shared_jobs_rig(path)
    rig.first = (LAYOUTS[-1],)
    rig.script = lambda spec, restart: Script(duration_s=TRIAL_S, tokens_per_sec=4000.0 - speed_of(spec))
    rig.limits = Limits(4, 2, budget_node_hours=6.0, finalists=2, finalist_repeats=2, finals=Finals.FIXED)
    return rig


def repeats(search: SearchRecord) -> list[Trial]:
    return [trial for trial in search.trials if trial.kind is TrialKind.REPEAT]


def repeat_attempts(search: SearchRecord) -> list[Attempt]:
    return [attempt for trial in repeats(search) for attempt in trial.attempts]


def job_ids(attempts: list[Attempt]) -> list[str]:
    return [str(attempt.job_id).split(".")[0] for attempt in attempts]


# -- which work shares a job


def test_repeats_of_finalists_and_of_the_baseline_are_steps_of_one_job_and_other_trials_are_jobs(rig):
    search = rig.open_driver().run()
    rig.check_shared(search)
    [shared] = rig.shared_jobs()
    steps = repeat_attempts(search)
    assert {trial.layout.key for trial in repeats(search)} >= {LAYOUTS[-1].key}
    assert [attempt.job_id for attempt in steps] == [f"{shared.job_id}.{number}" for number in range(6)]
    others = [trial.last_attempt for trial in search.trials if trial.kind is TrialKind.SEARCH]
    assert len(set(job_ids(others))) == 4
    assert shared.job_id not in job_ids(others)


def test_the_steps_run_one_after_another_on_the_same_nodes(rig):
    steps = repeat_attempts(rig.open_driver().run())
    assert len({step.nodes for step in steps}) == 1
    assert all(one.ended_at <= other.started_at for one, other in pairwise(steps))


def test_a_shared_job_asks_for_the_sum_of_the_repeats_and_one_more(rig):
    rig.open_driver().run()
    limit_s = TIME_LIMIT_FACTOR * TRIAL_S + TIME_LIMIT_MARGIN_S
    [shared] = rig.shared_jobs()
    assert shared.request.time_limit_s == (6 + 1) * (limit_s + STEP_ENDING_S) + STARTUP_S + ROOM_S


def test_a_shared_job_asks_for_no_more_than_the_budget_has_left(rig):
    rig.limits = replace(rig.limits, budget_node_hours=0.6)
    search = rig.open_driver().run()
    rig.check_shared(search)
    [shared] = rig.shared_jobs()
    assert 0.4 * 3600 < shared.request.time_limit_s < 0.6 * 3600


def test_a_shared_job_has_the_nodes_of_the_largest_finalist(tmp_path):
    rig = with_finals(tmp_path)
    large = Layout(num_nodes=2, data_parallel=8, micro_batch_size=1, grad_accum_steps=2)
    rig.layouts, rig.num_nodes = (*LAYOUTS[:2], large), 4
    rig.first = ()
    rig.script = lambda spec, restart: Script(TRIAL_S, tokens_per_sec=1000.0 * spec.layout.num_nodes)
    search = rig.open_driver().run()
    rig.check_shared(search)
    [shared] = rig.shared_jobs()
    assert {trial.layout.num_nodes for trial in repeats(search)} == {1, 2}
    assert shared.request.num_nodes == 2


def test_a_run_that_replaces_a_suspect_one_is_a_job_of_its_own(rig):
    def script(spec, restart):
        flags = (Flag.SUSPECT_NODE,) if spec.trial == "t0002" else ()
        return Script(duration_s=TRIAL_S, tokens_per_sec=4000.0 - speed_of(spec), flags=flags)

    rig.script = script
    search = rig.open_driver().run()
    rig.check_shared(search)
    rerun, *finals = repeat_attempts(search)
    assert "." not in str(rerun.job_id)
    assert {*job_ids(finals)} == {rig.shared_jobs()[0].job_id}


def test_without_finals_no_job_is_shared(rig):
    rig.limits = replace(rig.limits, finalists=0)
    rig.check_shared(rig.open_driver().run())
    assert rig.shared_jobs() == []


# -- the end of a job


def test_attempts_not_begun_when_the_job_has_no_room_left_wait_for_the_next_job(rig):
    rig.longest_s = TIME_LIMIT_FACTOR * TRIAL_S + TIME_LIMIT_MARGIN_S + ROOM_S + 20.0
    search = rig.open_driver().run()
    rig.check_shared(search)
    first, second = rig.shared_jobs()
    in_second = [a for a in repeat_attempts(search) if job_ids([a]) == [second.job_id]]
    assert in_second[0].submitted_at < first.ended_at, "it was to be a step of the first"
    assert [len(trial.attempts) for trial in repeats(search)] == [1] * 6
    assert {trial.state for trial in repeats(search)} == {TrialState.MEASURED}


@pytest.mark.parametrize(
    ("end", "reason"),
    [("cancel", FailureReason.INTERRUPTED), ("preempt", FailureReason.PREEMPTED), ("node", FailureReason.INTERRUPTED)],
)
def test_only_the_step_that_runs_when_the_job_ends_is_retried(rig, end, reason):
    """Two repeats are in flight: one runs, the other waits for its turn and keeps its only attempt."""

    def end_job() -> None:
        [shared] = rig.shared_jobs()
        if end == "cancel":
            rig.cluster.cancel(shared.job_id)
        elif end == "preempt":
            rig.cluster.preempt(shared.job_id)
        else:
            rig.cluster.fail_node(shared.run.nodes[0])

    ends_at: list[float] = []

    def on_event(search, event) -> None:
        if not ends_at and any(a.state is TrialState.RUNNING for a in repeat_attempts(search)):
            ends_at.append(rig.cluster.time + 20.0)
            rig.cluster.at(ends_at[0], end_job)

    rig.callbacks = DriverCallbacks(on_event=on_event)
    search = rig.open_driver().run()
    rig.check_shared(search)
    first, waiting = repeats(search)[:2]
    assert [attempt.reason for attempt in first.attempts] == [reason, None]
    assert [attempt.reason for attempt in waiting.attempts] == [None]
    assert waiting.last_attempt.submitted_at < ends_at[0]
    assert len(rig.shared_jobs()) == 2
    assert policy_of(reason).retries > 1


def test_a_job_that_is_preempted_before_its_first_step_costs_no_retry(rig):
    """Interrupted attempts may be tried again without limit; what the job held is booked."""
    rig.startup_s = 100.0

    def preempt_twice() -> None:
        for job in rig.shared_jobs()[:2]:
            if job.run and not job.state.is_ended and rig.cluster.cluster_time - job.started_at >= 50.0:
                rig.cluster.preempt(job.job_id)
        rig.cluster.at(rig.cluster.time + 5.0, preempt_twice)

    preempt_twice()
    search = rig.open_driver().run()
    rig.check_shared(search)
    assert len(rig.shared_jobs()) == 3
    interrupted = [attempt for attempt in repeat_attempts(search) if attempt.reason is not None]
    assert {attempt.reason for attempt in interrupted} == {FailureReason.INTERRUPTED}
    assert {trial.state for trial in repeats(search)} == {TrialState.MEASURED}


# -- the end of the search


@pytest.mark.parametrize("seconds", [0.5, 2.0, 30.0, 70.0])
def test_a_search_cancelled_in_its_finals_leaves_nothing(rig, seconds):
    cancel_at: list[float] = []

    def on_event(search, event) -> None:
        if repeats(search) and not cancel_at:
            cancel_at.append(rig.cluster.time + seconds)

    is_due = lambda: bool(cancel_at) and rig.cluster.time >= cancel_at[0]  # noqa: E731
    rig.callbacks = DriverCallbacks(on_event=on_event, cancel_requested=is_due)
    search = rig.open_driver().run()
    rig.check_shared(search)
    assert search.state is SearchState.CANCELLED
    assert {a.reason for a in repeat_attempts(search)} <= {FailureReason.CANCELLED_BY_USER, None}


@pytest.mark.parametrize(("budget", "num_repeats"), [(0.21, 0), (0.35, 1), (0.7, 2), (1.2, 6)])
def test_the_finals_stay_within_the_budget(rig, budget, num_repeats):
    """An attempt in a shared job reserves what it would pay alone in it, the late start of its agent included."""
    rig.startup_s = 280.0
    rig.script = lambda spec, restart: Script(
        duration_s=400.0 if spec.kind is TrialKind.REPEAT else TRIAL_S, tokens_per_sec=4000.0 - speed_of(spec)
    )
    rig.limits = replace(rig.limits, parallel_trials=1, budget_node_hours=budget)
    search = rig.open_driver().run()
    rig.check_shared(search)
    assert sum(trial.state is TrialState.MEASURED for trial in repeats(search)) == num_repeats


def test_a_driver_killed_at_the_very_end_leaves_a_job_that_the_next_one_ends(rig, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("orchestrator.launchers.slurm_pilot.launcher.SlurmPilotLauncher.release", lambda _: True)
        assert rig.open_driver().run().state.is_ended
    assert [job.state.is_ended for job in rig.shared_jobs()] == [False]
    rig.open_driver()
    assert rig.launcher.cancel_leftovers() == []
    rig.cluster.advance(10.0)
    assert [job.state.is_ended for job in rig.shared_jobs()] == [True]


# -- crashes


def eventful(path: Path) -> SharedJobsRig:
    """Finals whose shared job is cancelled by others while its first step runs."""
    rig = with_finals(path)

    def cancel_first() -> None:
        [first, *others] = rig.shared_jobs() or [None]
        if first is not None and first.run and rig.cluster.cluster_time - first.started_at >= 20.0:
            rig.cluster.cancel(first.job_id)
        elif not others:
            rig.cluster.at(rig.cluster.time + 5.0, cancel_first)

    cancel_first()
    return rig


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> tuple[list[tuple], dict[str, int]]:
    """Story of the search without a kill, and the number of calls at each kill point."""
    rig = eventful(tmp_path_factory.mktemp("undisturbed") / "rig")
    search, calls = undisturbed(rig.open_driver().run, KILL_POINTS)
    rig.check_shared(search)
    assert len(search.trials) == 10
    assert len(rig.shared_jobs()) == 2
    assert min(calls.values()) > 1, "each kill point is reached"
    return story(search), calls


@pytest.mark.slow
@walks(KILL_POINTS, every_call, one_call)
def test_killed_at_a_call_and_resumed_the_search_is_the_same(tmp_path, wanted, name, after, killed_at):
    undisturbed_story, calls = wanted
    for number in killed_at(calls[name])[:: KILL_POINTS[name][2]]:
        rig = eventful(tmp_path / str(number))
        search = kill_and_resume(rig, name, KillPoint(number, after), KILL_POINTS)
        rig.check_shared(search)
        assert story(search) == undisturbed_story, f"call {number} of {calls[name]}"


def test_a_killed_driver_leaves_its_step_running_and_the_next_one_goes_on_in_the_same_job(rig):
    driver = rig.open_driver()
    driver.recover()
    while not any(a.state is TrialState.RUNNING for a in repeat_attempts(driver.search)):
        driver.iterate()
        rig.launcher.wait(rig.launcher.iteration_interval_s)
    rig.cluster.advance(100.0)
    search = rig.open_driver().run()
    rig.check_shared(search)
    assert {*job_ids(repeat_attempts(search))} == {rig.shared_jobs()[0].job_id}
    assert len(attempts_of(search)) == 10
