"""Lease of a search: one holder, taken over only from a dead one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.search.lease import (
    LEASE_DURATION_S,
    Lease,
    LeaseDamaged,
    LeaseHeld,
    LeaseLost,
    acquire_lease,
    current_lease,
    release_lease,
    renew_lease,
    retry_releases,
)
from trials.files.folders import SearchFolder, read_json, write_json

REPOSITORY = Path(__file__).parents[3]
NOON = 1_780_000_000.0

HOLD = """
import sys
from pathlib import Path
from orchestrator.search.lease import LeaseHeld, acquire_lease
from trials.files.folders import SearchFolder
print("ready", flush=True)
sys.stdin.readline()
try:
    print("held", acquire_lease(SearchFolder(Path(sys.argv[1])), float(sys.argv[2])).fencing, flush=True)
except LeaseHeld as held:
    print("refused", held.lease.pid, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def folder(tmp_path) -> SearchFolder:
    path = tmp_path / "quickstart-aaaaaa"
    path.mkdir()
    return SearchFolder(path)


def other_driver(folder: SearchFolder, **changes) -> Lease:
    """Write the lease of a driver on another machine."""
    elsewhere = {"host": "login2", "pid": 4711, "pid_scope": "another boot pid:[1]", **changes}
    return changed(folder, acquire_lease(folder, NOON), **elsewhere)


def changed(folder: SearchFolder, lease: Lease, **changes) -> Lease:
    """Write this lease, changed, into lease.json."""
    theirs = replace(lease, **changes)
    write_json(folder.lease, theirs.to_json())
    return theirs


def taken_over(folder: SearchFolder) -> tuple[Lease, Lease]:
    """The lease of a driver that was taken over, and the new one's."""
    old = acquire_lease(folder, NOON)
    changed(folder, old, expires=NOON)
    return old, acquire_lease(folder, NOON + 1)


def full(*_) -> None:
    raise OSError("No space left on device")


@pytest.fixture
def on_a_full_disk(monkeypatch) -> Callable[..., None]:
    """Releases a lease while there is no room to write that down."""

    def release(folder: SearchFolder, lease: Lease) -> None:
        with monkeypatch.context() as patched:
            patched.setattr("orchestrator.search.lease.write_json", full)
            release_lease(folder, lease, NOON + 1)
            retry_releases(NOON + 2)

    return release


# -- taking it


def test_the_first_driver_gets_it_everybody_can_read_who_that_is_and_after_a_release_it_is_free_at_once(folder):
    lease = acquire_lease(folder, NOON)
    assert current_lease(folder) == lease
    assert (lease.search_id, lease.fencing, lease.pid) == ("quickstart-aaaaaa", 1, os.getpid())
    stored = read_json(folder.lease)
    assert (stored["schema"], stored["heartbeat_at"]) == ("parlay.lease/1", "2026-05-28T20:26:40.000000Z")
    assert Lease.from_json(stored) == lease
    release_lease(folder, lease, NOON + 1)
    assert acquire_lease(folder, NOON + 1).fencing == 2


@pytest.mark.fault(14)
def test_a_second_driver_is_refused_with_host_process_and_heartbeat_until_that_is_older_than_it_lasts(folder):
    theirs = other_driver(folder, pid_started=1)  # a dead process of that number here says nothing
    with pytest.raises(LeaseHeld, match=r"process 4711 on login2, last heartbeat 2026-05-28T20:26:40") as caught:
        acquire_lease(folder, NOON + LEASE_DURATION_S - 1)
    assert caught.value.lease == theirs
    assert acquire_lease(folder, NOON + LEASE_DURATION_S).fencing == 2


def test_without_lease_json_whoever_claimed_it_last_holds_it_and_the_number_grows(folder):
    write_json(folder.path / ".lease" / "000007.json", replace(other_driver(folder), fencing=7).to_json())
    (folder.path / ".lease" / "1 (copy).json").write_text("")  # no number, and so no claim
    folder.lease.unlink()
    with pytest.raises(LeaseHeld):
        acquire_lease(folder, NOON + LEASE_DURATION_S - 1)
    assert acquire_lease(folder, NOON + LEASE_DURATION_S).fencing == 8


# -- damage

DAMAGED = ["", "{}", "[]", '"x"', "[" * 20_000, '{"schema": "parlay.lease/1"}', '{"schema": "parlay.lease/2"}']


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_what_is_no_lease_is_said_with_the_file_and_what_to_do(folder, text):
    acquire_lease(folder, NOON)
    folder.lease.write_text(text)
    with pytest.raises(LeaseDamaged, match=str(folder.lease)) as damaged:
        current_lease(folder)
    assert damaged.value.fix.endswith(f"remove {folder.lease}")
    folder.lease.unlink()
    assert current_lease(folder).fencing == 1, "what is to be done helps, and the number is not given twice"


def test_a_claim_that_is_none_is_said_too(folder):
    acquire_lease(folder, NOON)
    folder.lease.unlink()
    claim = folder.path / ".lease" / "000001.json"
    claim.write_text("")
    with pytest.raises(LeaseDamaged, match=str(claim)):
        acquire_lease(folder, NOON + LEASE_DURATION_S)


def test_a_driver_that_is_alive_writes_it_anew(folder):
    lease = acquire_lease(folder, NOON)
    folder.lease.write_text("{")
    assert renew_lease(folder, lease, NOON + 1) == current_lease(folder)


# -- the dead and the living


def test_a_holder_that_died_on_this_machine_is_taken_over_before_its_time_is_up(folder):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    changed(folder, acquire_lease(folder, NOON), pid=child.pid)
    following = acquire_lease(folder, NOON + 1)
    changed(folder, following, pid_started=following.pid_started - 1)  # another process has its pid by now
    assert [following.fencing, acquire_lease(folder, NOON + 2).fencing] == [2, 3]


def test_without_proc_only_the_heartbeat_counts(folder, monkeypatch):
    monkeypatch.setattr("orchestrator.search.lease._pid_scope", lambda: None)
    changed(folder, acquire_lease(folder, NOON), pid=2**22 + 1)
    with pytest.raises(LeaseHeld):
        acquire_lease(folder, NOON + 1)
    assert acquire_lease(folder, NOON + LEASE_DURATION_S).fencing == 2


@pytest.mark.parametrize("late_s", [-1, 0, 1, 1e6])
def test_a_holder_that_lives_on_this_machine_keeps_it_however_late_its_heartbeat(folder, late_s):
    """Whoever is refused for one that does not answer learns how to end it."""
    mine = acquire_lease(folder, NOON)
    with pytest.raises(LeaseHeld) as held:
        acquire_lease(folder, mine.expires + late_s)
    assert (f"`kill -KILL {os.getpid()}` ends it" in str(held.value)) is (late_s >= 0)
    assert current_lease(folder) == mine


# -- keeping it


@pytest.mark.parametrize("late_s", [100, 10 * LEASE_DURATION_S])
def test_a_heartbeat_keeps_it_and_its_number_also_after_a_long_sleep_if_nobody_came(folder, late_s):
    lease = renew_lease(folder, acquire_lease(folder, NOON), NOON + late_s)
    assert (lease.fencing, lease.heartbeat_at, lease.expires) == (1, NOON + late_s, NOON + late_s + LEASE_DURATION_S)
    assert lease.is_held(lease.expires - 1)
    assert current_lease(folder) == lease


def test_what_a_full_disk_kept_from_being_freed_is_held_by_nobody_here_and_freed_once_there_is_room(
    folder, on_a_full_disk
):
    mine = acquire_lease(folder, NOON)
    on_a_full_disk(folder, mine)
    assert not mine.is_held(NOON + 3)
    assert current_lease(folder).expires == mine.expires
    retry_releases(NOON + 4)
    assert current_lease(folder).expires == NOON + 4
    assert acquire_lease(folder, NOON + 5).is_held(NOON + 5)


def test_one_that_is_damaged_meanwhile_keeps_no_other_from_being_freed(tmp_path, on_a_full_disk):
    damaged, whole = (SearchFolder(tmp_path / name) for name in ("damaged", "whole"))
    for folder in (damaged, whole):
        folder.path.mkdir()
        on_a_full_disk(folder, acquire_lease(folder, NOON))
    damaged.lease.write_text("{")
    retry_releases(NOON + 2)
    assert current_lease(whole).expires == NOON + 2
    damaged.lease.unlink()
    retry_releases(NOON + 3)


def test_what_was_taken_meanwhile_is_not_freed_again(folder, on_a_full_disk):
    on_a_full_disk(folder, acquire_lease(folder, NOON))
    following = acquire_lease(folder, NOON + 2)
    retry_releases(NOON + 3)
    assert following.fencing == 2
    assert current_lease(folder) == following


def test_a_lease_that_a_full_disk_kept_from_being_taken_is_held_by_nobody(folder, monkeypatch):
    calls = iter([write_json, full])
    with monkeypatch.context() as patched:
        patched.setattr("orchestrator.search.lease.write_json", lambda path, data: next(calls)(path, data))
        with pytest.raises(OSError, match="No space"):
            acquire_lease(folder, NOON)
    assert acquire_lease(folder, NOON + 1).fencing == 2


@pytest.mark.parametrize("use", [renew_lease, release_lease])
def test_a_holder_that_was_taken_over_can_neither_keep_nor_free_it(folder, use):
    old, new = taken_over(folder)
    with pytest.raises(LeaseLost, match=f"taken over by process {os.getpid()}"):
        use(folder, old, NOON + 2)
    assert current_lease(folder) == new


def test_an_old_holder_that_overwrites_lease_json_after_all_takes_nothing_back(folder):
    old, new = taken_over(folder)
    changed(folder, old)
    assert current_lease(folder) == new
    assert renew_lease(folder, new, NOON + 2).fencing == 2


@pytest.mark.processes
@pytest.mark.timeout(120)
class TestRealProcesses:
    @pytest.fixture
    def drivers(self, folder) -> Iterator[Callable[[int], list[subprocess.Popen]]]:
        """Starts processes that take the lease once they are told to."""
        started: list[subprocess.Popen] = []

        def start(count: int) -> list[subprocess.Popen]:
            command = [sys.executable, "-c", HOLD, str(folder.path), str(NOON)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": REPOSITORY}
            drivers = [subprocess.Popen(command, **pipes) for _ in range(count)]
            started.extend(drivers)
            assert [driver.stdout.readline() for driver in drivers] == ["ready\n"] * count
            return drivers

        yield start
        for driver in started:
            driver.kill()
            driver.communicate()

    def race(self, drivers: list[subprocess.Popen]) -> list[list[str]]:
        for driver in drivers:
            driver.stdin.write("go\n")
            driver.stdin.flush()
        return [driver.stdout.readline().split() for driver in drivers]

    @pytest.mark.fault(14)
    def test_of_drivers_that_start_together_one_gets_it_and_one_that_is_killed_is_followed_at_once(self, drivers):
        for expected in (1, 2):
            together = drivers(4)
            answers = self.race(together)
            [held] = [driver for driver, answer in zip(together, answers, strict=True) if answer[0] == "held"]
            assert sorted(answers) == [["held", str(expected)], *[["refused", str(held.pid)]] * 3]
            held.send_signal(signal.SIGKILL)
            os.waitid(os.P_PID, held.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet buried

    def test_a_stopped_driver_keeps_it_until_it_is_killed(self, folder, drivers):
        (first,) = drivers(1)
        assert self.race([first]) == [["held", "1"]]
        first.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, first.pid, os.WSTOPPED)
        much_later = NOON + 100 * LEASE_DURATION_S
        with pytest.raises(LeaseHeld, match="does not respond"):
            acquire_lease(folder, much_later)
        first.kill()
        first.communicate()
        assert acquire_lease(folder, much_later).fencing == 2
