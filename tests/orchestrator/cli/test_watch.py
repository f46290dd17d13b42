"""`parlay watch` on a search driven elsewhere: its output, its end, and its interruption."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator.cli.main import main as run
from orchestrator.cli.watch import (
    DRIVER_END_LIMIT_S,
    DRIVER_POLL_S,
    NO_DRIVER_LIMIT_S,
    SearchFollower,
)
from orchestrator.launchers.slurm.squeue_cache import SqueueCache
from orchestrator.lifecycle.driver_job import submit_first_link
from orchestrator.lifecycle.driver_status import MAX_AGE_S
from orchestrator.lifecycle.logs import ListSink, sending_to
from orchestrator.records.summary import DriverStatus
from orchestrator.search.lease import LEASE_DURATION_S, acquire_lease, release_lease
from orchestrator.service.client import driver_status
from slurm.driver_script import DriverJob
from tests.fake_slurm.client import FakeSlurm
from tests.fake_slurm.cluster import FakeCluster
from tests.fake_slurm.placement import FakeNode
from tests.rig import asking
from tests.trials.ledger.stories import Story, measured_story
from trials.files.folders import SearchFolder
from trials.ledger.events import Event, SearchRecord
from trials.ledger.journal import Journal

DRIVEN = DriverStatus()
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

    def leave(self) -> None:
        self.standing = UNDRIVEN

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
    theatre.at[5] = theatre.leave
    assert theatre.watch() == story.search
    assert [record.last_seq for record in theatre.began] == [3]
    assert theatre.shown == story.events[3:]
    assert (theatre.now, theatre.said) == (5, []), "until its driver has left everything in order"


@pytest.mark.parametrize(("standing", "waited_s"), [(UNDRIVEN, 0), (DRIVEN, DRIVER_END_LIMIT_S)])
def test_an_ended_search_is_shown_at_once_and_its_driver_not_waited_for_longer_than_a_minute(
    theatre, story, standing, waited_s
):
    theatre.write(*story.events)
    theatre.standing = standing
    assert theatre.watch() == story.search
    assert (theatre.began, theatre.shown, theatre.now) == ([story.search], [], waited_s)


def test_a_search_without_a_driver_is_left_after_a_while_and_said_once(theatre, story):
    theatre.write(*story.events[:-1])
    theatre.standing = UNDRIVEN
    assert not theatre.watch().state.is_ended
    assert (theatre.now, theatre.said) == (NO_DRIVER_LIMIT_S, ["it has no driver"])


def test_a_driver_that_comes_in_time_is_followed_and_looked_at_seldom(theatre, story):
    theatre.write(*story.events[:-1])
    theatre.standing = UNDRIVEN
    theatre.at = {
        NO_DRIVER_LIMIT_S - 1: lambda: setattr(theatre, "standing", DRIVEN),
        40: theatre.leave,
        44: lambda: setattr(theatre, "standing", DRIVEN),
        90: lambda: (theatre.write(story.events[-1]), theatre.leave()),
    }
    assert theatre.watch() == story.search
    assert theatre.now == 90
    assert theatre.looks <= 90 / DRIVER_POLL_S + 2


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
    theatre.at = {3: lambda: (theatre.write(*story.events[3:]), theatre.leave())}
    assert theatre.watch() == story.search
    assert len(theatre.said) == 1
    assert "Stale file handle; retrying" in theatre.said[0]


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> FakeSlurm:
    """A Slurm whose only node another job holds."""
    slurm = FakeSlurm(FakeCluster([FakeNode("n1", cpus=1)]))
    submitted(slurm, "another", tmp_path)
    monkeypatch.setattr("orchestrator.lifecycle.driver_status.shared_squeue", lambda: asking(slurm))
    return slurm


def submitted(slurm: FakeSlurm, name: str, folder: Path) -> str:
    job_id = submit_first_link(slurm, DriverJob(name, folder, 1, 1, 3600.0, ("true",)))
    slurm.cluster.advance(1.0)
    return job_id


class TestWhoDrives:
    @pytest.fixture
    def folder(self, theatre, story) -> SearchFolder:
        theatre.write(*story.events[:-1])
        return theatre.folder

    def test_whoever_holds_it_and_nobody_and_one_that_does_not_answer_with_what_frees_the_search(self, folder):
        standing = driver_status(folder)
        assert (standing.is_expected, f"parlay resume {folder.search_id}" in standing.detail) == (False, True)
        lease = acquire_lease(folder, time.time())
        assert driver_status(folder) == DriverStatus(process=f"process {os.getpid()} on {socket.gethostname()}")
        release_lease(folder, lease, time.time())
        assert not driver_status(folder).is_expected
        acquire_lease(folder, time.time() - 3 * LEASE_DURATION_S)
        standing = driver_status(folder)
        assert (standing.is_expected, f"kill -CONT {os.getpid()}" in standing.detail) == (True, True)

    def test_a_lease_that_cannot_be_read_says_nothing_against_a_driver(self, folder):
        folder.lease.write_text("{")
        standing = driver_status(folder)
        assert standing.is_expected
        assert standing.detail.startswith("the driver's status is unknown: ")

    @pytest.mark.parametrize(("script", "word"), [("cron_script", "cron"), ("driver_script", "next job")])
    def test_whoever_is_begun_by_others_is_expected_and_a_job_that_waits_is_named(self, folder, slurm, script, word):
        getattr(folder, script).touch()
        slurm.cluster.controller_down(for_s=60.0)
        standing = driver_status(folder)
        assert standing.is_expected, "while Slurm does not answer"
        assert word in standing.detail
        slurm.cluster.advance(60.0)
        job_id = submitted(slurm, f"{folder.search_id}.{script.partition('_')[0]}", folder.path)
        standing = driver_status(folder)
        assert standing.is_expected
        assert standing.detail.endswith(f"job {job_id} waits in the queue: Resources")

    def test_without_a_job_in_the_queue_nobody_is_expected_to_drive(self, folder, slurm):
        folder.driver_script.touch()
        submitted(slurm, "another-search.driver", folder.path)
        standing = driver_status(folder)
        assert not standing.is_expected
        assert standing.detail.endswith(f"parlay resume {folder.search_id} --as-job submits one")

    @pytest.mark.parametrize("script", ["cron_script", "driver_script"])
    def test_a_job_that_is_missing_is_asked_for_as_rarely_as_drivers_ask_but_for_the_first_half_minute(
        self, folder, slurm, tmp_path, monkeypatch, script
    ):
        asked_at, jobs = [], slurm.jobs
        monkeypatch.setattr(slurm, "jobs", lambda: (asked_at.append(slurm.now()), jobs())[1])
        answers = SqueueCache(slurm, tmp_path, ["cluster"], clock=slurm.now)
        monkeypatch.setattr("orchestrator.lifecycle.driver_status.shared_squeue", lambda: answers.jobs)
        getattr(folder, script).touch()
        os.utime(getattr(folder, script), (slurm.now(), slurm.now()))
        for _ in range(120):
            driver_status(folder)
            slurm.cluster.advance(DRIVER_POLL_S)
        pauses = [after - before for before, after in pairwise(asked_at)]
        assert pauses[0] < MAX_AGE_S <= min(pauses[6:])

    @pytest.mark.parametrize(
        "answer", [DriverStatus("it waits for the service"), DriverStatus("disk full", False), None]
    )
    def test_the_service_is_asked(self, folder, monkeypatch, answer):
        class Service:
            def driver_status(self, search_id):
                assert search_id == folder.search_id
                return answer

        monkeypatch.setattr("orchestrator.service.client.running_service", lambda home: (Service(), {}))
        assert driver_status(folder).is_expected == (answer is not None and answer.is_expected)
        assert answer in (driver_status(folder), None)


class TestVerb:
    """The verb in this process, on a simulated search."""

    @pytest.mark.slow
    def test_an_ended_search_is_answered_as_status_does_and_an_unended_one_left_with_75(
        self, parlay, ended, monkeypatch
    ):
        status = parlay("status")[1]
        code, answer, err = parlay("watch", ended.search_id[:7])
        assert (code, answer) == (0, status)
        assert "best: " in err
        cut_short(ended)
        monkeypatch.setattr("orchestrator.cli.watch.NO_DRIVER_LIMIT_S", 0.0)
        code, answer, err = parlay("watch", ended.path)
        assert (code, answer["state"]) == (75, "running")
        assert f"parlay resume {ended.path}" in err

    @pytest.mark.slow
    def test_ctrl_c_leaves_the_search_alone_and_says_so(self, ended, monkeypatch, capfd):
        cut_short(ended)
        before = ended.journal.read_bytes()

        def interrupt(folder):
            raise KeyboardInterrupt

        monkeypatch.setattr("orchestrator.cli.watch.driver_status", interrupt)
        assert run(["watch", str(ended.path)]) == 130
        assert "stopped watching; the search continues" in capfd.readouterr().err
        assert ended.journal.read_bytes() == before


def cut_short(search: SearchFolder) -> None:
    """Take the last two events from the journal."""
    search.journal.write_bytes(b"".join(search.journal.read_bytes().splitlines(keepends=True)[:-2]))
