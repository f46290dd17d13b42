"""Drivers of a search on Slurm that are not resident: turns that cron starts, and jobs of their own."""

from __future__ import annotations

import shlex
import subprocess
import time
from types import SimpleNamespace

import pytest

from orchestrator.cli import advance
from orchestrator.cli.output import Exit
from orchestrator.config.schema.launcher import LauncherSection
from orchestrator.records import lookup
from orchestrator.search.lease import acquire_lease
from search_spaces.errors import InputError
from slurm.sandbox.sandbox import SlurmSandbox
from tests.orchestrator.slurm_searches import Bench, answered, num_ended, record_of, until
from tests.orchestrator.unfinished_searches import search_with_a_job
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchState
from trials.ledger.reader import LedgerReader
from trials.trial import TrialState

TRIALS, FREE = 4, 2
"""Two run at a time; those after the free ones do not end before the test lets them, nor does the search."""
FEW = ("--set", f"search.max_trials={TRIALS}", "--set", "search.parallel_trials=2")


@pytest.fixture
def bench(tmp_path, slurm_sandbox: SlurmSandbox) -> Bench:
    return Bench(tmp_path, slurm_sandbox)


@pytest.mark.walks
@pytest.mark.processes
@pytest.mark.timeout(240)
def test_the_line_for_cron_drives_a_search_to_its_end(bench):
    submitted = bench.parlay("submit", bench.write(takes_s=0.2), "--cron", *FEW, "--json")
    assert submitted.code == 0, submitted.err
    folder, line = bench.the_search(), submitted.json["crontab"]
    assert record_of(folder).state is SearchState.CREATED
    assert submitted.json["scrontab"][-1].endswith(shlex.quote(str(folder.cron_script)))
    # As cron does: without the variables of the user's shell.
    command = line.split(maxsplit=5)[5].replace(r"\%", "%")
    of_cron = {"HOME": str(bench.place), "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}
    deadline = time.monotonic() + 120
    while not record_of(folder).state.is_ended:
        assert time.monotonic() < deadline, folder.driver_log.read_text()[-2000:]
        turn = subprocess.run(["/bin/sh", "-c", command], env=of_cron, cwd="/", timeout=60)
        assert turn.returncode == 0, folder.driver_log.read_text()[-2000:]
    record = record_of(folder)
    assert [trial.state for trial in record.trials] == [TrialState.MEASURED] * TRIALS
    assert [len(trial.attempts) for trial in record.trials] == [1] * TRIALS
    assert folder.recipe.exists()
    again = bench.parlay("advance", str(folder.path), "--json")
    assert (again.code, again.json["state"]) == (0, "completed")
    assert record_of(folder).last_seq == record.last_seq


@pytest.mark.timeout(120)
def test_a_search_that_is_driven_gets_no_turn(tmp_path, parlay):
    """Of a search alone, and of all of them."""
    search = search_with_a_job(tmp_path)
    acquire_lease(search, time.time())
    code, answer, _ = parlay("advance", search.path)
    assert (code, answer["error"]["code"]) == (5, "held")
    code, answer, _ = parlay("advance", "--all")
    assert (code, answer["held"], answer["searches"]) == (5, [search.search_id], [])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["slurm_pilot", "local"])
def test_only_jobs_of_their_own_may_be_left_to_turns(kind):
    """Between two turns a pilot would be idle, and end."""
    with pytest.raises(InputError) as refused:
        advance.require_detached_jobs(LauncherSection(kind=kind), "--cron")
    [problem] = refused.value.problems
    assert (problem.key, problem.value) == ("--cron", kind)
    assert "`parlay submit` without --cron" in problem.fix
    advance.require_detached_jobs(LauncherSection(kind="slurm"), "--cron")


@pytest.mark.timeout(120)
def test_a_search_that_cannot_be_read_keeps_no_other_from_its_turn(tmp_path, monkeypatch, capsys):
    asked: list[str] = []

    def damaged(search_id: str, url: str) -> None:
        asked.append(search_id)
        raise InputError.of("search_json", "is no search as Parlay writes it down")

    ids = ["one-aaaaaa", "two-aaaaaa"]
    found = [SimpleNamespace(search_id=search_id, state=SearchState.RUNNING) for search_id in ids]
    monkeypatch.setattr(LedgerReader, "searches", lambda reader: found)
    monkeypatch.setattr(lookup, "find_search", damaged)
    (tmp_path / "ledger.db").touch()
    with pytest.raises(Exit):
        advance._advance_all(f"sqlite:///{tmp_path / 'ledger.db'}")
    assert asked == ids


ALIVE = ("PENDING", "RUNNING", "COMPLETING")
CHAIN = ["PENDING", "RUNNING"]


def submitted(bench: Bench, *changes: str) -> tuple[SearchFolder, str]:
    """A search with a driver job, and the job's id."""
    path = bench.write(takes_s=0.2, free=FREE)
    answer = bench.parlay("submit", path, "--as-job", "--job-time", "10", *FEW, *changes, "--json")
    assert answer.code == 0, answer.err
    assert {key for key, value in answer.json.items() if value} == {"schema", "search_id", "folder", "job_id"}
    return bench.the_search(), answer.json["job_id"]


def drivers(bench: Bench, folder: SearchFolder, *states: str) -> dict[str, str]:
    return bench.jobs(f"{folder.search_id}.driver", *states)


def link_behind(bench: Bench, folder: SearchFolder, running: str) -> str:
    """The one job that waits behind the driver in this job, once it runs."""
    states = until(lambda: drivers(bench, folder, "PENDING", "RUNNING"), lambda jobs: sorted(jobs.values()) == CHAIN)
    [waiting] = set(states) - {running}
    assert states[running] == "RUNNING"
    return waiting


def assert_done_once(bench: Bench, folder: SearchFolder) -> None:
    """Every trial was measured in its only attempt, by the only job of its name, and no job is left."""
    record = record_of(folder)
    assert record.state is SearchState.COMPLETED
    assert [trial.state for trial in record.trials] == [TrialState.MEASURED] * TRIALS
    assert len({trial.layout.key for trial in record.trials}) == TRIALS
    assert [len(trial.attempts) for trial in record.trials] == [1] * TRIALS
    until(lambda: bench.jobs(f"{folder.search_id}.t", *ALIVE), lambda left: not left)
    jobs = bench.jobs(f"{folder.search_id}.t")
    assert set(jobs) == {trial.attempts[0].job_id for trial in record.trials}
    assert set(jobs.values()) == {"COMPLETED"}


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.fault(15)
def test_a_driver_whose_time_is_up_hands_over_to_the_job_that_waits_behind_it(bench):
    folder, first = submitted(bench)
    until(lambda: num_ended(folder), lambda ended: ended == FREE)
    waiting = link_behind(bench, folder, first)
    answered(bench.cluster, "scancel", "--signal=USR1", "--batch", first)
    until(lambda: drivers(bench, folder), lambda jobs: jobs[first] == "COMPLETED")
    assert not record_of(folder).state.is_ended
    assert waiting in drivers(bench, folder, *ALIVE)
    # Links of a chain begin a minute after their submission at the earliest.
    begin = ("scontrol", "update", f"JobId={waiting}", "StartTime=now")
    until(lambda: bench.cluster.ask(*begin).returncode == 0 or waiting not in drivers(bench, folder, "PENDING"), bool)
    link_behind(bench, folder, waiting)
    bench.open_gate()
    until(lambda: record_of(folder).state.is_ended, bool)
    until(lambda: drivers(bench, folder, *ALIVE), lambda jobs: not jobs)
    states = drivers(bench, folder)
    assert {first: states[first], waiting: states[waiting]} == {first: "COMPLETED", waiting: "COMPLETED"}
    assert list(states.values()).count("CANCELLED") == len(states) - 2 == 1
    assert_done_once(bench, folder)


@pytest.mark.walks
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_trials_inherit_nothing_of_their_drivers_job_and_cancel_ends_it_and_the_one_behind_it(bench):
    folder, first = submitted(bench)
    link_behind(bench, folder, first)
    of_driver = until(lambda: bench.environment_of(first), bool)
    trials = lambda: bench.jobs(f"{folder.search_id}.t", "RUNNING")  # noqa: E731
    of_trial = until(lambda: next(filter(None, map(bench.environment_of, trials())), {}), bool)
    assert of_driver["SLURM_JOB_ID"] == first != of_trial["SLURM_JOB_ID"]
    assert first not in {value for name, value in of_trial.items() if name.startswith("SLURM")}
    assert (of_driver["SLURM_NTASKS"], of_trial["SLURM_NTASKS"]) == ("1", "2")
    answer = bench.parlay("cancel", str(folder.path), "--json")
    assert (answer.code, answer.json["unreached"]) == (0, [])
    assert record_of(folder).state is SearchState.CANCELLED
    assert not bench.jobs(folder.search_id, *ALIVE)
    assert len(drivers(bench, folder)) == 2
