"""Searches on a real Slurm under faults: every trial runs once, and every job is accounted for."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from slurm.sandbox.daemons import running_pids
from slurm.sandbox.sandbox import SLURMCTLD
from tests.orchestrator.slurm_searches import Bench, num_ended, record_of, until
from tests.slurm.sandboxes import FaultySandbox, sandbox
from trials.files.folders import SearchFolder, read_json
from trials.ledger.events import SearchRecord, SearchState
from trials.ledger.fold import fold
from trials.ledger.journal import Journal
from trials.trial import Attempt, FailureReason, TrialState

pytestmark = [pytest.mark.processes, pytest.mark.minutes, pytest.mark.timeout(1200)]

BUDGET_NODE_HOURS = 0.5
# A node that dies takes one trial along, and none is being started on it.
ROUGH = {"search": {"budget_node_hours": BUDGET_NODE_HOURS}, "launcher": {"slurm": {"exclusive": True}}}
EIGHT = {"max_trials": 8, "parallel_trials": 2}

# Trials, by their place in the search, that do not end before something has happened to them; as many as may run at a
# time are there when the controller is killed, so that nothing is being submitted.
END_WHILE_SLURMCTLD_IS_DOWN = (6, 7)
END_WHEN_SLURMCTLD_IS_BACK = (8, 9)
ON_A_NODE_THAT_DIES = 14
REQUEUED = 22
DOWN, BACK, DEAD, AGAIN = "down", "back", "dead", "again"
HELD = {
    **dict.fromkeys(END_WHILE_SLURMCTLD_IS_DOWN, DOWN),
    **dict.fromkeys(END_WHEN_SLURMCTLD_IS_BACK, BACK),
    ON_A_NODE_THAT_DIES: DEAD,
    REQUEUED: AGAIN,
}

LONGEST_S = 300.0
"""A job whose step ended without a controller is a minute in ending; so long is a submission looked for of which a
killed driver left no word."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[FaultySandbox]:
    """A private Slurm with accounting, whose daemons are killed."""
    with sandbox(accounting=True) as started:
        yield started


class DisturbedSearch:
    """A search and its current driver, which may be killed at any time."""

    def __init__(self, bench: Bench, search_file: Path):
        self.bench = bench
        self.driver = bench.start("run", search_file, tabled=True)
        self.folder: SearchFolder = bench.the_search()

    def kill_driver(self) -> None:
        self.driver.kill()
        self.driver.wait()

    def resume(self) -> None:
        self.driver = self.bench.start("resume", self.folder.path)

    def is_at(self, ended: int) -> None:
        """Wait until this number of trials has ended."""
        until(lambda: num_ended(self.folder), lambda found: found >= ended, LONGEST_S)

    def running(self, number: int) -> Attempt:
        """The attempt of the search's trial of this number, once it runs: not its job alone, of which srun may still
        have to ask the controller for its step, but the trial program."""

        def look() -> Attempt | None:
            trials = record_of(self.folder).trials
            last = trials[number].last_attempt if number < len(trials) else None
            return last if last is not None and last.state is TrialState.RUNNING else None

        attempt = until(look, lambda found: found is not None, LONGEST_S)
        assert attempt is not None
        until(self.folder.attempt(attempt.trial, attempt.attempt).metrics().exists, bool)
        return attempt

    def has_measured(self, attempt: Attempt) -> None:
        """Wait until the trial program has written its outcome."""
        until(self.folder.attempt(attempt.trial, attempt.attempt).outcome().exists, bool)

    def end(self) -> SearchRecord:
        assert self.driver.wait(300) == 0, (self.bench.place / "driver.out").read_text()[-2000:]
        return record_of(self.folder)


def kill_controller(search: DisturbedSearch) -> None:
    """Stop the controller: some jobs end meanwhile, others go on, and the driver gets no answers."""
    cluster = search.bench.cluster
    ending = [search.running(number) for number in END_WHILE_SLURMCTLD_IS_DOWN]
    for number in END_WHEN_SLURMCTLD_IS_BACK:
        search.running(number)
    write_down(cluster, ending[0])
    cluster.kill(SLURMCTLD)
    search.bench.open_gate(DOWN)
    for attempt in ending:
        search.has_measured(attempt)
    until(lambda: [a.unknown_since for a in record_of(search.folder).in_flight], any)
    cluster.start_daemon(SLURMCTLD)
    search.bench.open_gate(BACK)


def write_down(cluster: FaultySandbox, attempt: Attempt) -> None:
    """Wait until the controller's state is on disk, and in it a remark about this job: killed before, a controller
    forgets jobs that it accepted."""
    remark = "known-before-the-kill"
    done = cluster.ask("scontrol", "update", f"JobId={attempt.job_id}", f"Comment={remark}")
    assert done.returncode == 0, done.stderr

    def written() -> bool:
        with suppress(FileNotFoundError):  # for a moment, while it is replaced
            return remark.encode() in (cluster.paths.folder / "state/job_state").read_bytes()
        return False

    until(written, bool)


def kill_node(search: DisturbedSearch) -> str:
    """The name of a node that dies under a trial, with its slurmd and all it ran: nobody is left to tell of it."""
    attempt, cluster = search.running(ON_A_NODE_THAT_DIES), search.bench.cluster
    [node] = attempt.nodes
    assert attempt.job_id is not None
    cluster.kill(node)
    for look in (search.bench.steps_of, search.bench.processes_of):
        until(partial(killed, look, attempt.job_id), lambda found: not found)
    return node


def killed(look: Callable[[str], list[int]], job: str) -> list[int]:
    """Kill the job's processes and return those that were found."""
    found = look(job)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def requeue(search: DisturbedSearch) -> None:
    """Requeue the job as an operator does, without Slurm's two minutes of waiting. Only its next run may end."""
    job, bench = str(search.running(REQUEUED).job_id), search.bench
    until(lambda: bench.steps_of(job), bool)
    for command in (("update", f"JobId={job}", "Requeue=1"), ("requeue", job)):
        done = bench.cluster.ask("scontrol", *command)
        assert done.returncode == 0, done.stderr
    waits = ("squeue", "--noheader", f"--jobs={job}", "--format=%T|%r")
    until(lambda: bench.cluster.ask(*waits).stdout.strip(), lambda words: words == "PENDING|BeginTime")
    bench.open_gate(AGAIN)
    # The two minutes are there for this: the node revoked every credential of the job up to the second of the requeue,
    # and a run that starts in that same second is refused there, which Slurm records as FAILED with exit code 1.
    bench.cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now+1")


@pytest.mark.walks
@pytest.mark.fault(2, 9, 14, 18, 19)
def test_a_search_of_thirty_trials_survives_what_happens_to_slurm_and_to_its_driver(tmp_path, cluster):
    bench = Bench(tmp_path, cluster)
    search = DisturbedSearch(bench, bench.write(takes_s=0.2, held=HELD, **ROUGH))
    search.is_at(3)
    search.kill_driver()
    search.resume()
    kill_controller(search)
    node = kill_node(search)
    search.is_at(16)
    search.kill_driver()
    search.resume()
    until(lambda: record_of(search.folder).trials[ON_A_NODE_THAT_DIES].attempts[0].state.is_ended, bool, LONGEST_S)
    bench.open_gate(DEAD)
    requeue(search)
    search.kill_driver()
    search.resume()
    record = search.end()
    cluster.start_daemon(node)

    assert [trial.state for trial in record.trials] == [TrialState.MEASURED] * 30
    assert_as_an_undisturbed_one(record, tmp_path / "table.json")
    assert_traced(bench, search.folder, record)
    assert_within_budget(search.folder)
    assert_nothing_left(bench, search.folder)
    hurt, put_back = record.trials[ON_A_NODE_THAT_DIES], record.trials[REQUEUED]
    assert [attempt.reason for attempt in hurt.attempts] == [FailureReason.NODE_FAILURE, None]
    assert node in hurt.attempts[1].exclude
    assert node not in hurt.attempts[1].nodes
    assert [attempt.restart for attempt in put_back.attempts] == [1]
    assert [len(trial.attempts) for trial in record.trials if trial is not hurt] == [1] * 29


@pytest.mark.fault(2, 9, 10)
def test_without_accounting_a_search_survives_a_restarted_controller_and_a_killed_driver(tmp_path, slurm_sandbox):
    bench = Bench(tmp_path, slurm_sandbox)
    search = DisturbedSearch(bench, bench.write(takes_s=0.2, held={2: DOWN, 3: BACK}, search=EIGHT))
    attempt, _ = search.running(2), search.running(3)  # both slots: nothing is being submitted
    slurm_sandbox.kill(SLURMCTLD, signal.SIGTERM)
    search.kill_driver()
    search.resume()
    bench.open_gate(DOWN)
    search.has_measured(attempt)  # it ended while there was no controller to say so
    slurm_sandbox.start_daemon(SLURMCTLD)
    bench.open_gate(BACK)
    record = search.end()
    assert [trial.state for trial in record.trials] == [TrialState.MEASURED] * 8
    assert [len(trial.attempts) for trial in record.trials] == [1] * 8
    assert set(bench.jobs(f"{search.folder.search_id}.")) == {trial.attempts[0].job_id for trial in record.trials}
    assert_nothing_left(bench, search.folder)


# -- what must hold


def assert_as_an_undisturbed_one(record: SearchRecord, table: Path) -> None:
    """The grid's first thirty layouts, each once and in order, of which the one with the shortest step is the best."""
    assert record.state is SearchState.COMPLETED
    step_times_s = {key: row["step_time_s"] for key, row in [*json.loads(table.read_text()).items()][:30]}
    assert [trial.layout.key for trial in record.trials] == [*step_times_s]
    best = record.trial(record.best_trial)
    assert best.layout.key == min(step_times_s, key=lambda key: step_times_s[key])
    assert best.measured.step_time_s == step_times_s[best.layout.key]


def accounted_runs(bench: Bench, folder: SearchFolder) -> list[tuple[str, str]]:
    """Id and name of every run of the search's jobs in Slurm's accounting, requeued ones included."""
    columns = ("sacct", "--duplicates", "--allocations", "--noheader", "--parsable2", "--format=JobIDRaw,JobName")
    rows = [line.split("|") for line in bench.cluster.ask(*columns, "--starttime=now-1hour").stdout.splitlines()]
    return sorted((job, name) for job, name in rows if name.startswith(f"{folder.search_id}."))


def assert_traced(bench: Bench, folder: SearchFolder, record: SearchRecord) -> None:
    """Every run that Slurm accounted is an attempt's or one of its restarts, and the other way round; every number
    leads to the job that measured it, and to its log."""
    known = [
        (attempt.job_id, f"{folder.search_id}.{attempt.trial}.{attempt.attempt}")
        for trial in record.trials
        for attempt in trial.attempts
        for _ in range(1 + attempt.restart)
    ]
    until(lambda: accounted_runs(bench, folder), lambda runs: runs == sorted(known))  # accounting lags behind
    for attempt in (trial.attempts[-1] for trial in record.trials):
        files = folder.attempt(attempt.trial, attempt.attempt)
        outcome = read_json(files.outcome(attempt.restart))
        assert (outcome["nonce"], outcome["restart"]) == (attempt.nonce, attempt.restart)
        assert outcome["measured"] == attempt.outcome.measured.to_json()
        for file in (files.metrics(attempt.restart), files.rank_log(0), files.path / "job.log"):
            assert file.exists()


def assert_within_budget(folder: SearchFolder) -> None:
    """Check after every event that used and reserved node-hours are within the budget."""
    events = Journal(folder.journal).read()
    for number in range(1, len(events) + 1):
        record = fold(folder.search_id, events[:number])
        assert record is not None
        assert record.node_hours_used + record.node_hours_reserved <= BUDGET_NODE_HOURS
    assert record.node_hours_reserved == 0
    assert record.node_hours_used > 0


def assert_nothing_left(bench: Bench, folder: SearchFolder) -> None:
    """Neither jobs nor processes that name the search's folder: drivers, batch scripts, ranks."""
    until(lambda: bench.jobs(f"{folder.search_id}.", "PENDING", "RUNNING", "COMPLETING"), lambda jobs: not jobs)
    named = lambda: [pid for pid in running_pids() if str(folder.path) in command_of(pid)]  # noqa: E731
    until(named, lambda found: not found)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""  # it has ended
