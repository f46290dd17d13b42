"""`parlay watch` on a search driven elsewhere: its output, its end, and its interruption."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli.main import run
from orchestrator.cli.watch import (
    DRIVER_END_LIMIT_S,
    DRIVER_POLL_S,
    NO_DRIVER_LIMIT_S,
    DriverStatus,
    SearchFollower,
    driver_status,
)
from orchestrator.common.logs import ListSink, sending_to
from orchestrator.lifecycle.driver_job import submit_first_link
from orchestrator.lifecycle.driver_queue import MAX_AGE_IF_MISSING_S, MAX_AGE_S
from orchestrator.search.lease import LEASE_DURATION_S, acquire_lease, release_lease
from search_spaces.errors import InputError
from slurm.driver_script import DriverJob
from slurm.fake.client import FakeSlurm
from slurm.fake.cluster import FakeCluster
from slurm.fake.placement import FakeNode
from slurm.squeue_cache import SqueueSnapshot
from tests.orchestrator.cli.parlay import COMMAND, environment
from tests.orchestrator.cli.simulated import OK, OUT_OF_MEMORY, write_simulated_search
from tests.trials.ledger.stories import Story, measured_story
from trials.files.folders import SearchFolder
from trials.ledger.events import Event, SearchRecord
from trials.ledger.journal import Journal

DRIVEN = DriverStatus()
HELD = DriverStatus(process=f"process {os.getpid()} on {socket.gethostname()}")
UNDRIVEN = DriverStatus("it has no driver", is_expected=False)


class Theatre:
    """A search's folder on a simulated clock; `at` maps seconds to actions."""

    def __init__(self, folder: Path, story: Story):
        self.folder = SearchFolder(folder / story.search_id)
        self.folder.path.mkdir(parents=True)
        self.now = 0.0
        self.at: dict[float, Callable[[], None]] = {}
        self.standing = DRIVEN
        self.began: list[SearchRecord] = []
        self.shown: list[Event] = []
        self.said: list[str] = []
        self.looks = 0

    def write(self, *events: Event) -> None:
        journal = Journal(self.folder.journal)
        for event in events:
            journal.append(event)
        journal.close()

    def watch(self) -> SearchRecord:
        sink = ListSink()
        self.said = sink.messages
        with sending_to(sink):
            return SearchFollower(self.folder, self, self._stands, lambda: self.now, self._wait).follow()

    def begin(self, search: SearchRecord) -> None:
        self.began.append(search)

    def update(self, search: SearchRecord, event: Event) -> None:
        assert search.last_seq == event.seq
        self.shown.append(event)

    def _stands(self, folder: SearchFolder) -> DriverStatus:
        self.looks += 1
        return self.standing

    def _wait(self, seconds: float) -> None:
        assert seconds >= 1.0
        self.now += seconds
        for moment in [m for m in self.at if m <= self.now]:
            self.at.pop(moment)()


@pytest.fixture
def story() -> Story:
    return measured_story()


@pytest.fixture
def theatre(tmp_path, story) -> Theatre:
    return Theatre(tmp_path, story)


def test_what_happens_is_shown_event_by_event_from_the_first_look_on_until_the_end(theatre, story):
    theatre.write(*story.events[:3])
    theatre.at = {2: lambda: theatre.write(*story.events[3:6]), 4: lambda: theatre.write(*story.events[6:])}
    theatre.at[5] = lambda: setattr(theatre, "standing", UNDRIVEN)
    assert theatre.watch() == story.search
    assert [record.last_seq for record in theatre.began] == [3]
    assert theatre.shown == story.events[3:]
    assert theatre.now == 5, "until its driver has left everything in order"
    assert theatre.said == []


def test_a_search_that_has_ended_is_shown_at_once(theatre, story):
    theatre.write(*story.events)
    theatre.standing = UNDRIVEN
    assert theatre.watch() == story.search
    assert (theatre.began, theatre.shown, theatre.now) == ([story.search], [], 0)


def test_a_driver_that_does_not_leave_is_not_waited_for_longer_than_a_minute(theatre, story):
    theatre.write(*story.events)
    theatre.watch()
    assert theatre.now == DRIVER_END_LIMIT_S


def test_a_search_without_a_driver_is_left_after_a_while_and_said_once(theatre, story):
    theatre.write(*story.events[:-1])
    theatre.standing = UNDRIVEN
    assert not theatre.watch().state.is_ended
    assert theatre.now == NO_DRIVER_LIMIT_S
    assert theatre.said == ["it has no driver"]


def test_a_driver_that_comes_in_time_is_followed(theatre, story):
    theatre.write(*story.events[:-1])
    theatre.standing = UNDRIVEN
    theatre.at = {
        NO_DRIVER_LIMIT_S - 1: lambda: setattr(theatre, "standing", DRIVEN),
        40: lambda: setattr(theatre, "standing", UNDRIVEN),
        44: lambda: setattr(theatre, "standing", DRIVEN),
        90: lambda: (theatre.write(story.events[-1]), setattr(theatre, "standing", UNDRIVEN)),
    }
    assert theatre.watch() == story.search
    assert theatre.now == 90


def test_who_drives_is_looked_at_seldom(theatre, story):
    theatre.write(*story.events[:-1])
    theatre.at = {100: lambda: (theatre.write(story.events[-1]), setattr(theatre, "standing", UNDRIVEN))}
    theatre.watch()
    assert theatre.looks <= 100 / DRIVER_POLL_S + 2


def test_one_that_will_be_driven_is_waited_for_and_the_reason_said_once(theatre, story):
    theatre.write(*story.events[:-1])
    theatre.standing = DriverStatus("it waits for its next turn")
    theatre.at = {600: lambda: theatre.write(story.events[-1])}
    assert theatre.watch().state.is_ended
    assert theatre.said == ["it waits for its next turn"]


def test_a_journal_that_cannot_be_read_for_a_while_is_said_and_read_again(theatre, story, monkeypatch):
    theatre.write(*story.events[:3])
    read_on, bad = Journal.read_on, [OSError(116, "Stale file handle")] * 2

    def stale(journal):
        if theatre.now in (1, 2):
            raise bad.pop()
        return read_on(journal)

    monkeypatch.setattr(Journal, "read_on", stale)
    theatre.at = {3: lambda: (theatre.write(*story.events[3:]), setattr(theatre, "standing", UNDRIVEN))}
    assert theatre.watch() == story.search
    assert len(theatre.said) == 1
    assert "Stale file handle; retrying" in theatre.said[0]


def test_a_line_that_its_writer_took_back_is_read_as_it_then_stands(theatre, story, tmp_path):
    other = Theatre(tmp_path / "other", story)
    theatre.write(*story.events[:3])
    before = theatre.folder.journal.read_bytes()
    other.write(*story.events)

    def take_back() -> None:
        theatre.folder.journal.write_bytes(before)

    def go_on() -> None:
        theatre.folder.journal.write_bytes(other.folder.journal.read_bytes())
        theatre.standing = UNDRIVEN

    theatre.at = {1: lambda: theatre.write(story.events[3]), 2: take_back, 4: go_on}
    assert theatre.watch() == story.search
    assert theatre.shown == story.events[3:], "none twice"


def test_a_folder_that_is_not_here_is_refused_with_what_to_do(theatre):
    with pytest.raises(InputError, match="is not visible from here") as refused:
        theatre.watch()
    assert "parlay status" in refused.value.problems[0].fix


class Queue:
    """A Slurm whose only node another job holds; `asked` is how old each answer could be at most."""

    def __init__(self, folder: Path):
        self.slurm = FakeSlurm(FakeCluster([FakeNode("n1", cpus=1)]))
        self.asked: list[float] = []
        self._folder = folder
        self._others = self.submit("another")
        self.slurm.cluster.advance(1.0)

    def submit(self, name: str) -> str:
        job_id = submit_first_link(self.slurm, DriverJob(name, self._folder, 1, 1, 3600.0, ("true",)))
        self.slurm.cluster.advance(1.0)
        return job_id

    def others_end(self) -> None:
        self.slurm.cluster.cancel(self._others)
        self.slurm.cluster.advance(2.0)

    def jobs(self, max_age_s: float) -> SqueueSnapshot:
        self.asked.append(max_age_s)
        return SqueueSnapshot(self.slurm.jobs(), self.slurm.now(), 0.0)


@pytest.fixture
def queue(tmp_path, monkeypatch) -> Queue:
    queue = Queue(tmp_path)
    monkeypatch.setattr("orchestrator.lifecycle.driver_queue.shared_squeue", lambda: queue.jobs)
    return queue


class TestWhoDrives:
    @pytest.fixture
    def folder(self, theatre, story) -> SearchFolder:
        theatre.write(*story.events[:-1])
        return theatre.folder

    def test_whoever_holds_it(self, folder):
        lease = acquire_lease(folder, time.time())
        assert driver_status(folder) == HELD
        release_lease(folder, lease, time.time())
        assert not driver_status(folder).is_expected

    def test_one_that_lives_and_does_not_answer_is_named_with_what_frees_the_search(self, folder):
        acquire_lease(folder, time.time() - 3 * LEASE_DURATION_S)
        standing = driver_status(folder)
        assert standing.is_expected
        assert f"kill -CONT {os.getpid()}" in standing.description

    def test_nobody_and_how_to_go_on(self, folder):
        standing = driver_status(folder)
        assert standing.description == f"the search has no driver: parlay resume {folder.search_id} starts one"
        assert not standing.is_expected

    @pytest.mark.parametrize(("script", "word"), [("cron_script", "cron"), ("driver_script", "next job")])
    def test_whoever_is_begun_by_others_is_expected_while_slurm_does_not_answer(self, folder, queue, script, word):
        getattr(folder, script).touch()
        queue.slurm.cluster.controller_down(for_s=60.0)
        standing = driver_status(folder)
        assert standing.is_expected
        assert word in standing.description

    @pytest.mark.parametrize(("script", "what"), [("cron_script", "next turn"), ("driver_script", "driver's job")])
    def test_a_job_that_waits_to_drive_is_named_with_slurms_reason(self, folder, queue, script, what):
        getattr(folder, script).touch()
        job_id = queue.submit(f"{folder.search_id}.{script.partition('_')[0]}")
        standing = driver_status(folder)
        assert standing.is_expected
        assert what in standing.description
        assert standing.description.endswith(f"job {job_id} waits in the queue: Resources")

    def test_a_drivers_job_that_was_put_back_or_has_just_started_is_waited_for(self, folder, queue):
        folder.driver_script.touch()
        job_id = queue.submit(f"{folder.search_id}.driver")
        queue.others_end()
        assert driver_status(folder).description.endswith(f"job {job_id} runs on n1 and does not hold the search yet")
        queue.slurm.cluster.requeue(job_id)
        standing = driver_status(folder)
        assert standing.is_expected
        assert f"job {job_id} waits in the queue: " in standing.description

    def test_without_a_job_in_the_queue_nobody_is_expected_to_drive(self, folder, queue):
        folder.driver_script.touch()
        queue.submit("another-search.driver")
        standing = driver_status(folder)
        assert not standing.is_expected
        assert standing.description.endswith(f"parlay resume {folder.search_id} --as-job submits one")
        assert queue.asked == [MAX_AGE_S, MAX_AGE_IF_MISSING_S]

    def test_slurm_is_asked_nothing_while_somebody_drives(self, folder, queue):
        folder.driver_script.touch()
        acquire_lease(folder, time.time())
        assert driver_status(folder) == HELD
        assert queue.asked == []

    @pytest.mark.parametrize(
        ("driver", "is_expected"),
        [
            ({"state": "waiting", "failures": 1, "detail": "its process died"}, True),
            ({"state": "stopped", "failures": 6, "detail": "disk full"}, False),
            (None, False),
        ],
    )
    def test_the_service_is_asked(self, folder, monkeypatch, driver, is_expected):
        class Service:
            def driver_status(self, search_id):
                assert search_id == folder.search_id
                return driver

        monkeypatch.setattr("orchestrator.service.client.running_service", lambda home: (Service(), {}))
        assert driver_status(folder).is_expected == is_expected
        assert ("disk full" in driver_status(folder).description) == (driver is not None and not is_expected)


class TestVerb:
    """The verb in this process, on a simulated search."""

    @pytest.fixture
    def parlay(self, tmp_path, monkeypatch, capfd) -> Callable[..., tuple[int, str, str]]:
        monkeypatch.chdir(tmp_path)

        def answered(*words: str) -> tuple[int, str, str]:
            code = run(words)
            return (code, *capfd.readouterr())

        return answered

    @pytest.fixture
    def ended(self, tmp_path, parlay) -> SearchFolder:
        code, out, err = parlay("run", str(write_simulated_search(tmp_path, OK, OUT_OF_MEMORY)), "--json")
        assert code == 0, err
        return SearchFolder(tmp_path / "runs" / json.loads(out)["search_id"])

    @pytest.mark.slow
    def test_an_ended_search_is_answered_as_status_does_and_an_unended_one_left_with_75(
        self, parlay, ended, monkeypatch
    ):
        status = json.loads(parlay("status", "--json")[1])
        code, out, err = parlay("watch", ended.search_id[:7], "--json")
        assert (code, json.loads(out)) == (0, status)
        assert "best: " in err
        code, out, _ = parlay("watch")
        assert code == 0
        assert "is completed" in out

        lines = ended.journal.read_bytes().splitlines(keepends=True)
        ended.journal.write_bytes(b"".join(lines[:-2]))
        monkeypatch.setattr("orchestrator.cli.watch.NO_DRIVER_LIMIT_S", 0.0)
        assert f"parlay resume {ended.path} starts one" in parlay("status", str(ended.path))[2]
        code, out, err = parlay("watch", str(ended.path), "--json")
        assert (code, json.loads(out)["state"]) == (75, "running")
        assert f"parlay resume {ended.path}" in err

    @pytest.mark.slow
    def test_ctrl_c_leaves_the_search_alone_and_says_so(self, parlay, ended, monkeypatch):
        lines = ended.journal.read_bytes().splitlines(keepends=True)
        ended.journal.write_bytes(b"".join(lines[:-2]))
        before = ended.journal.read_bytes()

        def interrupt(folder):
            raise KeyboardInterrupt

        monkeypatch.setattr("orchestrator.cli.watch.driver_status", interrupt)
        code, _, err = parlay("watch", str(ended.path))
        assert code == 130
        assert "stopped watching; the search continues" in err
        assert ended.journal.read_bytes() == before

    def test_an_unknown_search_is_an_unknown_id(self, parlay):
        assert parlay("watch", "nothing")[0] == 4


@pytest.mark.processes
@pytest.mark.timeout(90)
def test_on_a_terminal_a_search_is_drawn_in_place_until_it_is_told_to_end(tmp_path, monkeypatch):
    """Its driver is this process, which holds the lease and writes the journal while it is watched."""
    monkeypatch.chdir(tmp_path)
    assert run(["run", str(write_simulated_search(tmp_path, OK, OUT_OF_MEMORY))]) == 0
    (path,) = (tmp_path / "runs").iterdir()
    folder = SearchFolder(path)
    lines = folder.journal.read_bytes().splitlines(keepends=True)
    proposed, measured = (
        next(number for number, line in enumerate(lines, start=1) if kind in line)
        for kind in (b'"trial_proposed"', b'"trial_ended"')
    )
    folder.journal.write_bytes(b"".join(lines[:proposed]))
    acquire_lease(folder, time.time())
    terminal, end = pty.openpty()
    told = {**environment(), "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    watching = subprocess.Popen([*COMMAND, "watch", str(path)], cwd=tmp_path, env=told, stdout=end, stderr=end)
    os.close(end)
    seen = _read_until(terminal, "t0001")
    folder.journal.write_bytes(b"".join(lines[:measured]))
    seen += _read_until(terminal, "1 measured")
    assert "\x1b[" in seen, "drawn in place"
    watching.terminate()
    seen += _read_until(terminal, "stopped watching")
    assert watching.wait() == 130
    assert "\x1b[?25h" in seen, "the cursor is back"
    os.close(terminal)


def _read_until(terminal: int, words: str) -> str:
    """Read the terminal's output up to these words; the test's time limit bounds the wait."""
    seen = b""
    while words.encode() not in seen:
        seen += os.read(terminal, 4096)
    return seen.decode(errors="replace")
