"""A search driven by cron: a new driver for every step ends it as a permanent one would."""

from __future__ import annotations

import pytest

from orchestrator.launchers.slurm.submissions import CONFIRM_WINDOW_S
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import Limits
from tests.orchestrator.launchers.on_fake_slurm import POLL_S
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.kill_points import (
    KILL_POINTS,
    KillPoint,
    eventful,
    kill_and_resume,
    one_call,
    story,
    undisturbed,
    walks,
)
from tests.orchestrator.search.slurm_rig import SlurmRig, one_attempt, slurm_rig
from trials.ledger.events import EndReason, SearchRecord
from trials.trial import FailureReason, TrialState

pytestmark = pytest.mark.slow

MINUTE = 60.0


def advance(rig: SlurmRig) -> SearchRecord:
    """Advance the search by a driver of its own, which then releases the lease."""
    driver = rig.open_driver()
    search = driver.advance()
    rig.launcher.close()
    return search


def advance_until(rig: SlurmRig, is_reached, every_s: float = MINUTE, most: int = 500) -> SearchRecord:
    """Advance the search every `seconds`, as cron does."""
    for _ in range(most):
        search = advance(rig)
        if is_reached(search):
            return search
        rig.cluster.advance(every_s)
    raise AssertionError(f"still {story(search)} after {most} turns")


def advance_to_the_end(rig: SlurmRig, every_s: float = MINUTE) -> SearchRecord:
    return advance_until(rig, lambda search: search.state.is_ended, every_s)


@pytest.fixture
def rig(tmp_path) -> SlurmRig:
    return slurm_rig(tmp_path, min_job_age_s=86400.0)


@pytest.mark.parametrize("every_s", [15.0, MINUTE, 5 * MINUTE])
def test_turns_find_what_one_driver_finds(tmp_path, every_s):
    stays = eventful(tmp_path / "stays").open_driver().run()
    rig = eventful(tmp_path / "turns")
    search = advance_to_the_end(rig, every_s)
    rig.check(search)
    assert {(layout, kind) for _, layout, kind, _, _ in story(search)} == {
        (layout, kind) for _, layout, kind, _, _ in story(stays)
    }
    assert search.trial(search.best_trial).layout == stays.trial(stays.best_trial).layout
    assert search.end_reason is stays.end_reason


def test_a_space_that_is_exhausted_has_its_finals(rig):
    rig.limits = Limits(50, 4, finalists=2, finalist_repeats=1)
    search = advance_to_the_end(rig)
    rig.check(search)
    assert len(search.trials) == 9 + 2
    assert search.end_reason is EndReason.SPACE_EXHAUSTED


def test_a_turn_that_finds_nothing_new_only_takes_over(rig):
    rig.limits, rig.script = Limits(2, 2), lambda spec, restart: Script(duration_s=None)
    advance(rig)
    rig.cluster.advance(MINUTE)
    before = advance(rig)
    rig.cluster.advance(MINUTE)
    after = advance(rig)
    assert after.last_seq == before.last_seq + 1
    assert after.trials == before.trials


@pytest.mark.parametrize("appears_after_s", [0.0, 35.0])
def test_a_submission_without_an_answer_is_looked_for_by_the_turns_that_follow(rig, appears_after_s):
    rig.limits = Limits(1, 1)
    rig.slurm.submissions_time_out(1, appears_after_s)
    search = advance_to_the_end(rig)
    rig.check(search)
    assert one_attempt(search).state is TrialState.MEASURED
    assert len(rig.cluster.jobs()) == 1


def test_a_submission_that_never_was_is_repeated_once_the_turns_have_waited_long_enough(rig):
    rig.limits = Limits(1, 1)
    rig.slurm.submissions_time_out(1, appears_after_s=None)
    advance(rig)
    began = rig.cluster.time
    advance_until(rig, lambda search: search.in_flight[0].state is not TrialState.SUBMITTED, every_s=10.0)
    assert CONFIRM_WINDOW_S <= rig.cluster.time - began <= CONFIRM_WINDOW_S + 2 * POLL_S
    rig.check(advance_to_the_end(rig))


def test_a_queue_that_was_full_is_in_no_doubt(rig):
    rig.limits = Limits(1, 1)
    rig.slurm.submissions_busy(times=1)
    assert advance(rig).in_flight[0].state is TrialState.SUBMITTED
    rig.cluster.advance(1.0)
    assert advance(rig).in_flight[0].state is TrialState.QUEUED


def test_a_job_that_nobody_knows_any_more_is_lost_after_the_grace_and_not_before(tmp_path):
    rig = slurm_rig(tmp_path)
    rig.limits, rig.script = Limits(1, 1), lambda spec, restart: Script(duration_s=None)
    advance(rig)
    rig.cluster.accounting_down(10**9)
    rig.cluster.crash(loses_s=10**6)
    assert rig.cluster.jobs() == []
    gone = advance_until(rig, lambda search: search.in_flight[0].unknown_since is not None)
    since = rig.cluster.time
    ended = advance_until(rig, lambda search: search.trials[0].attempts[0].state.is_ended)
    assert gone.in_flight[0].attempt == "a1"
    assert ended.trials[0].attempts[0].reason is FailureReason.JOB_LOST
    assert 600.0 <= rig.cluster.time - since <= 600.0 + MINUTE


def test_a_user_who_cancels_is_obeyed_at_the_next_turn(rig):
    wanted = False
    rig.limits, rig.script = Limits(9, 3), lambda spec, restart: Script(duration_s=None)
    rig.callbacks = DriverCallbacks(cancel_requested=lambda: wanted)
    advance(rig)
    rig.cluster.advance(MINUTE)
    wanted = True
    search = advance_to_the_end(rig)
    rig.check(search)
    assert {trial.reason for trial in search.trials} == {FailureReason.CANCELLED_BY_USER}


def every_sixth_call(calls: int) -> range:
    """Every sixth call, so that all kill points together take seconds."""
    return range(1, calls + 1, 6)


@pytest.fixture(scope="module")
def calls_of_turns(tmp_path_factory) -> dict[str, int]:
    rig = eventful(tmp_path_factory.mktemp("undisturbed") / "rig")
    calls = undisturbed(lambda: advance_to_the_end(rig))[1]
    assert min(calls[name] for name in KILL_POINTS if name != "scancel") > 3, "each kill point is reached"
    return calls


@walks([name for name in KILL_POINTS if name != "scancel"], every_sixth_call, one_call)
def test_a_turn_that_is_killed_at_any_call_costs_nothing(tmp_path, calls_of_turns, name, after, killed_at):
    """The kill points of `test_crashes`, with a driver for every step."""
    for number in killed_at(calls_of_turns[name]):
        rig = eventful(tmp_path / str(number))
        search = kill_and_resume(rig, name, KillPoint(number, after), drive=advance_to_the_end)
        rig.check(search)
        assert len(search.trials) == 5, f"call {number} of {calls_of_turns[name]}"
