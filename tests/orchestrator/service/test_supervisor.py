"""The supervisor of drivers, their sessions and how these end, and its watch over stalls."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from orchestrator.cli.submit import hand_over_to_service
from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.exit_codes import ExitCode
from orchestrator.search.lease import acquire_lease, release_lease, renew_lease
from orchestrator.service.driver_process import DriverExit, DriverProcess
from orchestrator.service.executors import Processes
from orchestrator.service.quota import QuotaFile
from orchestrator.service.stall_watch import StallWatch
from orchestrator.service.state_dir import ServiceSearch, ServiceStateDir
from orchestrator.service.supervisor import (
    BACKOFF_S,
    HANG_S,
    HELD_RETRY_S,
    MAX_FAILURES,
    STOPPED_CHECK_S,
    DriverState,
    DriverSupervisor,
)
from search_spaces.errors import ExternalError
from tests.kit import created, loaded
from tests.orchestrator.cli.simulated import OK, OUT_OF_MEMORY, write_simulated_search
from tests.orchestrator.lifecycle.test_notify import KEEP_STDIN
from tests.orchestrator.service.services import driver_exit
from tests.orchestrator.slurm_searches import record_of, until
from tests.rig import Rig
from trials.files.folders import SearchFolder
from trials.ledger.commands import request_cancel
from trials.ledger.events import SearchState
from trials.ledger.location import ledger_url

FINISHED = DriverExit(ExitCode.SUCCESS, {"schema": "parlay.status/1"})
KILLED = DriverExit(-9, {})


def error(code: int, message: str) -> DriverExit:
    return DriverExit(code, {"error": {"message": message}})


class ScriptedDriver:
    """A driver that ends when the test says so."""

    ended: DriverExit | None = None
    was_killed = False

    def result(self) -> DriverExit | None:
        return self.ended

    def stop(self) -> None:
        self.ended = DriverExit(ExitCode.STOPPED_EARLY, {"schema": "parlay.status/1"})

    def kill(self) -> None:
        self.was_killed, self.ended = True, KILLED


class ScriptedExecutor(Processes):
    def __init__(self) -> None:
        self.started: list[str] = []
        self.drivers: list[ScriptedDriver] = []

    def start(self, driver: DriverProcess) -> ScriptedDriver:  # type: ignore[override]
        command = list(driver._command)
        self.started.append(Path(command[command.index("resume") + 1]).name)
        self.drivers.append(ScriptedDriver())
        return self.drivers[-1]


class SupervisorRig:
    def __init__(self, home: Path, max_in_flight: int | None = None):
        self.state_dir = ServiceStateDir.of(home)
        self.state_dir.folder.mkdir(parents=True, exist_ok=True)
        self.executor, self.now = ScriptedExecutor(), 0.0
        self.supervisor = DriverSupervisor(self.state_dir, self.executor, max_in_flight, lambda: self.now)

    def take(self, *names: str) -> None:
        for name in names:
            self.supervisor.supervise(ServiceSearch(name, self.state_dir.folder / name, "sqlite:////nowhere/ledger.db"))
        self.supervisor.iterate()

    def end(self, ended: DriverExit) -> None:
        """End the newest driver."""
        self.executor.drivers[-1].ended = ended
        self.supervisor.iterate()

    def after(self, seconds: float) -> int:
        """Number of drivers started once this much time has passed."""
        self.now += seconds
        self.supervisor.iterate()
        return len(self.executor.started)

    def entry(self, name: str = "a"):
        return self.supervisor.searches().get(name)


@pytest.fixture
def rig(tmp_path):
    return SupervisorRig(tmp_path)


def test_a_search_is_driven_at_once_also_by_the_next_supervisor_and_forgotten_when_it_has_ended(rig, tmp_path):
    rig.take("a", "b")
    assert rig.executor.started == ["a", "b"]
    assert set(rig.state_dir.read_searches()) == {"a", "b"}
    again = SupervisorRig(tmp_path)
    again.supervisor.iterate()
    assert again.executor.started == ["a", "b"], "a new supervisor goes on with the searches of the old one"
    rig.end(FINISHED)
    assert set(rig.state_dir.read_searches()) == set(rig.supervisor.searches()) == {"a"}


def test_a_driver_that_died_is_replaced_later_and_later_and_at_last_no_more(rig, logged):
    rig.take("a")
    waits = defaultdict(float)
    for turns in range(1, MAX_FAILURES + 1):
        rig.end(KILLED)
        assert rig.entry().state is DriverState.WAITING
        while rig.after(0.5) == turns:
            waits[turns] += 0.5
    assert [waits[n] + 0.5 for n in sorted(waits)] == [BACKOFF_S * 2**n for n in range(MAX_FAILURES)]
    rig.end(error(ExitCode.REFUSED, "no disk"))
    assert rig.entry().state is DriverState.STOPPED
    assert rig.entry().detail == "its driver failed 6 times in a row, last error: no disk"
    assert rig.after(10_000) == MAX_FAILURES + 1
    assert "has no driver any more" in logged[-1]


def test_a_search_that_was_given_up_is_driven_again_when_somebody_asks(rig):
    rig.take("a")
    rig.end(error(ExitCode.BAD_INPUT, "code has changed"))
    assert (rig.entry().state, rig.entry().detail) == (DriverState.STOPPED, "code has changed")
    rig.take("a")
    assert (rig.entry().state, rig.entry().failures) == (DriverState.DRIVING, 0)


@pytest.mark.slow
def test_a_stopped_search_holds_what_others_leave_in_flight_and_nothing_once_they_have_ended_it(tmp_path):
    rig, quota = SupervisorRig(tmp_path, max_in_flight=2), QuotaFile(tmp_path / "service" / "quota.json", 2)
    search = Rig("scripted", tmp_path)
    driver = search.open_driver()
    driver.recover()
    driver.iterate()
    name, folder = driver.search.search_id, tmp_path / "runs" / driver.search.search_id
    rig.supervisor.supervise(ServiceSearch(name, folder, "sqlite:////nowhere/ledger.db"))
    rig.supervisor.iterate()
    rig.end(error(ExitCode.BAD_INPUT, "code has changed"))
    assert quota.grant("other", 0, 2) == 0
    search.open_driver().run()
    rig.after(STOPPED_CHECK_S)
    assert quota.grant("other", 0, 2) == 2
    assert rig.supervisor.searches() == rig.state_dir.read_searches() == {}


def test_a_search_that_another_driver_holds_is_waited_for_and_that_is_no_failure(rig):
    rig.take("a")
    for turns in range(1, 3 * MAX_FAILURES):
        rig.end(error(ExitCode.HELD_BY_ANOTHER, "driven by process 7"))
        assert rig.entry().detail == "driven by process 7"
        assert rig.after(HELD_RETRY_S) == turns + 1


def full(*_) -> None:
    raise OSError("No space left on device")


def test_a_search_is_taken_and_forgotten_once_that_can_be_written_down(rig, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(ServiceStateDir, "write_searches", full)
        with pytest.raises(OSError, match="No space"):
            rig.take("a")
    rig.supervisor.iterate()
    assert (rig.supervisor.searches(), rig.executor.started) == ({}, [])
    rig.take("a")
    rig.executor.drivers[0].ended = FINISHED
    with monkeypatch.context() as patched:
        patched.setattr(ServiceStateDir, "write_searches", full)
        with pytest.raises(OSError, match="No space"):
            rig.supervisor.iterate()
    rig.supervisor.iterate()
    assert set(rig.state_dir.read_searches()) == set(rig.supervisor.searches()) == set()


@pytest.mark.parametrize("damage", ["{", "[]", '{"searches": [{"search_id": "a"}]}'])
def test_a_damaged_list_of_searches_is_reported_with_a_way_out(tmp_path, damage):
    state_dir = ServiceStateDir.of(tmp_path)
    state_dir.folder.mkdir()
    state_dir.searches.write_text(damage)
    with pytest.raises(ExternalError) as refused:
        state_dir.read_searches()
    assert str(state_dir.searches) in str(refused.value)
    assert "parlay resume" in (refused.value.fix or "")


HOUR_S = 3600.0


@pytest.fixture
def search(tmp_path) -> SearchFolder:
    """A search that nobody drives, and whose stalls are told to the file `told`."""
    told = {"events": ["stall"], "stall_after": "1h", "command": [*KEEP_STDIN, str(tmp_path / "told")]}
    return created(loaded(tmp_path, notify=told, work_dir=str(tmp_path / "runs")), ledger_url())


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
    assert "(0 trials in flight, 0 so far); the search has no driver since " in sent["message"]


def test_an_unreachable_folder_does_not_keep_others_from_being_told_of(own_home, search, tmp_path, monkeypatch):
    second = created(load_search_file(tmp_path / "search.yaml"), ledger_url())
    search.path.rename(tmp_path / "elsewhere")
    StallWatch(ledger_url()).check(time.time() + 2 * HOUR_S)
    (sent,) = map(json.loads, (tmp_path / "told").read_text().splitlines())
    assert sent["status"]["search_id"] == second.search_id


@pytest.fixture
def spec(tmp_path, monkeypatch) -> SearchSpec:
    monkeypatch.chdir(tmp_path)
    return load_search_file(write_simulated_search(tmp_path, OK, OUT_OF_MEMORY, OK))


@pytest.fixture
def to_drive(spec) -> SearchFolder:
    return created(spec, ledger_url())


def test_a_search_that_is_held_is_waited_for_without_a_process(rig, to_drive):
    acquire_lease(to_drive, time.time())
    rig.supervisor.supervise(ServiceSearch(to_drive.search_id, to_drive.path, ledger_url()))
    rig.supervisor.iterate()
    assert (rig.executor.started, rig.entry(to_drive.search_id).state) == ([], DriverState.WAITING)
    assert "driven by process" in rig.entry(to_drive.search_id).detail


@pytest.mark.fault(57)
def test_a_driver_that_does_not_renew_its_lease_is_ended_and_replaced(rig, to_drive):
    rig.supervisor.supervise(ServiceSearch(to_drive.search_id, to_drive.path, ledger_url()))
    rig.supervisor.iterate()
    lease = acquire_lease(to_drive, time.time())
    rig.after(HANG_S)
    assert not rig.executor.drivers[0].was_killed
    renew_lease(to_drive, lease, time.time() - HANG_S)
    rig.after(STOPPED_CHECK_S)
    assert rig.executor.drivers[0].was_killed
    release_lease(to_drive, lease, time.time())
    rig.after(0.0)
    assert rig.after(BACKOFF_S) == 2


@pytest.mark.slow
@pytest.mark.processes
class TestDriverProcess:
    """The real command, as the service starts it."""

    def test_one_that_is_held_says_so(self, to_drive):
        acquire_lease(to_drive, time.time())
        ended = driver_exit(to_drive)
        assert ended.was_held
        assert "driven by process" in ended.detail

    def test_a_search_that_is_to_be_cancelled_ends_although_it_could_not_go_on(self, to_drive):
        (to_drive.code / "trials" / "text.py").write_text("changed = True")
        request_cancel(ledger_url(), to_drive.search_id, time.time())
        assert driver_exit(to_drive).has_finished
        assert record_of(to_drive).state is SearchState.CANCELLED

    def test_what_would_be_refused_again_is_told_so(self, to_drive):
        (to_drive.code / "trials" / "text.py").write_text("changed = True")
        ended = driver_exit(to_drive)
        assert ended.is_refused
        assert "has changed since the search was created" in ended.detail
        assert ended.detail in to_drive.driver_log.read_text()

    @pytest.mark.parametrize("gone", ["journal.jsonl", "."])
    def test_a_search_whose_files_have_gone_is_not_asked_for_again_and_again(self, to_drive, gone):
        (to_drive.path / gone).rename(to_drive.path.parent / "gone")
        ended = driver_exit(to_drive)
        assert ended.is_refused
        assert "it has no journal.jsonl" in ended.detail

    def test_what_may_pass_is_told_so_and_written_down(self, to_drive, own_home):
        (own_home / "ledger.db").unlink()
        (own_home / "ledger.db").mkdir()
        ended = driver_exit(to_drive)
        assert (ended.has_finished, ended.was_held, ended.is_refused) == (False, False, False)
        assert ended.detail.splitlines()[0] in to_drive.driver_log.read_text()

    def test_one_that_is_killed_names_its_signal(self):
        driver = DriverProcess([sys.executable, "-c", "import time; time.sleep(60)"])
        driver.start()
        driver.kill()
        until(driver.result, lambda ended: ended is not None)
        assert driver.result() == KILLED
        assert driver.result().detail == "its process died: signal 9"


class TakingClient:
    taken: tuple[str, Path, str] | None = None
    refusal: ExternalError | None = None

    def resume(self, search_id: str, folder: Path, url: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.taken = (search_id, folder, url)


@pytest.fixture
def service(monkeypatch):
    client = TakingClient()
    health = {"pid": 4711, "slurm": {"SLURM_CONF": "/etc/slurm.conf", "SLURM_CLUSTERS": "big"}}
    monkeypatch.setattr("orchestrator.service.client.running_service", lambda home: (client, health))
    return client


@pytest.mark.parametrize(
    ("launcher", "here", "taker"),
    [
        ({"kind": "slurm"}, {}, 4711),
        ({"kind": "slurm"}, {"SLURM_CONF": "/opt/other.conf"}, None),
        ({"kind": "slurm"}, {"SLURM_CONF_SERVER": "ctl1:6817"}, None),
        ({"kind": "ray", "address": "auto"}, {}, None),
        ({"kind": "local"}, {"SLURM_CONF": "/opt/other.conf"}, 4711),
    ],
)
def test_a_service_takes_only_what_it_would_run_in_the_same_place(
    service, to_drive, spec, monkeypatch, launcher, here, taker
):
    for name, value in {"SLURM_CONF": "/etc/slurm.conf", "SLURM_CLUSTERS": "big", **here}.items():
        monkeypatch.setenv(name, value)
    object.__setattr__(spec, "launcher", spec.launcher.model_copy(update={"table": None, **launcher}))
    assert hand_over_to_service(to_drive, spec, ledger_url()) == taker
    assert (service.taken is not None) == (taker is not None)


def test_a_service_that_refuses_a_search_leaves_it_to_a_driver_of_its_own(service, to_drive, spec, logged):
    service.refusal = ExternalError("the service does not answer: timed out")
    assert hand_over_to_service(to_drive, spec, ledger_url()) is None
    assert "a separate driver process" in logged[0]
