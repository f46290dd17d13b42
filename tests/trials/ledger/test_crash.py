"""A driver killed with SIGKILL at a random moment: the journal is whole and the ledger catches up with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trials.ledger.stories import SEARCH_ID
from trials.ledger.events import Event, EventKind
from trials.ledger.fold import fold
from trials.ledger.journal import Journal
from trials.ledger.reader import LedgerReader
from trials.ledger.writer import LedgerWriter

REPOSITORY = Path(__file__).parents[3]


def killed_after(number: int, journal: Path, url: str) -> int:
    """Let a driver write `number` events and kill it while it goes on; returns the last event it reported as done."""
    command = [sys.executable, "-m", "tests.trials.ledger.programs", "drive_forever", str(journal), url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as driver:
        for line in driver.stdout:
            if int(line) == number:
                driver.kill()
                break
        rest = driver.stdout.read().split()
    return int(rest[-1]) if rest else number


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [1, 18, 40])
@pytest.mark.fault(30)
def test_a_killed_driver_leaves_a_whole_journal_and_a_ledger_that_catches_up(tmp_path, number):
    journal, url = Journal(tmp_path / "journal.jsonl"), f"sqlite:///{tmp_path}/ledger.db"
    done = killed_after(number, journal.path, url)

    events = journal.read()
    assert len(events) in (done, done + 1), "what was called done is on disk, and at most one event more"
    before = LedgerReader(url).search(SEARCH_ID)
    assert before == fold(SEARCH_ID, events[: before.last_seq])
    assert before.last_seq in (len(events), len(events) - 1)

    ledger = LedgerWriter(url)
    ledger.catch_up(SEARCH_ID, events)
    whole = fold(SEARCH_ID, events)
    assert LedgerReader(url).search(SEARCH_ID) == whole

    following = Event(len(events) + 1, 2, 2e9, EventKind.BEST_CHANGED, {"trial": None})
    journal.append(following)
    ledger.apply(SEARCH_ID, following)
    assert LedgerReader(url).search(SEARCH_ID) == fold(SEARCH_ID, journal.read())


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [1, 17, 30])
@pytest.mark.fault(14)
def test_a_driver_stopped_anywhere_and_taken_over_stops_when_it_wakes_and_damages_nothing(tmp_path, number):
    journal = Journal(tmp_path / "journal.jsonl")
    command = [sys.executable, "-m", "tests.trials.ledger.programs", "drive_forever", str(journal.path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": REPOSITORY}
    with subprocess.Popen([*command, f"sqlite:///{tmp_path}/old.db"], **pipes) as old:
        while int(old.stdout.readline()) != number:
            pass
        old.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, old.pid, os.WSTOPPED)
        takeover = Event(len(journal.read()) + 1, 2, 2e9, EventKind.DRIVER_TOOK_OVER, {"host": "login2", "pid": 4711})
        journal.append(takeover)
        old.send_signal(signal.SIGCONT)
        _, words = old.communicate()
    assert "FencedError" in words
    assert journal.read()[-1] == takeover
    journal.append(Event(takeover.seq + 1, 2, 2e9, EventKind.BEST_CHANGED, {"trial": None}))
    assert fold(SEARCH_ID, journal.read()).last_seq == takeover.seq + 1


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_readers_beside_a_writing_driver_only_see_whole_searches(tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    journal = Journal(tmp_path / "journal.jsonl")
    command = [sys.executable, "-m", "tests.trials.ledger.programs", "drive_forever", str(journal.path), url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as driver:
        driver.stdout.readline()
        reader, seen = LedgerReader(url), [LedgerReader(url).search(SEARCH_ID)]
        while seen[-1].last_seq < 60:
            seen.append(reader.search(SEARCH_ID))
        driver.kill()
        driver.stdout.read()
    events = journal.read()
    assert all(search == fold(SEARCH_ID, events[: search.last_seq]) for search in seen)


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_two_processes_may_make_the_ledger_at_once(tmp_path):
    make = "import sys; from trials.ledger.writer import LedgerWriter; LedgerWriter(sys.argv[1])"
    command = [sys.executable, "-c", make, f"sqlite:///{tmp_path}/ledger.db"]
    makers = [subprocess.Popen(command, cwd=REPOSITORY) for _ in range(4)]
    assert [maker.wait() for maker in makers] == [0, 0, 0, 0]
