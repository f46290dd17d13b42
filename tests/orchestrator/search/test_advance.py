"""A search driven by cron: a new driver for every step ends it as a permanent one would."""

from __future__ import annotations

import pytest

from orchestrator.launchers.slurm.submissions import CONFIRM_WINDOW_S
from orchestrator.search.stopping import Limits
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.on_slurm.test_crashes import advanced, eventful
from tests.rig import POLL_S, Rig
from trials.trial import TrialState

pytestmark = pytest.mark.slow

MINUTE = 60.0


@pytest.fixture
def rig(tmp_path) -> Rig:
    return Rig("jobs", tmp_path, Limits(1, 1), settings={"min_job_age_s": 86400.0})


def turn(rig: Rig):
    return advanced(rig, lambda search: True)


@pytest.mark.parametrize("every_s", [15.0, 5 * MINUTE])
def test_turns_find_what_one_driver_finds(tmp_path, every_s):
    stays = eventful("jobs", tmp_path / "stays").run()
    rig = eventful("turns", tmp_path / "turns")
    search = advanced(rig, every_s=every_s)
    rig.check(search)
    layouts, others = ({(t.layout.key, t.kind) for t in each.trials} for each in (search, stays))
    assert layouts == others
    assert search.trial(search.best_trial).layout == stays.trial(stays.best_trial).layout
    assert search.end_reason is stays.end_reason


def test_a_turn_that_finds_nothing_new_only_takes_over(rig):
    rig.limits, rig.script = Limits(2, 2), lambda spec, restart: Script(duration_s=None)
    searches = []
    for _ in range(3):
        searches.append(turn(rig))
        rig.cluster.advance(MINUTE)
    _, before, after = searches
    assert after.last_seq == before.last_seq + 1
    assert after.trials == before.trials


def test_a_submission_that_never_was_is_repeated_once_the_turns_have_waited_long_enough(rig):
    rig.slurm.submissions_time_out(1, appears_after_s=None)
    turn(rig)
    began = rig.cluster.time
    advanced(rig, lambda search: search.in_flight[0].state is not TrialState.SUBMITTED, every_s=10.0)
    assert CONFIRM_WINDOW_S <= rig.cluster.time - began <= CONFIRM_WINDOW_S + 2 * POLL_S
    rig.check(advanced(rig))
