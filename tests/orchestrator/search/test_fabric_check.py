"""The fabric check of a search: before the first trial, exactly once, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from orchestrator.launchers.base import LaunchRequest
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.fabric_check import FabricProgram
from orchestrator.search.stopping import Limits
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.hardware.links import Fabric, Links
from tests.orchestrator.scripted import Script
from tests.rig import Rig, assert_kills_change_nothing
from trials.diagnostics.fabric import ExchangeTime, FabricTimes, exchanges_of
from trials.ledger.events import EndReason, EventKind, SearchRecord, SearchState
from trials.ledger.journal import Journal
from trials.ledger.reader import LedgerReader
from trials.trial import FailureReason, TrialState


def time_of(exchange) -> ExchangeTime:
    num_bytes = exchange.small_bytes if exchange.is_small else 2**20
    return ExchangeTime(exchange, num_bytes, (0.5,) * len(exchange.groups(4, 8)))


WHOLE = FabricTimes(("n1",) * 4 + ("n2",) * 4, tuple(map(time_of, exchanges_of([], 4, 2)))).to_json()
TIMES = WHOLE["times"]
LINKS = json.loads(json.dumps(Links((), Fabric(2.0, 5.0)).to_json()))
FOUND: dict[str, Any] = {"slow_nodes": ["n2"], "num_available": 2, "findings": ["n2 is slow"], "links": LINKS}


def checking(path, files: Mapping[str, str], found: dict[str, Any] = FOUND, **check: Any) -> Rig:
    """A search whose check leaves these files and goes by this script."""
    program = FabricProgram(Cluster(ACCELERATORS["cpu"], 4, 2), {"kind": "fabric_check", "shapes": []}, lambda _: found)
    rig = Rig("scripted", path, Limits(max_trials=2, parallel_trials=1), fabric_check=program, num_nodes=2)

    def look(request: LaunchRequest, number: int) -> None:
        for name, text in files.items():
            (request.folder.path / name).write_text(text)

    of_check = Script(**{"duration_s": 90.0, "leaves_outcome": False, "look": look, **check})
    rig.script = lambda spec, restart: of_check if spec.trial == "t0000" else Script(duration_s=60.0)
    return rig


def passing(path, found: dict[str, Any] = FOUND) -> Rig:
    return checking(path, {"fabric.json": json.dumps(WHOLE)}, found)


def launched(rig: Rig) -> list[str]:
    return [key.split(".", 1)[1] for key in rig.launcher.launched]


def test_it_is_the_first_job_and_trials_avoid_the_slow_node(tmp_path):
    rig = passing(tmp_path)
    search = rig.run()
    assert search.state is SearchState.COMPLETED
    assert launched(rig) == ["t0000.a1", "t0001.a1", "t0002.a1"]
    first, *trials = rig.launcher.requests
    assert first.argv[1:3] == ("-m", "trials.train")
    assert (first.spec.num_nodes, first.spec.num_gpus, first.exclude) == (2, 8, ())
    assert [request.exclude for request in trials] == [("n2",), ("n2",)]
    check = search.fabric_check
    assert (check.attempt.state, check.slow_nodes, check.links) == (TrialState.MEASURED, ("n2",), LINKS)
    assert check.attempt.node_hours == pytest.approx(2 * 90 / 3600)
    assert search.node_hours_used == pytest.approx((2 * 90 + 2 * 60) / 3600)
    with closing(LedgerReader(f"sqlite:///{tmp_path / 'ledger.db'}")) as reader:
        assert reader.search(search.search_id).fabric_check == check


def test_nothing_is_avoided_where_too_few_nodes_would_be_left(tmp_path):
    rig = passing(tmp_path, {**FOUND, "num_available": 1})
    rig.run()
    assert [request.exclude for request in rig.launcher.requests] == [()] * 3


@pytest.mark.parametrize("reason", [None, FailureReason.SCRIPT_ERROR, FailureReason.TIME_LIMIT])
def test_a_check_that_fails_is_told_and_the_search_goes_on(tmp_path, caplog, reason):
    search = checking(tmp_path, {}, reason=reason).run()
    assert search.state is SearchState.COMPLETED
    told = reason or FailureReason.RESULT_INVALID
    assert (search.fabric_check.attempt.reason, search.fabric_check.links) == (told, None)
    assert f"the fabric check failed: {told}" in caplog.text


DAMAGED_FABRIC = [
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
DAMAGED = [
    ("fabric.json", "[]"),
    *(("fabric.json", json.dumps(WHOLE | changes)) for changes in DAMAGED_FABRIC),
    ("outcome.r0.json", "{"),
    ("outcome.r0.json", json.dumps({"schema": "parlay.outcome/1", "reason": "a word nobody knows"})),
]


@pytest.mark.parametrize(("name", "text"), DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_files_of_a_check_are_no_times(tmp_path, caplog, name, text):
    search = checking(tmp_path, {name: text}).run()
    assert search.state is SearchState.COMPLETED
    assert search.fabric_check.attempt.reason is FailureReason.RESULT_INVALID
    assert name.partition(".")[0] in caplog.text


def test_a_check_that_the_machine_ended_is_launched_once_more(tmp_path):
    rig = checking(tmp_path, {}, reason=FailureReason.NODE_FAILURE)
    search = rig.run()
    assert launched(rig)[:3] == ["t0000.a1", "t0000.a2", "t0001.a1"]
    assert search.fabric_check.attempt.node_hours == pytest.approx(2 * 2 * 90 / 3600)


def test_a_budget_without_room_for_check_and_trial_has_trials_alone(tmp_path, caplog):
    rig = passing(tmp_path)
    rig.limits = Limits(max_trials=2, parallel_trials=1, budget_node_hours=0.4)
    assert rig.run().fabric_check is None
    assert len(rig.launcher.launched) == 2
    assert "no fabric check: it may cost 0.358 node-hours" in caplog.text


def test_a_cancelled_search_ends_its_check(tmp_path):
    rig = passing(tmp_path)
    rig.callbacks = DriverCallbacks(cancel_requested=lambda: bool(rig.launcher.launched))
    search = rig.run()
    assert search.state is SearchState.CANCELLED
    assert search.fabric_check.attempt.reason is FailureReason.CANCELLED_BY_USER
    assert launched(rig) == ["t0000.a1"]
    assert not search.trials


def test_an_interrupt_waits_for_the_check_and_the_next_driver_goes_on(tmp_path):
    rig = passing(tmp_path)

    def interrupt(search, event) -> None:
        if event.kind is EventKind.FABRIC_CHECK:
            driver.interrupt()

    rig.callbacks = DriverCallbacks(on_event=interrupt)
    driver = rig.open_driver()
    search = driver.run()
    rig.callbacks = DriverCallbacks()
    assert (search.fabric_check.attempt.state, search.trials) == (TrialState.MEASURED, ())
    assert rig.run().state is SearchState.COMPLETED
    assert len(rig.launcher.launched) == 3


def test_a_driver_killed_after_any_event_repeats_nothing(tmp_path):
    def story(rig: Rig, search: SearchRecord) -> tuple[Any, ...]:
        check, events = search.fabric_check, Journal(rig.folder.journal).read()
        states = [event.data["state"] for event in events if event.kind is EventKind.FABRIC_CHECK]
        assert (states, len(rig.launcher.launched)) == (["submitted", "queued", "running", "measured"], 3)
        return check.attempt.node_hours, check.slow_nodes, check.links, len(search.trials), search.state

    is_due = lambda event: event.kind is EventKind.FABRIC_CHECK  # noqa: E731
    assert_kills_change_nothing(lambda name: passing(tmp_path / name), story, is_due)


def test_a_check_that_waits_for_a_pilot_that_the_budget_does_not_cover_is_given_up(tmp_path):
    rig = checking(tmp_path, {}, waits_s=1e6)
    rig.limits = Limits(max_trials=2, parallel_trials=1, budget_node_hours=1.0)
    rig.launcher.runs_steps = True
    rig.launcher.reservation_node_s = lambda *_: 1e6 if rig.launcher.launched else 0.0  # its pilot has died
    search = rig.run()
    assert search.fabric_check.attempt.reason is FailureReason.CANCELLED_BY_SEARCH
    assert search.end_reason is EndReason.BUDGET
    assert launched(rig) == ["t0000.a1"]
