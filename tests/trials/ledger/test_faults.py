"""The journal and the ledger under real faults: a full disk, locks, drivers and servers killed or stopped anywhere."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest

from orchestrator.search.event_store import EventStore
from tests.postgres import PostgresServer, postgres
from tests.trials.ledger.stories import NOON, SEARCH_ID, measured_story, written
from trials.ledger import database
from trials.ledger.commands import request_cancel
from trials.ledger.database import LedgerFull
from trials.ledger.events import Event, EventKind, SearchState
from trials.ledger.fold import fold
from trials.ledger.journal import Journal
from trials.ledger.reader import LedgerReader
from trials.ledger.writer import LedgerWriter

REPOSITORY = Path(__file__).parents[3]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A real file system of 400 KiB, where this process may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k,mode=0700", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no leave to mount a small disk")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def filled(disk: Path) -> Path:
    """A file that takes all the free space."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as stream, suppress(OSError):
        while True:
            stream.write(b"x" * 512)
    return ballast


def until_refused(act: Callable[[int], object]) -> OSError:
    """Repeat with 0, 1, 2, ... until the disk is full; earlier files may still have free space."""
    for number in range(1000):
        try:
            act(number)
        except OSError as refusal:
            return refusal
    raise AssertionError("the disk was never full")


@pytest.mark.fault(27)
def test_a_journal_on_a_full_disk_is_as_it_was_and_goes_on_when_there_is_room(small_disk):
    story = measured_story()
    journal = written(small_disk / "journal.jsonl", story.events)
    ballast = filled(small_disk)
    refusal = until_refused(lambda _: journal.append(story.set_state(SearchState.RUNNING, detail="x" * 900)))
    assert refusal.errno == errno.ENOSPC
    *told, refused = story.events
    assert Journal(journal.path).read() == told
    assert journal.path.read_bytes().endswith(b"\n")
    ballast.unlink()
    journal.append(refused)
    assert Journal(journal.path).read() == story.events


@pytest.mark.fault(27)
def test_a_ledger_on_a_full_disk_pauses_the_search_and_catches_up(small_disk, tmp_path):
    url = f"sqlite:///{small_disk}/ledger.db"
    ledger = LedgerWriter(url)
    history = EventStore(SEARCH_ID, Journal(tmp_path / "journal.jsonl"), ledger, 1, lambda: NOON)
    history.record(EventKind.SEARCH_CREATED, spec={}, code_hash="c0de")
    ballast = filled(small_disk)
    running = partial(history.record, EventKind.SEARCH_STATE, state="running", end_reason=None)
    refusal = until_refused(lambda number: running(detail=f"{number}" + "x" * 2000))
    assert isinstance(refusal, LedgerFull)
    written = history.search.last_seq
    with pytest.raises(LedgerFull):
        running(detail="paused")
    events = Journal(tmp_path / "journal.jsonl").read()
    assert len(events) == written, "what paused the search left one line, and nothing was written after it"
    ballast.unlink()
    running(detail="on it goes")
    assert LedgerReader(url).search(SEARCH_ID) == history.search
    assert history.search == fold(SEARCH_ID, Journal(tmp_path / "journal.jsonl").read())
    with closing(sqlite3.connect(small_disk / "ledger.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def looked_at_from_outside(path: Path) -> list[str]:
    """States of the trials in order, as another process reads them from the ledger's file, which it then closes."""
    look = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); print(*sum(c.execute(sys.argv[2]), ())); c.close()"
    command = [sys.executable, "-I", "-c", look, str(path), "SELECT state FROM trial ORDER BY trial"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.fault(29)
@pytest.mark.parametrize("kind", ["write", "read"])
def test_a_ledger_locked_by_another_process_is_waited_for_and_no_write_is_lost(tmp_path, monkeypatch, kind):
    path, story = tmp_path / "ledger.db", measured_story()
    writer = LedgerWriter(f"sqlite:///{path}")
    writer.apply(*story.steps[0])
    command = [sys.executable, "-m", "tests.trials.ledger.programs", "hold_lock", str(path), kind]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": REPOSITORY}
    waits, sleep = [], database.time.sleep

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 5:
            other.communicate("enough\n")
        sleep(seconds)

    monkeypatch.setattr(database.time, "sleep", wait)
    with subprocess.Popen(command, **pipes) as other:
        assert other.stdout.readline() == "held\n"
        for step in story.steps[1:]:
            writer.apply(*step)
        if kind == "read":
            other.communicate("enough\n")
    assert LedgerReader(f"sqlite:///{path}").search(SEARCH_ID) == story.search
    assert (len(set(waits)) >= 5) == (kind == "write"), "a reader holds nobody up"


@pytest.mark.fault(29)
@pytest.mark.parametrize("second", [LedgerWriter, lambda url: request_cancel(url, SEARCH_ID, at=NOON)])
def test_a_second_writer_of_the_process_and_a_reader_outside_take_no_write_from_the_first(tmp_path, second):
    path, story = tmp_path / "ledger.db", measured_story()
    url = f"sqlite:///{path}"
    first = LedgerWriter(url)
    first.apply(*story.steps[0])
    other = second(url)
    looked_at_from_outside(path)
    for step in story.steps[1:]:
        first.apply(*step)
    assert looked_at_from_outside(path) == ["measured"]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    first.close()
    if other is not None:
        other.close()
    assert LedgerReader(url).search(SEARCH_ID) == story.search


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with postgres() as server:
        yield server


@pytest.mark.fault(30)
def test_a_driver_killed_inside_a_transaction_leaves_the_ledger_as_it_was_before(tmp_path):
    url, story = f"sqlite:///{tmp_path}/ledger.db", measured_story()
    command = [sys.executable, "-m", "tests.trials.ledger.programs", "die_in_transaction", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as driver:
        assert driver.stdout.readline() == "in the middle\n"
        driver.kill()
    assert LedgerReader(url).search(SEARCH_ID) == fold(SEARCH_ID, story.events[:3])
    LedgerWriter(url).catch_up(story.search, story.events)
    assert LedgerReader(url).search(SEARCH_ID) == story.search


@pytest.mark.fault(31)
def test_a_postgres_that_is_killed_and_started_again_is_found_again_and_nothing_is_lost(server):
    story, writer, reader = measured_story(), LedgerWriter(server.url), LedgerReader(server.url)
    for number, step in enumerate(story.steps):
        if number == 4:
            server.kill()
            restart = threading.Timer(1.0, server.start)
            restart.start()
        writer.apply(*step)
        if number == 4:
            restart.join()
    assert reader.search(SEARCH_ID) == story.search
    server.kill()
    server.start()
    assert reader.search(SEARCH_ID) == story.search


@pytest.mark.fault(31)
def test_a_transaction_whose_reply_was_lost_is_tried_again_and_changes_nothing(server, monkeypatch):
    import psycopg

    story, writer = measured_story(), LedgerWriter(server.url)
    commit, commits = writer._engine.dialect.do_commit, []

    def lose_every_second_reply(connection) -> None:
        commit(connection)
        commits.append(connection)
        if len(commits) % 2:
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(writer._engine.dialect, "do_commit", lose_every_second_reply)
    for step in story.steps:
        writer.apply(*step)
    assert len(commits) == 2 * len(story.events)
    assert LedgerReader(server.url).search(SEARCH_ID) == story.search


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
    whole = fold(SEARCH_ID, events)
    ledger.catch_up(whole, events)
    assert LedgerReader(url).search(SEARCH_ID) == whole

    following = Event(len(events) + 1, 2, 2e9, EventKind.BEST_CHANGED, {"trial": None})
    journal.append(following)
    ledger.apply(following, fold(SEARCH_ID, journal.read()))
    assert LedgerReader(url).search(SEARCH_ID) == fold(SEARCH_ID, journal.read())


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


def test_two_processes_may_make_the_ledger_at_once(tmp_path):
    make = "import sys; from trials.ledger.writer import LedgerWriter; LedgerWriter(sys.argv[1])"
    command = [sys.executable, "-c", make, f"sqlite:///{tmp_path}/ledger.db"]
    makers = [subprocess.Popen(command, cwd=REPOSITORY) for _ in range(4)]
    assert [maker.wait() for maker in makers] == [0, 0, 0, 0]
