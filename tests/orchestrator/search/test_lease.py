"""Lease of a search: one holder, taken over only from a dead one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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
    mine = acquire_lease(folder, NOON)
    theirs = replace(mine, host="login2", pid=4711, pid_scope="another boot pid:[1]", **changes)
    write_json(folder.lease, theirs.to_json())
    return theirs


def full(*_) -> None:
    raise OSError("No space left on device")


class TestTakingIt:
    def test_the_first_driver_gets_it_and_everybody_can_read_who_that_is(self, folder):
        lease = acquire_lease(folder, NOON)
        assert current_lease(folder) == lease
        assert (lease.search_id, lease.fencing, lease.pid) == ("quickstart-aaaaaa", 1, os.getpid())
        stored = read_json(folder.lease)
        assert stored["schema"] == "parlay.lease/1"
        assert stored["heartbeat_at"] == "2026-05-28T20:26:40.000000Z"
        assert Lease.from_json(stored) == lease

    @pytest.mark.fault(14)
    def test_a_second_driver_is_refused_with_host_process_and_heartbeat(self, folder):
        theirs = other_driver(folder)
        with pytest.raises(LeaseHeld, match=r"process 4711 on login2, last heartbeat 2026-05-28T20:26:40") as caught:
            acquire_lease(folder, NOON + LEASE_DURATION_S - 1)
        assert caught.value.lease == theirs

    @pytest.mark.fault(14)
    def test_it_is_free_once_its_heartbeat_is_older_than_it_lasts(self, folder):
        other_driver(folder)
        assert acquire_lease(folder, NOON + LEASE_DURATION_S).fencing == 2

    def test_it_is_free_at_once_after_a_release(self, folder):
        release_lease(folder, acquire_lease(folder, NOON), NOON + 1)
        assert acquire_lease(folder, NOON + 1).fencing == 2

    def test_the_number_grows_even_when_lease_json_is_gone(self, folder):
        write_json(folder.path / ".lease" / "000007.json", replace(other_driver(folder), fencing=7).to_json())
        folder.lease.unlink()
        assert acquire_lease(folder, NOON + LEASE_DURATION_S).fencing == 8

    def test_a_driver_that_claimed_it_and_has_not_written_lease_json_yet_holds_it(self, folder):
        acquire_lease(folder, NOON)
        folder.lease.unlink()
        with pytest.raises(LeaseHeld):
            acquire_lease(folder, NOON + 1)

    def test_a_newer_lease_is_not_guessed_at(self, folder):
        write_json(folder.lease, other_driver(folder).to_json() | {"schema": "parlay.lease/2"})
        with pytest.raises(LeaseDamaged, match=r"parlay\.lease/2"):
            acquire_lease(folder, NOON + LEASE_DURATION_S)


DAMAGED = ["", "{}", "[]", "null", '"x"', "[" * 20_000, '{"schema": "parlay.lease/1"}']
ODD = [None, [], {}, "", "x", True, 1.5]


class TestDamage:
    @pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
    def test_what_is_no_lease_is_said_with_the_file_and_what_to_do(self, folder, text):
        acquire_lease(folder, NOON)
        folder.lease.write_text(text)
        with pytest.raises(LeaseDamaged, match=str(folder.lease)) as damaged:
            current_lease(folder)
        assert damaged.value.fix.endswith(f"remove {folder.lease}")
        folder.lease.unlink()
        assert current_lease(folder).fencing == 1, "what is to be done helps, and the number is not given twice"

    @pytest.mark.parametrize("name", ["search_id", "fencing", "host", "pid", "heartbeat_at", "expires"])
    def test_a_value_of_another_type_is_no_leases(self, folder, name):
        lease = acquire_lease(folder, NOON).to_json()
        for value in ODD:
            if type(value) is not type(lease[name]) or (value == "x" and name.endswith(("_at", "expires"))):
                write_json(folder.lease, lease | {name: value})
                with pytest.raises(LeaseDamaged, match=str(folder.lease)):
                    current_lease(folder)

    def test_a_claim_that_is_none_is_said_too(self, folder):
        acquire_lease(folder, NOON)
        folder.lease.unlink()
        claim = folder.path / ".lease" / "000001.json"
        claim.write_text("")
        with pytest.raises(LeaseDamaged, match=str(claim)):
            acquire_lease(folder, NOON + LEASE_DURATION_S)

    def test_a_name_that_is_no_number_is_no_claim(self, folder):
        acquire_lease(folder, NOON)
        (folder.path / ".lease" / "1 (copy).json").write_text("")
        assert current_lease(folder).fencing == 1

    def test_a_driver_that_is_alive_writes_it_anew(self, folder):
        lease = acquire_lease(folder, NOON)
        folder.lease.write_text("{")
        assert renew_lease(folder, lease, NOON + 1) == current_lease(folder)


class TestTheDead:
    def test_a_holder_that_died_on_this_machine_is_taken_over_before_its_time_is_up(self, folder):
        child = subprocess.Popen([sys.executable, "-c", ""])
        child.wait()
        write_json(folder.lease, replace(acquire_lease(folder, NOON), pid=child.pid).to_json())
        assert acquire_lease(folder, NOON + 1).fencing == 2

    def test_a_reused_pid_is_not_the_old_driver(self, folder):
        mine = acquire_lease(folder, NOON)
        write_json(folder.lease, replace(mine, pid_started=mine.pid_started - 1).to_json())
        assert acquire_lease(folder, NOON + 1).fencing == 2

    def test_a_dead_process_of_that_number_says_nothing_about_another_machine(self, folder):
        other_driver(folder, pid_started=1)
        with pytest.raises(LeaseHeld):
            acquire_lease(folder, NOON + 1)

    def test_without_proc_only_the_heartbeat_counts(self, folder, monkeypatch):
        monkeypatch.setattr("orchestrator.search.lease._pid_scope", lambda: None)
        write_json(folder.lease, replace(acquire_lease(folder, NOON), pid=2**22 + 1).to_json())
        with pytest.raises(LeaseHeld):
            acquire_lease(folder, NOON + 1)
        assert acquire_lease(folder, NOON + LEASE_DURATION_S).fencing == 2


class TestTheLiving:
    @pytest.mark.parametrize("late_s", [0, 1, 3600, 1e6])
    def test_a_holder_that_lives_on_this_machine_keeps_it_however_late_its_heartbeat(self, folder, late_s):
        mine = acquire_lease(folder, NOON)
        with pytest.raises(LeaseHeld):
            acquire_lease(folder, mine.expires + late_s)
        assert current_lease(folder) == mine

    def test_whoever_is_refused_for_one_that_does_not_answer_learns_how_to_end_it(self, folder):
        mine = acquire_lease(folder, NOON)
        with pytest.raises(LeaseHeld, match=rf"does not respond: .*`kill -KILL {os.getpid()}` ends it"):
            acquire_lease(folder, mine.expires)

    def test_one_that_answers_is_not_to_be_ended(self, folder):
        mine = acquire_lease(folder, NOON)
        with pytest.raises(LeaseHeld) as caught:
            acquire_lease(folder, mine.expires - 1)
        assert "kill" not in str(caught.value)


class TestKeepingIt:
    def test_a_heartbeat_keeps_it_and_its_number(self, folder):
        lease = renew_lease(folder, acquire_lease(folder, NOON), NOON + 100)
        assert (lease.fencing, lease.heartbeat_at, lease.expires) == (1, NOON + 100, NOON + 100 + LEASE_DURATION_S)
        assert current_lease(folder) == lease

    def test_a_holder_that_slept_too_long_keeps_it_if_nobody_came(self, folder):
        lease = renew_lease(folder, acquire_lease(folder, NOON), NOON + 10 * LEASE_DURATION_S)
        assert lease.is_held(NOON + 11 * LEASE_DURATION_S - 1)
        assert current_lease(folder) == lease

    def test_what_a_full_disk_kept_from_being_freed_is_held_by_nobody_here_and_freed_once_there_is_room(
        self, folder, monkeypatch
    ):
        mine = acquire_lease(folder, NOON)
        with monkeypatch.context() as patched:
            patched.setattr("orchestrator.search.lease.write_json", full)
            release_lease(folder, mine, NOON + 1)
            retry_releases(NOON + 2)
        assert not mine.is_held(NOON + 3)
        assert current_lease(folder).expires == mine.expires
        retry_releases(NOON + 4)
        assert current_lease(folder).expires == NOON + 4
        assert acquire_lease(folder, NOON + 5).is_held(NOON + 5)

    def test_one_that_is_damaged_meanwhile_keeps_no_other_from_being_freed(self, tmp_path, monkeypatch):
        folders = [SearchFolder(tmp_path / name) for name in ("damaged", "whole")]
        for folder in folders:
            folder.path.mkdir()
            mine = acquire_lease(folder, NOON)
            with monkeypatch.context() as patched:
                patched.setattr("orchestrator.search.lease.write_json", full)
                release_lease(folder, mine, NOON + 1)
        folders[0].lease.write_text("{")
        retry_releases(NOON + 2)
        assert current_lease(folders[1]).expires == NOON + 2
        folders[0].lease.unlink()
        retry_releases(NOON + 3)

    def test_what_was_taken_meanwhile_is_not_freed_again(self, folder, monkeypatch):
        mine = acquire_lease(folder, NOON)
        with monkeypatch.context() as patched:
            patched.setattr("orchestrator.search.lease.write_json", full)
            release_lease(folder, mine, NOON + 1)
        following = acquire_lease(folder, NOON + 2)
        retry_releases(NOON + 3)
        assert following.fencing == 2
        assert current_lease(folder) == following

    def test_a_lease_that_a_full_disk_kept_from_being_taken_is_held_by_nobody(self, folder, monkeypatch):
        calls = iter([write_json, full])
        with monkeypatch.context() as patched:
            patched.setattr("orchestrator.search.lease.write_json", lambda path, data: next(calls)(path, data))
            with pytest.raises(OSError, match="No space"):
                acquire_lease(folder, NOON)
        assert acquire_lease(folder, NOON + 1).fencing == 2

    @pytest.mark.parametrize("use", [renew_lease, release_lease])
    def test_a_holder_that_was_taken_over_can_neither_keep_nor_free_it(self, folder, use):
        old = acquire_lease(folder, NOON)
        write_json(folder.lease, replace(old, expires=NOON).to_json())
        new = acquire_lease(folder, NOON + 1)
        with pytest.raises(LeaseLost, match=f"taken over by process {os.getpid()}"):
            use(folder, old, NOON + 2)
        assert current_lease(folder) == new

    def test_an_old_holder_that_overwrites_lease_json_after_all_takes_nothing_back(self, folder):
        old = acquire_lease(folder, NOON)
        write_json(folder.lease, replace(old, expires=NOON).to_json())
        new = acquire_lease(folder, NOON + 1)
        write_json(folder.lease, old.to_json())
        assert current_lease(folder) == new
        assert renew_lease(folder, new, NOON + 2).fencing == 2


@pytest.mark.processes
@pytest.mark.timeout(120)
class TestRealProcesses:
    def drivers(self, folder: SearchFolder, count: int) -> list[subprocess.Popen]:
        command = [sys.executable, "-c", HOLD, str(folder.path), str(NOON)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": REPOSITORY}
        drivers = [subprocess.Popen(command, **pipes) for _ in range(count)]
        for driver in drivers:
            assert driver.stdout.readline() == "ready\n"
        return drivers

    def race(self, drivers: list[subprocess.Popen]) -> list[list[str]]:
        for driver in drivers:
            driver.stdin.write("go\n")
            driver.stdin.flush()
        return [driver.stdout.readline().split() for driver in drivers]

    @pytest.mark.fault(14)
    def test_of_drivers_that_start_together_one_gets_it(self, folder):
        for expected in (1, 2, 3):
            drivers = self.drivers(folder, 4)
            answers = self.race(drivers)
            held = [driver for driver, answer in zip(drivers, answers, strict=True) if answer[0] == "held"]
            assert [a for a in answers if a[0] == "held"] == [["held", str(expected)]]
            assert all(a == ["refused", str(held[0].pid)] for a in answers if a[0] == "refused")
            for driver in drivers:
                driver.communicate("done\n")

    def test_a_driver_killed_with_sigkill_is_followed_at_once(self, folder):
        first, second = self.drivers(folder, 2)
        assert self.race([first]) == [["held", "1"]]
        first.send_signal(signal.SIGKILL)
        first.communicate()
        assert self.race([second]) == [["held", "2"]]
        second.communicate("done\n")

    def test_a_driver_killed_with_sigkill_that_nobody_buried_is_dead(self, folder):
        (driver,) = self.drivers(folder, 1)
        assert self.race([driver]) == [["held", "1"]]
        driver.kill()
        os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOWAIT)
        assert acquire_lease(folder, NOON).fencing == 2
        driver.communicate()

    def test_a_stopped_driver_keeps_it_until_it_is_killed(self, folder):
        (first,) = self.drivers(folder, 1)
        assert self.race([first]) == [["held", "1"]]
        first.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, first.pid, os.WSTOPPED)
        much_later = NOON + 100 * LEASE_DURATION_S
        with pytest.raises(LeaseHeld, match="does not respond"):
            acquire_lease(folder, much_later)
        first.kill()
        first.communicate()
        assert acquire_lease(folder, much_later).fencing == 2
