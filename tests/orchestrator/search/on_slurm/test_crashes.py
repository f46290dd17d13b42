"""Kill the driver before and after every call to the outside, and resume: the search is the same."""

from __future__ import annotations

import pytest

from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import Limits
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.kill_points import (
    KILL_POINTS,
    KillPoint,
    eventful,
    every_call,
    kill_and_resume,
    story,
    two_calls,
    undisturbed,
    walks,
)
from tests.orchestrator.search.slurm_rig import SlurmRig, slurm_rig
from trials.trial import FailureReason

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> tuple[list[tuple], dict[str, int]]:
    """Story of the search without a kill, and the number of calls at each kill point."""
    search, calls = undisturbed(eventful(tmp_path_factory.mktemp("undisturbed") / "rig").open_driver().run)
    assert len(search.trials) == 5
    assert min(calls[name] for name in KILL_POINTS if name != "scancel") > 3, "each kill point is reached"
    return story(search), calls


@walks([name for name in KILL_POINTS if name != "scancel"], every_call, two_calls)
def test_killed_at_any_call_and_resumed_the_search_is_the_same(tmp_path, wanted, name, after, killed_at):
    undisturbed_story, calls = wanted
    for number in killed_at(calls[name]):
        rig = eventful(tmp_path / str(number))
        search = kill_and_resume(rig, name, KillPoint(number, after))
        rig.check(search)
        assert story(search) == undisturbed_story, f"call {number} of {calls[name]}"


def cancelling(path) -> SlurmRig:
    """Three endless jobs, cancelled by the user."""
    path.mkdir()
    rig = slurm_rig(path)
    rig.limits, rig.script = Limits(9, 3), lambda spec, restart: Script(duration_s=None)
    rig.callbacks = DriverCallbacks(cancel_requested=lambda: rig.cluster.time > began(rig) + 40)
    return rig


CANCELS = ("scancel", "an event into the journal", "squeue")


@pytest.fixture(scope="module")
def calls_of_a_cancel(tmp_path_factory) -> dict[str, int]:
    calls = undisturbed(cancelling(tmp_path_factory.mktemp("undisturbed") / "rig").open_driver().run)[1]
    assert min(calls[name] for name in CANCELS) > 0, "each kill point is reached"
    return calls


@walks(CANCELS, every_call, two_calls)
def test_killed_while_it_cancels_and_resumed_nothing_is_left(tmp_path, calls_of_a_cancel, name, after, killed_at):
    for number in killed_at(calls_of_a_cancel[name]):
        rig = cancelling(tmp_path / str(number))
        search = kill_and_resume(rig, name, KillPoint(number, after), away_s=0.0)
        rig.check(search)
        assert {trial.reason for trial in search.trials} == {FailureReason.CANCELLED_BY_USER}


def began(rig: SlurmRig) -> float:
    return min((job.submitted for job in rig.cluster.jobs()), default=rig.cluster.time)
