"""Kill the driver of a search in pilots before and after a call to the outside, and resume: the search is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.launchers.slurm_pilot import allocation, allocations, launcher
from orchestrator.search import attempt_factory
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import Limits
from slurm.fake.client import FakeSlurm
from tests.orchestrator.search.kill_points import (
    KillPoint,
    counting,
    every_call,
    kill_and_resume,
    one_call,
    one_does_not_fit,
    story,
    undisturbed,
    walks,
)
from tests.orchestrator.search.pilot_rig import PilotRig, pilot_rig
from tests.orchestrator.search.rig import Killed
from trials.ledger.journal import Journal
from trials.ledger.writer import LedgerWriter
from trials.trial import FailureReason, TrialState

pytestmark = pytest.mark.slow

KILL_POINTS: dict[str, tuple[object, str, int]] = {
    "an event into the journal": (Journal, "append", 17),
    "an event into the ledger": (LedgerWriter, "apply", 19),
    "spec.json": (attempt_factory, "write_json", 2),
    "job.sh of a step": (launcher, "write_job_files", 2),
    "a step's request": (launcher, "write", 2),
    "pilot.json": (allocations, "write", 1),
    "job.sh of a pilot": (allocation, "write_text", 1),
    "job.json and job_end.json": (allocations, "write_json", 1),
    "sbatch --test-only": (FakeSlurm, "test", 1),
    "sbatch": (FakeSlurm, "submit", 1),
    "squeue": (FakeSlurm, "jobs", 7),
    "scontrol": (FakeSlurm, "describe", 1),
}
"""The driver's kill points, and the calls killed: every one, or a sample of frequent ones."""


def eventful(path: Path) -> PilotRig:
    """A short search with an out-of-memory layout, a pilot cancelled by others, and repeats of the best layout."""
    path.mkdir()
    rig = pilot_rig(path)
    rig.limits = Limits(4, 2, budget_node_hours=6.0, finalists=1, finalist_repeats=1)

    rig.script = one_does_not_fit
    rig.cluster.at(rig.cluster.time + 150, lambda: _cancel_the_last(rig))
    return rig


def _cancel_the_last(rig: PilotRig) -> None:
    running = [job for job in rig.cluster.jobs() if job.run and not job.state.is_ended]
    if running:
        rig.cluster.cancel(running[-1].job_id)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> tuple[list[tuple], dict[str, int]]:
    """Story of the search without a kill, and the number of calls at each kill point."""
    rig = eventful(tmp_path_factory.mktemp("undisturbed") / "rig")
    search, calls = undisturbed(rig.open_driver().run, KILL_POINTS)
    rig.check_pilots(search)
    assert len(search.trials) == 5
    assert {job.request.name for job in rig.cluster.jobs()} == {"rig-aaaaaa.p0001", "rig-aaaaaa.p0002"}
    assert min(calls.values()) > 1, "each kill point is reached"
    return story(search), calls


@walks(KILL_POINTS, every_call, one_call)
def test_killed_at_a_call_and_resumed_the_search_in_pilots_is_the_same(tmp_path, wanted, name, after, killed_at):
    undisturbed_story, calls = wanted
    for number in killed_at(calls[name])[:: KILL_POINTS[name][2]]:
        rig = eventful(tmp_path / str(number))
        search = kill_and_resume(rig, name, KillPoint(number, after), KILL_POINTS)
        rig.check_pilots(search)
        assert story(search) == undisturbed_story, f"call {number} of {calls[name]}"


@pytest.mark.walks
def test_what_pilots_held_that_never_served_is_booked_although_no_other_comes(tmp_path):
    rig = eventful(tmp_path / "rig")
    rig.startup_s = None
    search = rig.open_driver().run()
    rig.check_pilots(search)
    assert rig.slurm.used_node_s("rig-aaaaaa.p0001") > 0.0
    assert search.best_trial is None


@pytest.mark.parametrize("startup_s", [100.0, None], ids=["late", "never"])
@pytest.mark.parametrize("seconds", [1, 40])
def test_what_a_pilot_held_that_nobody_waits_for_any_more_is_booked(tmp_path, startup_s, seconds):
    """Cancel the search while its first pilot starts: no next one is submitted."""
    rig = eventful(tmp_path / "rig")
    rig.startup_s = startup_s
    began = rig.cluster.time
    rig.callbacks = DriverCallbacks(cancel_requested=lambda: rig.cluster.time > began + seconds)
    search = rig.open_driver().run()
    rig.check_pilots(search)
    assert rig.slurm.used_node_s("rig-aaaaaa.p0001") > 0.0
    assert {a.reason for t in search.trials for a in t.attempts} == {FailureReason.CANCELLED_BY_USER}


@pytest.mark.parametrize(
    ("after_s", "reason"),
    [(20.0, FailureReason.CANCELLED_BY_USER), (400.0, FailureReason.INTERRUPTED)],
    ids=["while it starts", "once it has ended by itself"],
)
def test_what_a_pilot_held_of_which_its_driver_could_not_tell_any_more_is_booked(tmp_path, after_s, reason):
    """Kill the driver before the pilot's id is recorded, then cancel the search: no step starts in the pilot."""
    rig = eventful(tmp_path / "rig")
    rig.startup_s, kill_point = 50.0, KillPoint(1, after=False)
    with counting("job.json and job_end.json", kill_point, KILL_POINTS), pytest.raises(Killed):
        rig.open_driver().run()
    rig.cluster.advance(after_s)
    rig.callbacks = DriverCallbacks(cancel_requested=lambda: True)
    search = rig.open_driver().run()
    rig.check_pilots(search)
    assert rig.slurm.used_node_s("rig-aaaaaa.p0001") > 0.0
    assert search.trials[0].attempts[0].reason is reason


def test_what_a_pilot_held_that_was_drained_before_anything_began_in_it_is_booked(tmp_path):
    """Kill the driver and leave the next one too little of the pilot's time: the last pilot follows."""
    rig = pilot_rig(tmp_path)
    rig.startup_s, rig.longest_s, rig.limits = 280.0, 1.0, Limits(1, 1)
    with counting("squeue", KillPoint(3, after=True), KILL_POINTS), pytest.raises(Killed):
        rig.open_driver().run()
    rig.cluster.advance(320.0)
    search = rig.open_driver().run()
    rig.check_pilots(search)
    held_s = rig.slurm.used_node_s("rig-aaaaaa.p0001")
    assert {job.request.name for job in rig.cluster.jobs()} == {"rig-aaaaaa.p0001", "rig-aaaaaa.p0002"}
    first, second = search.trials[0].attempts
    assert (first.reason, second.state) == (FailureReason.INTERRUPTED, TrialState.MEASURED)
    assert first.node_hours == pytest.approx(held_s / 3600)


@pytest.fixture
def waiting(tmp_path, monkeypatch) -> PilotRig:
    """Kill a driver while it ends the pilot that its cancelled search had waited for."""
    rig = eventful(tmp_path / "rig")
    rig.startup_s, rig.limits = None, Limits(1, 1)
    began = rig.cluster.time
    rig.callbacks = DriverCallbacks(cancel_requested=lambda: rig.cluster.time > began + 30)
    with monkeypatch.context() as patched:
        patched.setattr(FakeSlurm, "cancel", KillPoint(1, after=False).guard(FakeSlurm.cancel))
        with pytest.raises(Killed):
            rig.open_driver().run()
    return rig


@pytest.fixture
def idle(tmp_path, monkeypatch) -> PilotRig:
    """End a search while the state of its pilot is unknown, and kill its driver then."""
    rig = eventful(tmp_path / "rig")
    rig.limits = Limits(1, 1)
    with monkeypatch.context() as patched:
        patched.setattr(launcher.SlurmPilotLauncher, "release", lambda _: True)
        assert rig.open_driver().run().state.is_ended
    return rig


@pytest.mark.parametrize("left", ["idle", "waiting"])
def test_pilots_of_a_driver_killed_at_the_very_end_are_ended_by_whoever_releases_them(left, request):
    rig = request.getfixturevalue(left)
    assert [job.state.is_ended for job in rig.cluster.jobs()] == [False]
    rig.open_driver()
    assert rig.launcher.cancel_leftovers() == []
    rig.cluster.advance(10.0)
    assert [job.state.is_ended for job in rig.cluster.jobs()] == [True]


def test_a_pilot_that_slurm_does_not_end_is_named(waiting):
    rig = waiting
    rig.cluster.controller_down(for_s=3600.0)
    rig.open_driver()
    assert rig.launcher.cancel_leftovers() == ["rig-aaaaaa.p0001"]
