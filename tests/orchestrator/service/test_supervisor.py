"""The supervisor of drivers, their sessions and how these end, and its watch over stalls."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path

import pytest

from orchestrator.cli.serve import hand_over_to_service
from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.create import create_search
from orchestrator.search.lease import acquire_lease
from orchestrator.service.driver_session import DriverExit, DriverResult, DriverSession
from orchestrator.service.executors import Executor, ExecutorKind
from orchestrator.service.quota_file import QuotaFile
from orchestrator.service.stall_watch import StallWatch
from orchestrator.service.state_dir import ServiceSearch, ServiceStateDir
from orchestrator.service.supervisor import (
    BACKOFF_S,
    HELD_RETRY_S,
    MAX_FAILURES,
    STOPPED_CHECK_S,
    DriverState,
    DriverSupervisor,
)
from search_spaces.errors import ExternalError
from tests.kit import loaded
from tests.orchestrator.cli.simulated import OK, OUT_OF_MEMORY, write_simulated_search
from tests.orchestrator.lifecycle.test_notify import KEEP_STDIN
from tests.orchestrator.slurm_searches import record_of
from tests.rig import Rig
from trials.files.folders import SearchFolder
from trials.ledger.commands import request_cancel
from trials.ledger.events import SearchState
from trials.ledger.location import ledger_url


class ScriptedExecutor(Executor):
    """Sessions end when the test says so."""

    kind = ExecutorKind.RAY

    def __init__(self) -> None:
        self.started: list[str] = []
        self.results: dict[int, DriverResult] = {}

    def start(self, session: DriverSession) -> int:
        self.started.append(session._folder.search_id)
        return len(self.started) - 1

    def result(self, running: int) -> DriverResult | None:
        return self.results.get(running)

    def stop(self, running: int) -> None:
        self.results[running] = DriverResult(DriverExit.STOPPED)

    def close(self) -> None: ...


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

    def end(self, end: DriverExit, detail: str = "") -> None:
        """End the newest session."""
        self.executor.results[len(self.executor.started) - 1] = DriverResult(end, detail)
        self.supervisor.iterate()

    def after(self, seconds: float) -> int:
        """Number of sessions started once this much time has passed."""
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
    rig.end(DriverExit.ENDED)
    assert set(rig.state_dir.read_searches()) == set(rig.supervisor.searches()) == {"a"}


def test_a_driver_that_died_is_replaced_later_and_later_and_at_last_no_more(rig, logged):
    rig.take("a")
    waits = defaultdict(float)
    for turns in range(1, MAX_FAILURES + 1):
        rig.end(DriverExit.LOST, "its process died")
        assert rig.entry().state is DriverState.WAITING
        while rig.after(0.5) == turns:
            waits[turns] += 0.5
    assert [waits[n] + 0.5 for n in sorted(waits)] == [BACKOFF_S * 2**n for n in range(MAX_FAILURES)]
    rig.end(DriverExit.FAILED, "no disk")
    assert rig.entry().state is DriverState.STOPPED
    assert rig.entry().detail == "its driver failed 6 times in a row, last error: no disk"
    assert rig.after(10_000) == MAX_FAILURES + 1
    assert "has no driver any more" in logged[-1]


def test_a_search_that_was_given_up_is_driven_again_when_somebody_asks(rig):
    rig.take("a")
    rig.end(DriverExit.REFUSED, "code has changed")
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
    rig.end(DriverExit.REFUSED, "code has changed")
    assert quota.grant("other", 0, 2) == 0
    search.open_driver().run()
    rig.after(STOPPED_CHECK_S)
    assert quota.grant("other", 0, 2) == 2
    assert rig.supervisor.searches() == rig.state_dir.read_searches() == {}


def test_a_search_that_another_driver_holds_is_waited_for_and_that_is_no_failure(rig):
    rig.take("a")
    for turns in range(1, 3 * MAX_FAILURES):
        rig.end(DriverExit.HELD, "driven by process 7")
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
    rig.executor.results[0] = DriverResult(DriverExit.ENDED)
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
    return create_search(loaded(tmp_path, notify=told, work_dir=str(tmp_path / "runs")), ledger_url())


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


def test_an_unreachable_folder_does_not_keep_others_from_being_told_of(own_home, search, tmp_path, monkeypatch):
    second = create_search(load_search_file(tmp_path / "search.yaml"), ledger_url())
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
    return create_search(spec, ledger_url())


def turn_of(search: SearchFolder) -> DriverSession:
    return DriverSession(search.path, ledger_url())


def test_a_search_that_is_held_is_left_alone(to_drive):
    acquire_lease(to_drive, time.time())
    result = turn_of(to_drive).run()
    assert result.end is DriverExit.HELD
    assert "driven by process" in result.detail


@pytest.mark.slow
def test_a_search_that_is_to_be_cancelled_ends_although_it_could_not_go_on(to_drive):
    (to_drive.code / "trials" / "text.py").write_text("changed = True")
    request_cancel(ledger_url(), to_drive.search_id, time.time())
    assert turn_of(to_drive).run().end is DriverExit.ENDED
    assert record_of(to_drive).state is SearchState.CANCELLED


def test_what_would_be_refused_again_is_told_so(to_drive):
    (to_drive.code / "trials" / "text.py").write_text("changed = True")
    result = turn_of(to_drive).run()
    assert result.end is DriverExit.REFUSED
    assert "has changed since the search was created" in result.detail
    assert result.detail in to_drive.driver_log.read_text()


@pytest.mark.parametrize("gone", ["journal.jsonl", "."])
def test_a_search_whose_files_have_gone_is_not_asked_for_again_and_again(to_drive, gone):
    (to_drive.path / gone).rename(to_drive.path.parent / "gone")
    result = turn_of(to_drive).run()
    assert result.end is DriverExit.REFUSED
    assert "it has no journal.jsonl" in result.detail


@pytest.mark.parametrize("error", [ExternalError("the database is away"), OSError("no disk"), ZeroDivisionError("bug")])
def test_what_may_pass_is_told_so_and_written_down(to_drive, monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr("orchestrator.service.driver_session.drive", fails)
    result = turn_of(to_drive).run()
    assert result.end is DriverExit.FAILED
    assert str(error) in result.detail
    assert str(error) in to_drive.driver_log.read_text()


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
