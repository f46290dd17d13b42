"""Searches in pilots on a real Slurm: parallel steps, killed drivers and pilots."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from slurm.sandbox.sandbox import SlurmSandbox
from tests.orchestrator.slurm_searches import Bench, num_ended, record_of, until
from tests.slurm.sandboxes import sandbox
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord, SearchState
from trials.trial import Attempt, FailureReason, TrialState

pytestmark = [pytest.mark.processes, pytest.mark.timeout(420)]

BUDGET_NODE_HOURS = 2.0
FEW = {"max_trials": 8, "parallel_trials": 2, "budget_node_hours": BUDGET_NODE_HOURS}
EIGHT = {"launcher": {"kind": "slurm_pilot"}, "search": FEW}
HELD = {4: "taken", 5: "taken"}
"""Trials that are still there when their pilot is taken away."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmSandbox]:
    """A Slurm with accounting, to compare recorded with accounted usage."""
    with sandbox(accounting=True, nodes=2) as started:
        yield started


def running(folder: SearchFolder, count: int) -> list[Attempt]:
    """Wait for this number of running attempts and return them."""
    look = lambda: [a for a in record_of(folder).in_flight if a.state is TrialState.RUNNING]  # noqa: E731
    return until(look, lambda found: len(found) >= count)


def held_node_s(bench: Bench, folder: SearchFolder) -> float:
    """Node-seconds that Slurm accounted for the search's pilots, once its database has the end of each."""
    count = len([*folder.pilots.iterdir()])
    fields = "--format=JobName,AllocNodes,ElapsedRaw,State"
    answer = lambda: bench.cluster.ask("sacct", "--noheader", "--parsable2", "--allocations", fields).stdout  # noqa: E731
    pilots = lambda: [line.split("|") for line in answer().splitlines() if line.startswith(f"{folder.search_id}.p")]  # noqa: E731
    ended = until(
        pilots, lambda rows: len(rows) == count and all(row[-1] not in ("RUNNING", "PENDING") for row in rows)
    )
    return sum(int(nodes) * float(seconds) for _, nodes, seconds, _ in ended)


def test_a_search_goes_on_with_its_steps_after_its_driver_and_in_the_next_pilot_after_its_pilot(tmp_path, cluster):
    bench = Bench(tmp_path, cluster)
    driver = bench.start("run", bench.write(takes_s=0.2, held=HELD, **EIGHT), tabled=True)
    folder = bench.the_search()
    until(lambda: num_ended(folder), lambda found: found >= 4)
    before = running(folder, 2)
    driver.kill()
    driver.wait()
    driver = bench.start("resume", folder.path)
    until(lambda: bench.jobs(f"{folder.search_id}.p", "RUNNING"), bool)
    until(lambda: record_of(folder).fencing, lambda fencing: fencing > 1)
    [pilot] = bench.jobs(f"{folder.search_id}.p0001", "RUNNING")
    assert {attempt.job_id.split(".")[0] for attempt in before if attempt.job_id} == {pilot}
    assert {node for attempt in before for node in attempt.nodes} == {"n1", "n2"}
    cluster.ask("scancel", pilot)
    until(lambda: bench.jobs(f"{folder.search_id}.p0001", "RUNNING", "COMPLETING"), lambda left: not left)
    bench.open_gate("taken")
    assert driver.wait(180) == 0, (tmp_path / "driver.out").read_text()[-3000:]

    record = record_of(folder)
    assert record.state is SearchState.COMPLETED
    assert [trial.state for trial in record.trials] == [TrialState.MEASURED] * 8
    hurt = {a.trial for a in before}
    for trial in record.trials:
        reasons = [attempt.reason for attempt in trial.attempts]
        assert reasons == ([FailureReason.INTERRUPTED, None] if trial.trial in hurt else [None]), trial.trial
    steps = [attempt.job_id for attempt in record.attempts]
    assert len(set(steps)) == len(steps) == 10
    assert {step.split(".")[0] for step in steps if step} == {pilot, *bench.jobs(f"{folder.search_id}.p0002")}
    assert_one_step_a_node(record)
    assert held_node_s(bench, folder) == pytest.approx(record.node_hours_used * 3600)
    assert record.node_hours_used <= BUDGET_NODE_HOURS
    until(
        lambda: [pid for job in {*steps} if job for pid in bench.processes_of(job.split(".")[0])], lambda left: not left
    )


def assert_one_step_a_node(record: SearchRecord) -> None:
    """Check that no node is shared, and that several steps ran at the same time."""
    spans = [(a.started_at or 0.0, a.ended_at or 0.0, {*a.nodes}) for a in record.attempts]
    overlapping = [
        (one, other) for one, other in itertools.combinations(spans, 2) if one[0] < other[1] and other[0] < one[1]
    ]
    assert overlapping
    assert all(not one[2] & other[2] for one, other in overlapping)


@pytest.mark.walks
def test_a_cancelled_search_leaves_neither_step_nor_pilot(tmp_path, cluster):
    bench = Bench(tmp_path, cluster)
    driver = bench.start("run", bench.write(free=0, **EIGHT), tabled=True)
    folder = bench.the_search()
    jobs = {str(attempt.job_id).split(".")[0] for attempt in running(folder, 2)}
    assert bench.parlay("cancel", folder.path).code == 0
    driver.wait(120)
    record = record_of(folder)
    assert record.state is SearchState.CANCELLED
    assert {attempt.reason for attempt in record.attempts} == {FailureReason.CANCELLED_BY_USER}
    until(lambda: bench.jobs(f"{folder.search_id}.p", "RUNNING", "COMPLETING", "PENDING"), lambda left: not left)
    until(lambda: [pid for job in jobs for pid in bench.processes_of(job)], lambda left: not left)
    assert round(record.node_hours_used * 3600, 6) >= held_node_s(bench, folder)  # hours are binary fractions
