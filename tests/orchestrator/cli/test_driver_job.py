"""A driver that is a Slurm job of its own, on a real Slurm."""

from __future__ import annotations

from datetime import datetime

import pytest

from slurm.sandbox.sandbox import SlurmSandbox
from tests.orchestrator.slurm_searches import Bench, answered, num_ended, record_of, until
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchState
from trials.trial import TrialState

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

TRIALS, FREE = 4, 2
"""Two run at a time; those after the free ones do not end before the test lets them, nor does the search."""
ALIVE = ("PENDING", "RUNNING", "COMPLETING")
CHAIN = ["PENDING", "RUNNING"]


@pytest.fixture
def bench(tmp_path, slurm_sandbox: SlurmSandbox) -> Bench:
    return Bench(tmp_path, slurm_sandbox)


def submitted(bench: Bench, *changes: str) -> tuple[SearchFolder, str]:
    """A search with a driver job, and the job's id."""
    path = bench.write(takes_s=0.2, free=FREE)
    few = ("--set", f"search.max_trials={TRIALS}", "--set", "search.parallel_trials=2", *changes)
    answer = bench.parlay("submit", path, "--as-job", "--job-time", "10", *few, "--json")
    assert answer.code == 0, answer.err
    assert set(answer.json) == {"schema", "search_id", "folder", "job_id"}
    return bench.the_search(), answer.json["job_id"]


def drivers(bench: Bench, folder: SearchFolder, *states: str) -> dict[str, str]:
    return bench.jobs(f"{folder.search_id}.driver", *states)


def link_behind(bench: Bench, folder: SearchFolder, running: str) -> str:
    """The one job that waits behind the driver in this job, once it runs."""
    states = until(lambda: drivers(bench, folder, "PENDING", "RUNNING"), lambda jobs: sorted(jobs.values()) == CHAIN)
    [waiting] = set(states) - {running}
    assert states[running] == "RUNNING"
    return waiting


def begin_now(bench: Bench, folder: SearchFolder, job: str) -> None:
    """Links of a chain begin a minute after their submission at the earliest."""
    begin = ("scontrol", "update", f"JobId={job}", "StartTime=now")
    until(lambda: bench.cluster.ask(*begin).returncode == 0 or job not in drivers(bench, folder, "PENDING"), bool)


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


def assert_booked_as_accounted(bench: Bench, folder: SearchFolder, *jobs: str) -> None:
    """These drivers' jobs are booked by their CPUs of the node's four; the last one until it ended the search."""
    record = record_of(folder)
    times = "squeue", "--noheader", "--states=all", f"--jobs={','.join(jobs)}", "--format=%A %S %e %C"
    rows = [line.split() for line in answered(bench.cluster, *times).splitlines()]
    held_h = {
        job: int(cpus) / 4 * (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds() / 3600
        for job, start, end, cpus in rows
    }
    booked_h = {job: usage.node_hours for job, usage in record.driver_jobs.items()}
    *earlier, last = jobs
    assert booked_h.keys() == {*jobs}
    assert {job: booked_h[job] for job in earlier} == {job: pytest.approx(held_h[job]) for job in earlier}
    assert 0.0 < booked_h[last] <= held_h[last] + 1 / 3600
    assert record.ended_at is not None
    attempts = sum(attempt.node_hours or 0.0 for trial in record.trials for attempt in trial.attempts)
    assert record.node_hours_used == pytest.approx(attempts + sum(booked_h.values()))


@pytest.mark.fault(15)
def test_a_driver_whose_time_is_up_hands_over_to_the_job_that_waits_behind_it(bench):
    folder, first = submitted(bench)
    until(lambda: num_ended(folder), lambda ended: ended == FREE)
    waiting = link_behind(bench, folder, first)
    answered(bench.cluster, "scancel", "--signal=USR1", "--batch", first)
    until(lambda: drivers(bench, folder), lambda jobs: jobs[first] == "COMPLETED")
    assert not record_of(folder).state.is_ended
    assert waiting in drivers(bench, folder, *ALIVE)
    begin_now(bench, folder, waiting)
    link_behind(bench, folder, waiting)
    bench.open_gate()
    until(lambda: record_of(folder).state.is_ended, bool)
    until(lambda: drivers(bench, folder, *ALIVE), lambda jobs: not jobs)
    states = drivers(bench, folder)
    assert {first: states[first], waiting: states[waiting]} == {first: "COMPLETED", waiting: "COMPLETED"}
    assert list(states.values()).count("CANCELLED") == len(states) - 2 == 1
    assert_done_once(bench, folder)
    assert_booked_as_accounted(bench, folder, first, waiting)


def test_a_killed_driver_is_succeeded_all_the_same(bench):
    """The driver gets no signal, as after an out-of-memory kill: the next link was queued before."""
    folder, first = submitted(bench)
    until(lambda: num_ended(folder), lambda ended: ended == FREE)
    waiting = link_behind(bench, folder, first)
    answered(bench.cluster, "scancel", "--signal=KILL", "--batch", first)
    until(lambda: drivers(bench, folder), lambda jobs: jobs[first] == "FAILED")
    begin_now(bench, folder, waiting)
    bench.open_gate()
    until(lambda: record_of(folder).state.is_ended, bool)
    until(lambda: drivers(bench, folder, *ALIVE), lambda jobs: not jobs)
    assert_done_once(bench, folder)
    assert_booked_as_accounted(bench, folder, first, waiting)


def test_cancel_ends_a_driver_in_a_job_and_the_one_that_waits_behind_it(bench):
    folder, first = submitted(bench)
    link_behind(bench, folder, first)
    until(lambda: record_of(folder).in_flight, bool)
    answer = bench.parlay("cancel", str(folder.path), "--json")
    assert (answer.code, answer.json["unreached"]) == (0, [])
    assert record_of(folder).state is SearchState.CANCELLED
    assert not bench.jobs(folder.search_id, *ALIVE)
    assert len(drivers(bench, folder)) == 2


@pytest.mark.walks
def test_a_search_has_one_driver_in_a_job_and_gets_another_once_both_are_gone(bench):
    folder, first = submitted(bench)
    link_behind(bench, folder, first)
    refused = bench.parlay("resume", str(folder.path), "--as-job", "--json")
    assert (refused.code, refused.json["error"]["code"]) == (5, "held")
    answered(bench.cluster, "scancel", f"--name={folder.search_id}.driver")
    until(lambda: drivers(bench, folder, *ALIVE), lambda jobs: not jobs)
    assert not record_of(folder).state.is_ended
    answer = bench.parlay("resume", str(folder.path), "--as-job", "--json")
    assert (answer.code, answer.json["search_id"]) == (0, folder.search_id)
    assert answer.json["job_id"] not in (first, None)
    bench.open_gate()
    until(lambda: record_of(folder).state.is_ended, bool)
    until(lambda: drivers(bench, folder, *ALIVE), lambda jobs: not jobs)
    assert_done_once(bench, folder)


def test_trials_inherit_nothing_of_their_drivers_job(bench):
    folder, first = submitted(bench)
    link_behind(bench, folder, first)
    of_driver = until(lambda: bench.environment_of(first), bool)
    trials = lambda: bench.jobs(f"{folder.search_id}.t", "RUNNING")  # noqa: E731
    of_trial = until(lambda: next(filter(None, map(bench.environment_of, trials())), {}), bool)
    assert of_driver["SLURM_JOB_ID"] == first != of_trial["SLURM_JOB_ID"]
    assert first not in {value for name, value in of_trial.items() if name.startswith("SLURM")}
    assert (of_driver["SLURM_NTASKS"], of_trial["SLURM_NTASKS"]) == ("1", "2")
    assert bench.parlay("cancel", str(folder.path)).code == 0


def test_a_job_without_slurm_or_too_short_is_refused_before_anything_is_written(bench):
    path = bench.write()
    short = bench.parlay("submit", path, "--as-job", "--job-time", "5", "--json")
    local = bench.parlay("submit", path, "--as-job", "--launcher", "local", "--json")
    alone = bench.parlay("submit", path, "--job-time", "8:00:00", "--json")
    assert [(answer.code, answer.json["error"]["key"]) for answer in (short, local, alone)] == [
        (2, "--job-time"),
        (2, "--as-job"),
        (2, "--job-time"),
    ]
    assert not (bench.place / "runs").exists()
