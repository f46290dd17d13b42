"""Use of the node-hours of a search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from search_spaces.layouts.layout import Layout
from tests.kit import metrics
from trials.analysis.node_time import node_time
from trials.ranks.startup import StartupPart
from trials.trial import Attempt, FailureReason, Outcome, OutcomeStatus, Trial, TrialState

PARTS = {"import": 36.0, "rendezvous": 3.6, "warmup": 18.0}


def attempt(
    state: TrialState = TrialState.MEASURED,
    reason: FailureReason | None = None,
    step_times_s: tuple[float, ...] = (),
    node_hours: float | None = 0.5,
    **fields: Any,
) -> Attempt:
    """An attempt on two nodes, charged half a node-hour; `fields` are those of its measurement."""
    measured = metrics(1000.0, 9.0, **{"warmup_steps": 2, "measured_steps": 10, "startup_parts_s": PARTS} | fields)
    status = OutcomeStatus.MEASURED if reason is None else OutcomeStatus.FAILED
    told = {"reason": reason, "measured": measured, "step_times_s": step_times_s}
    outcome = Outcome("s", "t0001", "a1", "0" * 32, status, **told)
    ends = {"state": state, "reason": reason, "outcome": outcome, "node_hours": node_hours}
    return Attempt("t0001", "a1", "0" * 32, 2, 600.0, **ends)


def trial(*attempts: Attempt) -> Trial:
    return Trial("t0001", Layout(), attempts=attempts)


def test_a_trial_measures_in_its_measured_steps_as_long_as_they_were():
    found = node_time([trial(attempt())])
    assert found.measured == pytest.approx(2 * 10 * 9.0 / 3600)
    assert found.measured_share == pytest.approx(0.1)
    assert found.startup == pytest.approx({"import": 0.02, "rendezvous": 0.002, "warmup": 0.01})
    assert list(found.startup) == [StartupPart.IMPORT, StartupPart.RENDEZVOUS, StartupPart.WARMUP]
    assert (found.unmeasured, found.idle) == (0.0, 0.0)
    times = (50.0, 5.0, *[1.0, 2.0] * 5, 100.0)
    assert node_time([trial(attempt(step_times_s=times))]).measured == pytest.approx(2 * 15.0 / 3600)
    found = node_time([trial(attempt(TrialState.FAILED, FailureReason.PRUNED))])
    assert (found.measured_share, found.unmeasured) == (pytest.approx(0.1), 0.0)
    assert node_time([trial(attempt(node_hours=0.01))]).measured_share == 1.0


@pytest.mark.parametrize("reason", [FailureReason.NODE_FAILURE, FailureReason.RESULT_INVALID])
def test_a_failed_attempt_measures_nothing_whatever_its_outcome_says(reason):
    found = node_time([trial(attempt(TrialState.FAILED, reason), attempt())])
    assert found.unmeasured == 0.5
    assert found.measured_share == pytest.approx(0.05)
    assert found.startup[StartupPart.IMPORT] == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("others", "name", "hours", "share"),
    [
        ({"idle_pilots": [0.375, 0.125]}, "idle", 0.5, 0.05),
        ({"idle_pilots": [-0.25]}, "idle", 0.0, 0.2),  # attempts paid more than their pilot held
        ({"driver_node_hours": 0.5}, "drivers", 0.5, 0.05),
        ({"fabric_check_node_hours": 0.5}, "fabric_check", 0.5, 0.05),
    ],
)
def test_pilots_that_idle_drivers_and_the_fabric_check_are_part_of_the_whole(others, name, hours, share):
    found = node_time([trial(attempt())], others.pop("idle_pilots", ()), **others)
    assert (getattr(found, name), found.unmeasured) == (hours, 0.0)
    assert found.measured_share == pytest.approx(share)


def test_what_is_unknown_is_absent_and_no_share_known_before_a_charge():
    assert node_time([trial(attempt(startup_parts_s=None))]).startup == {}
    found = node_time([trial(attempt(startup_parts_s={"build": 1.0})), trial(attempt(startup_parts_s={"build": 2.0}))])
    assert found.startup == pytest.approx({"build": 2 * 3.0 / 3600})
    assert found.to_json()["startup_node_hours"] == pytest.approx({"build": 2 * 3.0 / 3600})
    assert node_time([]).measured_share is None
    running = replace(attempt(TrialState.RUNNING), outcome=None, node_hours=None)
    found = node_time([trial(running)]).to_json()
    assert (found.pop("measured_share"), found.pop("startup_node_hours"), {*found.values()}) == (None, {}, {0.0})


def test_what_preemption_and_requeues_cost_is_apart_from_other_attempts_without_a_measurement():
    preempted = replace(attempt(TrialState.FAILED, FailureReason.PREEMPTED), outcome=None, node_hours=0.5)
    requeued = replace(
        attempt(TrialState.FAILED, FailureReason.HANG), outcome=None, node_hours=1.0, earlier_node_hours=0.25
    )
    found = node_time([trial(preempted), trial(requeued)])
    assert (found.preempted, found.unmeasured, found.total) == (0.75, 0.75, 1.5)
