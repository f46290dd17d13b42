"""`--executor ray`: the driver is an actor, and the command that started it only waits for it."""

from __future__ import annotations

import signal

import pytest

from orchestrator.search.lease import current_lease
from tests.orchestrator.cli.parlay import parlay, parlay_here, start, write_search
from tests.orchestrator.slurm_searches import record_of, until
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchState

pytestmark = pytest.mark.timeout(120)  # each a command line or a few

LONG = ("--set", "search.max_trials=50", "--set", "tracking.enabled=false")


def the_search(folder) -> SearchFolder:
    [path] = until(lambda: [f.parent for f in folder.glob("runs/*/journal.jsonl") if f.stat().st_size], bool)
    return SearchFolder(path)


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_an_actor_drives_and_a_signal_has_it_stop_for_another_driver(tmp_path):
    command = start("run", write_search(tmp_path), "--executor", "ray", *LONG, cwd=tmp_path)
    folder = the_search(tmp_path)
    until(lambda: record_of(folder).state, lambda state: state is SearchState.RUNNING)
    lease = current_lease(folder)
    assert lease is not None
    assert lease.pid != command.pid
    command.send_signal(signal.SIGTERM)
    _, err = command.communicate(timeout=180)
    assert command.returncode == 75, err
    assert not record_of(folder).state.is_ended
    assert parlay("cancel", str(folder.path), cwd=tmp_path).code == 0


def test_an_executor_that_is_none_and_one_for_a_driver_in_a_job_are_refused(tmp_path):
    path = write_search(tmp_path)
    unknown = parlay_here("run", path, "--executor", "rya", "--json", cwd=tmp_path)
    elsewhere = parlay_here("submit", path, "--executor", "ray", "--as-job", "--json", cwd=tmp_path)
    assert [(a.code, a.json["error"]["key"]) for a in (unknown, elsewhere)] == [(2, "--executor")] * 2
    assert not (tmp_path / "runs").exists()
