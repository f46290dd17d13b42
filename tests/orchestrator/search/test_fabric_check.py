"""The fabric check of a search: before the first trial, exactly once, and what follows from it."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal

import pytest

from orchestrator.launchers.base import LaunchRequest
from orchestrator.records.lookup import find_attempt
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import Limits
from search_spaces.hardware.links import Fabric, Links
from tests import kit
from tests.orchestrator.scripted import Script, fabric_times, outcome_of
from tests.rig import Rig, assert_kills_change_nothing
from trials.diagnostics.fabric import fabric_check_section
from trials.files.folders import write_json
from trials.ledger.events import FABRIC_CHECK, EndReason, Event, EventKind, SearchRecord, SearchState
from trials.ledger.journal import Journal
from trials.ledger.reader import LedgerReader
from trials.trial import FailureReason, TrialKind, TrialSpec, TrialState

LINKS = json.loads(json.dumps(Links((), Fabric(2.0, 5.0)).to_json()))
FOUND: dict[str, Any] = {"slow_nodes": ["n2"], "num_available": 2, "findings": ["n2 is slow"], "links": LINKS}


def checking(path, found: dict[str, Any] = FOUND, kind: Literal["scripted", "jobs"] = "scripted", **check: Any) -> Rig:
    """A search whose check goes by this script, at its first attempt."""
    rig = Rig(kind, path, Limits(max_trials=2, parallel_trials=1), found=found, num_nodes=2)

    def script(spec: TrialSpec, restart: int) -> Script:
        if spec.kind is not TrialKind.CHECK:
            return Script(duration_s=60.0)
        return Script(duration_s=90.0, **check) if spec.attempt == "a1" else Script(duration_s=90.0)

    rig.script = script
    return rig


def launched(rig: Rig) -> list[str]:
    return [key.split(".", 1)[1] for key in rig.launcher.launched]


def test_it_is_the_first_job_and_trials_avoid_the_slow_node(tmp_path):
    rig = checking(tmp_path)
    search = rig.run()
    assert search.state is SearchState.COMPLETED
    assert launched(rig) == ["t0000.a1", "t0001.a1", "t0002.a1"]
    first, *trials = rig.launcher.requests
    assert first.argv[1:3] == ("-m", "trials.train")
    assert (first.spec.num_nodes, first.spec.num_gpus, first.exclude) == (2, 8, ())
    assert [request.exclude for request in trials] == [("n2",), ("n2",)]
    check = search.fabric_check
    assert find_attempt(search, "t0000") == (check.trial, check.trial.attempts[0])
    assert check.trial.attempts[0].outcome.fabric is None, "its times are not in each row of the ledger"
    assert (check.trial.state, check.slow_nodes, check.links) == (TrialState.MEASURED, ("n2",), LINKS)
    assert check.node_hours == pytest.approx(2 * 90 / 3600)
    assert (search.num_layouts, len(search.trials)) == (2, 2)
    assert search.node_hours_used == pytest.approx((2 * 90 + 2 * 60) / 3600)
    with closing(LedgerReader(f"sqlite:///{tmp_path / 'ledger.db'}")) as reader:
        assert reader.search(search.search_id).fabric_check == check


def test_nothing_is_avoided_where_too_few_nodes_would_be_left(tmp_path):
    rig = checking(tmp_path, {**FOUND, "num_available": 1})
    rig.run()
    assert [request.exclude for request in rig.launcher.requests] == [()] * 3


@pytest.mark.parametrize("reason", [None, FailureReason.SCRIPT_ERROR, FailureReason.TIME_LIMIT])
def test_a_check_that_fails_is_told_and_the_search_goes_on(tmp_path, caplog, reason):
    search = checking(tmp_path, leaves_outcome=False, reason=reason).run()
    assert (search.state, len(search.trials)) == (SearchState.COMPLETED, 2)
    told = reason or FailureReason.SCRIPT_ERROR
    assert (search.fabric_check.trial.reason, search.fabric_check.links) == (told, None)
    assert f"the fabric check failed: {told}" in caplog.text


WHOLE = fabric_times(kit.trial(num_gpus=8, gpus_per_node=4, trainer=fabric_check_section([]))).to_json()
TIMES = WHOLE["times"]
DAMAGED: list[dict[str, Any] | None] = [
    None,
    {"schema": "parlay.fabric/0"},
    {"nodes": ["n1", "n2"]},
    {"times": [{"exchange": {"kind": "all_reduce"}}]},
    {"times": [TIMES[0] | {"seconds": [0.5] * 3}]},
    {"times": [TIMES[0] | {"seconds": [1e-320] * 2}]},
    {"times": [TIMES[0] | {"num_bytes": 10**400}]},
    {"times": [time | {"num_bytes": 16} for time in TIMES]},
    {"times": TIMES[1:]},
    {"times": TIMES * 2},
]


@pytest.mark.parametrize("changes", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_times_of_a_check_are_no_times(tmp_path, changes):
    def leave(request: LaunchRequest, number: int) -> None:
        outcome = outcome_of(request.spec, Script()).to_json()
        write_json(request.folder.outcome(), outcome | {"fabric": changes and WHOLE | changes})

    search = checking(tmp_path, leaves_outcome=False, look=leave).run()
    assert (search.state, len(search.trials)) == (SearchState.COMPLETED, 2)
    assert search.fabric_check.trial.reason is FailureReason.RESULT_INVALID


def test_a_check_that_the_machine_ended_is_launched_again(tmp_path):
    rig = checking(tmp_path, reason=FailureReason.NODE_FAILURE, leaves_outcome=False)
    search = rig.run()
    assert launched(rig)[:3] == ["t0000.a1", "t0000.a2", "t0001.a1"]
    assert [request.exclude for request in rig.launcher.requests[:2]] == [(), ()]
    assert search.fabric_check.links == LINKS
    assert search.fabric_check.node_hours == pytest.approx(2 * 2 * 90 / 3600)


def test_a_budget_without_room_for_check_and_trial_has_trials_alone(tmp_path, caplog):
    rig = checking(tmp_path)
    rig.limits = Limits(max_trials=2, parallel_trials=1, budget_node_hours=0.4)
    assert rig.run().fabric_check is None
    assert len(rig.launcher.launched) == 2
    assert "no fabric check: it may cost 0.358 node-hours" in caplog.text


def test_a_check_is_launched_again_once(tmp_path):
    rig = checking(tmp_path)
    failing, trials = Script(duration_s=90.0, reason=FailureReason.PREEMPTED, leaves_outcome=False), rig.script
    rig.script = lambda spec, restart: failing if spec.kind is TrialKind.CHECK else trials(spec, restart)
    rig.run()
    assert launched(rig) == ["t0000.a1", "t0000.a2", "t0001.a1", "t0002.a1"]


def test_a_check_is_not_launched_again_where_the_budget_has_no_room_for_it_and_a_trial(tmp_path):
    rig = checking(tmp_path, reason=FailureReason.NODE_FAILURE, leaves_outcome=False)
    rig.limits = Limits(max_trials=2, parallel_trials=1, budget_node_hours=0.55)
    search = rig.run()
    assert launched(rig) == ["t0000.a1", "t0001.a1", "t0002.a1"]
    assert search.fabric_check.trial.reason is FailureReason.NODE_FAILURE


def test_a_cancelled_search_ends_its_check(tmp_path):
    rig = checking(tmp_path)
    rig.callbacks = DriverCallbacks(cancel_requested=lambda: bool(rig.launcher.launched))
    search = rig.run()
    assert search.state is SearchState.CANCELLED
    assert search.fabric_check.trial.reason is FailureReason.CANCELLED_BY_USER
    assert launched(rig) == ["t0000.a1"]
    assert not search.trials


def test_an_interrupt_waits_for_the_check_and_the_next_driver_goes_on(tmp_path):
    rig = checking(tmp_path)

    def interrupt(search, event) -> None:
        if event.kind is EventKind.ATTEMPT_SUBMITTED:
            driver.interrupt()

    rig.callbacks = DriverCallbacks(on_event=interrupt)
    driver = rig.open_driver()
    search = driver.run()
    rig.callbacks = DriverCallbacks()
    assert (search.fabric_check.links, search.trials) == (LINKS, ())
    assert rig.run().state is SearchState.COMPLETED
    assert len(rig.launcher.launched) == 3


@pytest.mark.parametrize("kind", ["scripted", "jobs"])
def test_a_driver_killed_after_any_event_repeats_nothing(tmp_path, kind):
    def story(rig: Rig, search: SearchRecord) -> tuple[Any, ...]:
        events = [event.kind for event in Journal(rig.folder.journal).read() if is_of_check(event)]
        assert len(events) == len(set(events))
        assert len(rig.launcher.launched if kind == "scripted" else rig.own_jobs()) == 3
        return events, replace(search.fabric_check, trial=None), len(search.trials), search.state

    def is_of_check(event: Event) -> bool:
        return event.kind is EventKind.FABRIC_CHECK or event.data.get("trial") == FABRIC_CHECK

    assert_kills_change_nothing(lambda name: checking(tmp_path / name, kind=kind), story, is_of_check)


def test_a_check_that_waits_for_a_pilot_that_the_budget_does_not_cover_is_given_up(tmp_path):
    rig = checking(tmp_path, waits_s=1e6)
    rig.limits = Limits(max_trials=2, parallel_trials=1, budget_node_hours=1.0)
    rig.launcher.runs_steps = True
    rig.launcher.reservation_node_s = lambda *_: 1e6 if rig.launcher.launched else 0.0  # its pilot has died
    search = rig.run()
    assert (rig.launcher.cancelled, search.fabric_check.links) == (["rig-aaaaaa.t0000.a1"], None)
    assert search.end_reason is EndReason.BUDGET
    assert launched(rig) == ["t0000.a1"]
