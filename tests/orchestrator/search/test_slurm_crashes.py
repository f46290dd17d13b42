"""Kill the driver at every one of its doors, before and after every call, and resume: the search is the same."""

from __future__ import annotations

import pytest

from orchestrator.search.course import Hooks
from orchestrator.search.limits import Limits
from tests.orchestrator.search.doors import DOORS, Door, eventful, story, watched
from tests.orchestrator.search.scripted import Killed, Script
from tests.orchestrator.search.slurm_rig import SlurmRig, slurm_rig
from trials.trial import FailureReason


@pytest.mark.walks
@pytest.mark.timeout(240)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", [name for name in DOORS if name != "scancel"])
def test_killed_at_any_call_and_resumed_the_search_is_the_same(tmp_path, monkeypatch, name, after):
    (tmp_path / "undisturbed").mkdir()
    wanted = story(eventful(tmp_path / "undisturbed").open_driver().run())
    assert len(wanted) == 5
    for number in range(1, 500):
        (tmp_path / str(number)).mkdir()
        rig, door = eventful(tmp_path / str(number)), Door(number, after)
        try:
            with watched(name, door, monkeypatch):
                search = rig.open_driver().run()
        except Killed:
            rig.cluster.advance(7.0)
            search = rig.open_driver().run()
        rig.check(search)
        assert story(search) == wanted, f"killed {'after' if after else 'before'} call {number} of {name}"
        if door.calls < number:
            break
    assert number > 3, "the walk went through this door"


@pytest.mark.walks
@pytest.mark.timeout(60)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", ["scancel", "an event into the journal", "squeue"])
def test_killed_while_it_cancels_and_resumed_nothing_is_left(tmp_path, monkeypatch, name, after):
    for number in range(1, 100):
        (tmp_path / str(number)).mkdir()
        rig, door = slurm_rig(tmp_path / str(number)), Door(number, after)
        rig.limits, rig.script = Limits(9, 3), lambda spec, restart: Script(duration_s=None)
        rig.hooks = Hooks(cancel_requested=lambda rig=rig: rig.cluster.time > began(rig) + 40)
        try:
            with watched(name, door, monkeypatch):
                search = rig.open_driver().run()
        except Killed:
            search = rig.open_driver().run()
        rig.check(search)
        assert {trial.reason for trial in search.trials} == {FailureReason.CANCELLED_BY_USER}
        if door.calls < number:
            break


def began(rig: SlurmRig) -> float:
    return min((job.submitted for job in rig.cluster.jobs()), default=rig.cluster.time)
