"""The fabric check of a search: before the first trial, exactly once, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any

import pytest

from orchestrator.launchers.base import LaunchRequest
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.fabric_check import FabricProgram
from orchestrator.search.stopping import Limits
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.hardware.links import Fabric, Links
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.rig import Killed, Rig, kill_after
from trials.diagnostics.fabric import ExchangeTime, FabricTimes, exchanges_of
from trials.ledger.events import Event, EventKind, SearchState
from trials.ledger.journal import Journal
from trials.ledger.reader import LedgerReader
from trials.trial import FailureReason, TrialState

RANK_NODES = ("n1", "n1", "n1", "n1", "n2", "n2", "n2", "n2")
TIMES = FabricTimes(
    RANK_NODES,
    tuple(
        ExchangeTime(
            exchange, exchange.small_bytes if exchange.is_small else 2**20, (0.5,) * len(exchange.groups(4, 8))
        )
        for exchange in exchanges_of([], 4, 2)
    ),
)
LINKS = json.loads(json.dumps(Links((), Fabric(2.0, 5.0)).to_json()))
FOUND: dict[str, Any] = {"slow_nodes": ["n2"], "num_available": 2, "findings": ["n2 is slow"], "links": LINKS}
CHECK = "t0000"


def checking(path, check: Script, found: dict[str, Any] = FOUND, **changes: Any) -> Rig:
    """A search whose check goes by this script."""
    path.mkdir(exist_ok=True)
    program = FabricProgram(Cluster(ACCELERATORS["cpu"], 4, 2), {"kind": "fabric_check", "shapes": []}, lambda _: found)
    changes = {"limits": Limits(max_trials=2, parallel_trials=1), **changes}
    rig = Rig(path, fabric_check=program, num_nodes=2, **changes)
    rig.launcher.script = lambda spec: check if spec.trial == CHECK else Script(duration_s=60.0)
    return rig


def leaving(times: FabricTimes | None, **script: Any) -> Script:
    return leaving_files({} if times is None else {"fabric.json": json.dumps(times.to_json())}, **script)


def leaving_files(files: Mapping[str, str], **script: Any) -> Script:
    def look(request: LaunchRequest, number: int) -> None:
        for name, text in files.items():
            (request.folder.path / name).write_text(text)

    return Script(**{"duration_s": 90.0, "leaves_outcome": False, "look": look, **script})


def damaged(**changes: Any) -> str:
    return json.dumps(TIMES.to_json() | changes)


def test_it_is_the_first_job_and_trials_avoid_the_slow_node(tmp_path):
    rig = checking(tmp_path, leaving(TIMES))
    search = rig.open_driver().run()
    assert search.state is SearchState.COMPLETED
    assert [key.split(".", 1)[1] for key in rig.launcher.launched] == ["t0000.a1", "t0001.a1", "t0002.a1"]
    first, *trials = rig.launcher.requests
    assert first.argv[1:3] == ("-m", "trials.train.fabric")
    assert (first.spec.num_nodes, first.spec.num_gpus, first.exclude) == (2, 8, ())
    assert [request.exclude for request in trials] == [("n2",), ("n2",)]
    check = search.fabric_check
    assert (check.attempt.state, check.slow_nodes, check.links) == (TrialState.MEASURED, ("n2",), LINKS)
    assert check.attempt.node_hours == pytest.approx(2 * 90 / 3600)
    assert search.node_hours_used == pytest.approx((2 * 90 + 2 * 60) / 3600)
    with closing(LedgerReader(f"sqlite:///{tmp_path / 'ledger.db'}")) as reader:
        assert reader.search(search.search_id).fabric_check == check


def test_nothing_is_avoided_where_too_few_nodes_would_be_left(tmp_path):
    rig = checking(tmp_path, leaving(TIMES), {**FOUND, "num_available": 1})
    rig.open_driver().run()
    assert [request.exclude for request in rig.launcher.requests] == [()] * 3


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (leaving(None), FailureReason.RESULT_INVALID),
        (leaving(None, reason=FailureReason.SCRIPT_ERROR), FailureReason.SCRIPT_ERROR),
        (leaving(None, reason=FailureReason.TIME_LIMIT), FailureReason.TIME_LIMIT),
    ],
)
def test_a_check_that_fails_is_told_and_the_search_goes_on(tmp_path, caplog, check, reason):
    search = checking(tmp_path, check).open_driver().run()
    assert search.state is SearchState.COMPLETED
    assert (search.fabric_check.attempt.reason, search.fabric_check.links) == (reason, None)
    assert f"the fabric check failed: {reason}" in caplog.text
    assert "goes on without it" in caplog.text


@pytest.mark.parametrize(
    "files",
    [
        {"fabric.json": ""},
        {"fabric.json": "[]"},
        {"fabric.json": damaged(schema="parlay.fabric/0")},
        {"fabric.json": damaged(nodes=["n1", "n2"])},
        {"fabric.json": damaged(nodes=7)},
        {"fabric.json": damaged(times=[{"exchange": {"kind": "all_reduce"}}])},
        {"fabric.json": damaged(times=[TIMES.to_json()["times"][0] | {"seconds": [0.5] * 3}])},
        {"fabric.json": damaged(times=[TIMES.to_json()["times"][0] | {"seconds": [0.5, -0.5]}])},
        {"fabric.json": damaged(times=[TIMES.to_json()["times"][0] | {"num_bytes": "64"}])},
        {"fabric.json": damaged(times=[TIMES.to_json()["times"][0] | {"seconds": [1e-320] * 2}])},
        {"fabric.json": damaged(times=[TIMES.to_json()["times"][0] | {"num_bytes": 10**400}])},
        {"fabric.json": damaged(times=[time | {"num_bytes": 16} for time in TIMES.to_json()["times"]])},
        {"fabric.json": damaged(times=[])},
        {"fabric.json": damaged(times=TIMES.to_json()["times"][1:])},
        {"fabric.json": damaged(times=TIMES.to_json()["times"] * 2)},
        {"fabric.json": damaged(fingerprint=[])},
        {"outcome.r0.json": "{"},
        {"outcome.r0.json": json.dumps({"schema": "parlay.outcome/1", "reason": "a word nobody knows"})},
        {"outcome.r0.json": json.dumps({"schema": "parlay.outcome/1", "excerpt": 7})},
    ],
)
def test_damaged_files_of_a_check_are_no_times(tmp_path, caplog, files):
    search = checking(tmp_path, leaving_files(files)).open_driver().run()
    assert search.state is SearchState.COMPLETED
    assert search.fabric_check.attempt.reason is FailureReason.RESULT_INVALID
    assert next(iter(files)).partition(".")[0] in caplog.text


def test_a_check_that_the_machine_ended_is_launched_once_more(tmp_path):
    rig = checking(tmp_path, leaving(None, reason=FailureReason.NODE_FAILURE))
    search = rig.open_driver().run()
    assert [key.split(".", 1)[1] for key in rig.launcher.launched][:3] == ["t0000.a1", "t0000.a2", "t0001.a1"]
    assert search.fabric_check.attempt.node_hours == pytest.approx(2 * 2 * 90 / 3600)


def test_a_budget_without_room_for_check_and_trial_has_trials_alone(tmp_path, caplog):
    limits = Limits(max_trials=2, parallel_trials=1, budget_node_hours=0.4)
    rig = checking(tmp_path, leaving(TIMES), limits=limits)
    search = rig.open_driver().run()
    assert search.fabric_check is None
    assert len(rig.launcher.launched) == 2
    assert "no fabric check: it may cost 0.358 node-hours" in caplog.text


def test_a_cancelled_search_ends_its_check(tmp_path):
    rig = checking(tmp_path, leaving(TIMES))
    rig.callbacks = DriverCallbacks(cancel_requested=lambda: bool(rig.launcher.launched))
    search = rig.open_driver().run()
    assert search.state is SearchState.CANCELLED
    assert search.fabric_check.attempt.reason is FailureReason.CANCELLED_BY_USER
    assert len(rig.launcher.launched) == 1
    assert not search.trials


def test_an_interrupt_waits_for_the_check_and_the_next_driver_goes_on(tmp_path):
    rig = checking(tmp_path, leaving(TIMES))
    driver = None

    def interrupt(search, event):
        if event.kind is EventKind.FABRIC_CHECK:
            driver.interrupt()

    rig.callbacks = DriverCallbacks(on_event=interrupt)
    driver = rig.open_driver()
    search = driver.run()
    assert (search.fabric_check.attempt.state, search.trials) == (TrialState.MEASURED, ())
    rig.callbacks = DriverCallbacks()
    assert rig.open_driver().run().state is SearchState.COMPLETED
    assert len(rig.launcher.launched) == 3


def test_a_driver_killed_after_any_event_repeats_nothing(tmp_path):
    whole = checking(tmp_path / "whole", leaving(TIMES))
    wanted = story(whole.open_driver().run())
    for killing in checks_of(whole):
        rig = checking(tmp_path / f"killed-{killing.seq}", leaving(TIMES))
        rig.callbacks = kill_after(killing)
        with suppress(Killed):
            rig.open_driver().run()
        rig.callbacks = DriverCallbacks()
        assert story(rig.open_driver().run()) == wanted
        assert len(rig.launcher.launched) == 3


def checks_of(rig: Rig) -> list[Event]:
    events = Journal(rig.path / "runs" / "rig-aaaaaa" / "journal.jsonl").read()
    found = [event for event in events if event.kind is EventKind.FABRIC_CHECK]
    assert [event.data["state"] for event in found] == ["submitted", "queued", "running", "measured"]
    return found


def story(search) -> tuple[Any, ...]:
    check = search.fabric_check
    return (
        check.attempt.state,
        check.attempt.node_hours,
        check.slow_nodes,
        check.links,
        len(search.trials),
        search.state,
    )
