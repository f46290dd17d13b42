"""Stalls of searches whose driver is gone or never began, notified by the service."""

from __future__ import annotations

import json
import time
from threading import Event

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.lifecycle.create import create_search
from orchestrator.search.lease import LEASE_DURATION_S, acquire_lease, release_lease
from orchestrator.service.stall_watch import StallWatch
from tests.orchestrator.cli.parlay import TINY_SEARCH, write_search
from tests.orchestrator.lifecycle.test_notify import KEEP_STDIN
from trials.files.folders import SearchFolder
from trials.ledger.location import ledger_url

HOUR_S = 3600.0


@pytest.fixture
def search(tmp_path, monkeypatch) -> SearchFolder:
    """A search that nobody drives, and whose stalls are told to the file `told`."""
    monkeypatch.chdir(tmp_path)
    command = json.dumps([*KEEP_STDIN, str(tmp_path / "told")])
    text = TINY_SEARCH + f"notify: {{events: [stall], stall_after: 1h, command: {command}}}\n"
    return create_search(load_search_file(write_search(tmp_path, text)), ledger_url())


@pytest.mark.slow
def test_a_search_that_nobody_drives_is_told_of_once_after_the_stated_time(own_home, search, tmp_path):
    created, told = time.time(), tmp_path / "told"
    StallWatch(ledger_url()).check(created + HOUR_S - 60)
    assert not told.exists()
    for _ in range(2):
        StallWatch(ledger_url()).check(created + HOUR_S + 60)
    (sent,) = map(json.loads, told.read_text().splitlines())
    assert (sent["event"], sent["status"]["state"]) == ("stall", "created")
    assert sent["message"].startswith(f"{search.search_id}: no trial has ended for 1:0")
    assert sent["message"].endswith("(0 trials in flight, 0 so far); no driver has begun")


def test_what_the_lease_says_of_the_driver_is_part_of_the_message(own_home, search, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(
        "orchestrator.service.stall_watch.send_notification", lambda *given: said.append(given[-1].split("; ")[1])
    )
    now = time.time()
    lease = acquire_lease(search, now + HOUR_S)
    for at in (now + HOUR_S, now + HOUR_S + LEASE_DURATION_S + 1):
        StallWatch(ledger_url()).check(at)
    release_lease(search, lease, now + HOUR_S)
    StallWatch(ledger_url()).check(now + HOUR_S)
    assert [words.partition(" (")[0].replace(lease.host, "HOST").replace(str(lease.pid), "PID") for words in said] == [
        "its driver, process PID on HOST, is at work",
        "its driver, process PID on HOST, is silent",
        "no driver has begun",
    ]


def test_an_unreachable_folder_does_not_keep_others_from_being_told_of(own_home, search, tmp_path, monkeypatch):
    second = create_search(load_search_file(tmp_path / "search.yaml"), ledger_url())
    search.path.rename(tmp_path / "elsewhere")
    StallWatch(ledger_url()).check(time.time() + 2 * HOUR_S)
    (sent,) = map(json.loads, (tmp_path / "told").read_text().splitlines())
    assert sent["status"]["search_id"] == second.search_id


def test_an_error_does_not_end_the_watch(monkeypatch):
    stopping, checked = Event(), []

    def check(watch: StallWatch, now: float) -> None:
        checked.append(now)
        if len(checked) == 3:
            stopping.set()
        raise RuntimeError("the ledger is locked")

    monkeypatch.setattr("orchestrator.service.stall_watch.STALL_CHECK_S", 0.0)
    monkeypatch.setattr(StallWatch, "check", check)
    StallWatch(ledger_url()).run(stopping)
    assert len(checked) == 3
