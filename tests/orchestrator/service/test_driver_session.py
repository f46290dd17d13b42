"""A driver's session under a supervisor: its results, and errors that become results."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.cli.serve import hand_over_to_service
from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.create import create_search
from orchestrator.search.lease import acquire_lease
from orchestrator.service.driver_session import DriverExit, DriverSession
from search_spaces.errors import ExternalError
from tests.orchestrator.cli.simulated import OK, OUT_OF_MEMORY, write_simulated_search
from tests.orchestrator.slurm_searches import record_of
from trials.files.folders import SearchFolder
from trials.ledger.commands import request_cancel
from trials.ledger.events import SearchState
from trials.ledger.location import ledger_url


@pytest.fixture
def spec(tmp_path, monkeypatch) -> SearchSpec:
    monkeypatch.chdir(tmp_path)
    return load_search_file(write_simulated_search(tmp_path, OK, OUT_OF_MEMORY, OK))


@pytest.fixture
def search(spec) -> SearchFolder:
    return create_search(spec, ledger_url())


def turn_of(search: SearchFolder) -> DriverSession:
    return DriverSession(search.path, ledger_url())


def test_a_search_that_is_held_is_left_alone(search):
    acquire_lease(search, time.time())
    result = turn_of(search).run()
    assert result.end is DriverExit.HELD
    assert "driven by process" in result.detail


@pytest.mark.slow
def test_a_search_that_is_to_be_cancelled_ends_although_it_could_not_go_on(search):
    (search.code / "trials" / "text.py").write_text("changed = True")
    request_cancel(ledger_url(), search.search_id, time.time())
    assert turn_of(search).run().end is DriverExit.ENDED
    assert record_of(search).state is SearchState.CANCELLED


def test_what_would_be_refused_again_is_told_so(search):
    (search.code / "trials" / "text.py").write_text("changed = True")
    result = turn_of(search).run()
    assert result.end is DriverExit.REFUSED
    assert "has changed since the search was created" in result.detail
    assert result.detail in search.driver_log.read_text()


@pytest.mark.parametrize("gone", ["journal.jsonl", "."])
def test_a_search_whose_files_have_gone_is_not_asked_for_again_and_again(search, gone):
    (search.path / gone).rename(search.path.parent / "gone")
    result = turn_of(search).run()
    assert result.end is DriverExit.REFUSED
    assert "it has no journal.jsonl" in result.detail


@pytest.mark.parametrize("error", [ExternalError("the database is away"), OSError("no disk"), ZeroDivisionError("bug")])
def test_what_may_pass_is_told_so_and_written_down(search, monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr("orchestrator.service.driver_session.drive", fails)
    result = turn_of(search).run()
    assert result.end is DriverExit.FAILED
    assert str(error) in result.detail
    assert str(error) in search.driver_log.read_text()


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
    service, search, spec, monkeypatch, launcher, here, taker
):
    for name, value in {"SLURM_CONF": "/etc/slurm.conf", "SLURM_CLUSTERS": "big", **here}.items():
        monkeypatch.setenv(name, value)
    object.__setattr__(spec, "launcher", spec.launcher.model_copy(update={"table": None, **launcher}))
    assert hand_over_to_service(search, spec, ledger_url()) == taker
    assert (service.taken is not None) == (taker is not None)


def test_a_service_that_refuses_a_search_leaves_it_to_a_driver_of_its_own(service, search, spec, logged):
    service.refusal = ExternalError("the service does not answer: timed out")
    assert hand_over_to_service(search, spec, ledger_url()) is None
    assert "a separate driver process" in logged[0]
