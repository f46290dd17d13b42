"""Fake Slurm: normal operation, and each injected fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from slurm.association_limits import Association, AssociationLimits, Qos
from slurm.fake.client import FakeSlurm
from slurm.fake.cluster import FAKE_SETTINGS, FakeCluster
from slurm.fake.jobs import JobPlan, StartedJob
from slurm.fake.placement import FakeNode
from slurm.interface import SlurmSettings, SlurmUnreachable, Submission, SubmitStatus
from slurm.job_state import JobSnapshot, JobState
from slurm.partitions import PartitionSnapshot
from slurm.request import JobOptions, JobRequest


@dataclass
class Rig:
    """Two nodes of four CPUs; jobs run as planned by their name, or until they are ended."""

    root: Path
    plans: dict[str, JobPlan] = field(default_factory=dict)
    settings: SlurmSettings = FAKE_SETTINGS
    started: list[StartedJob] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cluster = FakeCluster([FakeNode("n1"), FakeNode("n2")], self._start, self.settings)
        self.slurm = FakeSlurm(self.cluster)
        self.began = self.cluster.time

    def _start(self, job: StartedJob) -> JobPlan:
        self.started.append(job)
        return self.plans.get(job.name, JobPlan())

    def request(self, name: str, num_nodes: int = 1, limit_s: float = 600.0, **options: object) -> JobRequest:
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        request = JobRequest(name, folder, num_nodes, 4, limit_s, ("true",), options=JobOptions(**options))  # type: ignore[arg-type]
        request.script.write_text("#!/bin/bash\n")
        return request

    def submit(self, name: str, num_nodes: int = 1, limit_s: float = 600.0) -> str:
        submission = self.slurm.submit(self.request(name, num_nodes, limit_s))
        assert submission.job_id
        return submission.job_id

    def run(self, name: str, plan: JobPlan | None = None, **request: int | float) -> str:
        """Submit a job that runs; return its id."""
        if plan:
            self.plans[name] = plan
        job_id = self.submit(name, **request)  # type: ignore[arg-type]
        self.cluster.advance(1.0)
        assert self.state(job_id) is JobState.RUNNING
        return job_id

    def job(self, job_id: str) -> JobSnapshot:
        job = self.slurm.describe(job_id)
        assert job is not None
        return job

    def state(self, job_id: str) -> JobState:
        return self.job(job_id).state

    def names(self) -> list[str]:
        return [job.name for job in self.slurm.jobs()]

    def row(self, name: str) -> JobSnapshot | None:
        """Return the accounting row of the only job of this name."""
        rows = self.slurm.accounted_jobs([name], self.began)
        assert rows is not None
        assert len(rows) <= 1
        return rows[0] if rows else None


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.parametrize(
    ("plan", "ends_as", "reason", "code"),
    [
        (JobPlan(5), JobState.COMPLETED, None, (0, 0)),
        (JobPlan(5, exit_code=3), JobState.FAILED, "NonZeroExitCode", (3, 0)),
        (JobPlan(5, signal=9), JobState.FAILED, "JobLaunchFailure", (0, 9)),
        (JobPlan(5, ends_as=JobState.OUT_OF_MEMORY), JobState.OUT_OF_MEMORY, "OutOfMemory", (0, 125)),
        (JobPlan(0, ends_as=JobState.BOOT_FAIL), JobState.BOOT_FAIL, "NodeDown", (0, 0)),
    ],
)
def test_a_job_ends_as_planned(rig: Rig, plan: JobPlan, ends_as: JobState, reason: str, code: tuple[int, int]) -> None:
    rig.plans["job"] = plan
    job_id = rig.submit("job")
    rig.cluster.advance(10.0)
    job = rig.job(job_id)
    assert (job.state, job.reason, (job.exit_code, job.signal)) == (ends_as, reason, code)


def test_the_time_limit_is_looked_at_once_a_minute_and_a_stubborn_job_has_kill_wait_more(rig: Rig) -> None:
    job_id = rig.run("job", JobPlan(heeds_term=False), limit_s=120)
    rig.cluster.advance(120.0 + 58.0)
    assert rig.state(job_id) is JobState.RUNNING
    rig.cluster.advance(1.0)
    assert rig.state(job_id) is JobState.COMPLETING
    rig.cluster.advance(rig.settings.kill_wait_s)
    job = rig.job(job_id)
    assert (job.state, job.reason, job.ended_at) == (JobState.TIMEOUT, "TimeLimit", rig.began + 180.0)
    assert "DUE TO TIME LIMIT" in (rig.root / "job" / "job.log").read_text()
    assert rig.slurm.used_node_s("job") == 179.0 + rig.settings.kill_wait_s


def test_nodes_are_held_until_they_are_clean(rig: Rig) -> None:
    job_id = rig.run("job", JobPlan(10, completing_s=60), num_nodes=2)
    rig.cluster.advance(69.0)
    assert (rig.state(job_id), rig.slurm.used_node_s("job")) == (JobState.COMPLETING, 2 * 69.0)
    rig.cluster.advance(10.0)
    assert (rig.state(job_id), rig.slurm.used_node_s("job")) == (JobState.COMPLETED, 2 * 70.0)


def test_ended_jobs_are_forgotten(rig: Rig) -> None:
    old = rig.run("old", JobPlan(1))
    rig.cluster.advance(300.0)
    assert rig.state(old) is JobState.COMPLETED
    rig.cluster.advance(1.0)
    assert rig.slurm.describe(old) is None
    rig.cluster.purges_at_once = True
    rig.run("new", JobPlan(1))
    rig.cluster.advance(1.0)
    assert rig.names() == []


def test_a_submission_that_timed_out_appears_later_or_never(rig: Rig) -> None:
    rig.slurm.submissions_time_out(appears_after_s=30.0)
    rig.slurm.submissions_time_out(appears_after_s=None)
    for name in ("late", "never"):
        assert rig.slurm.submit(rig.request(name)).status is SubmitStatus.UNCONFIRMED
    assert rig.names() == []
    rig.cluster.advance(60.0)
    assert rig.names() == ["late"]


def test_submissions_are_busy_for_a_while_and_refused_with_the_words_given(rig: Rig) -> None:
    rig.slurm.submissions_busy(for_s=60.0)
    assert rig.slurm.submit(rig.request("a")).status is SubmitStatus.BUSY
    rig.cluster.advance(60.0)
    rig.slurm.submissions_refused("Invalid account", times=1)
    assert rig.slurm.submit(rig.request("a")) == Submission(SubmitStatus.REFUSED, message="Invalid account")
    rig.slurm.warning = "sbatch: warning: be brief"
    assert rig.slurm.submit(rig.request("a")) == Submission(SubmitStatus.ACCEPTED, "1", "sbatch: warning: be brief")


@pytest.mark.parametrize("outage", [FakeCluster.controller_down, FakeCluster.controller_hung])
def test_a_controller_out_of_reach_notices_afterwards_what_ended(
    rig: Rig, outage: Callable[[FakeCluster, float], None]
) -> None:
    job_id = rig.run("job", JobPlan(30))
    outage(rig.cluster, 3600.0)
    for ask in (rig.slurm.jobs, rig.slurm.settings, lambda: rig.slurm.describe(job_id)):
        with pytest.raises(SlurmUnreachable):
            ask()
    rig.cluster.advance(3600.0)
    job = rig.job(job_id)
    assert (job.state, job.ended_at) == (JobState.COMPLETED, rig.began + 3601.0)


def test_a_controller_that_crashed_forgets_jobs_and_gives_their_ids_again(rig: Rig) -> None:
    rig.submit("kept")
    rig.cluster.advance(10.0)
    lost = rig.run("lost")
    rig.cluster.crash(loses_s=5.0)
    assert rig.names() == ["kept"]
    assert rig.submit("stranger") == lost
    row = rig.row("lost")
    assert row is None or not row.state.is_ended


def test_accounting_lags(rig: Rig) -> None:
    rig.cluster.accounting.lag_s = 60.0
    rig.run("job", JobPlan(10))
    assert rig.row("job") is None
    rig.cluster.advance(60.0)
    assert (row := rig.row("job"))
    assert (row.state, row.ended_at) == (JobState.RUNNING, None)
    rig.cluster.advance(60.0)
    assert (row := rig.row("job"))
    assert (row.state, row.exit_code) == (JobState.COMPLETED, 0)


def test_accounting_that_was_down_lies_until_it_knows_the_end(rig: Rig) -> None:
    rig.run("job", JobPlan(10, exit_code=4))
    rig.cluster.accounting_down(for_s=60.0, wrong_for_s=9.0)
    with pytest.raises(SlurmUnreachable):
        rig.row("job")
    rig.cluster.advance(60.0)
    assert (row := rig.row("job"))
    assert (row.state, row.exit_code, row.ended_at) == (JobState.FAILED, 0, None)
    rig.cluster.advance(9.0)
    assert (row := rig.row("job"))
    assert (row.exit_code, row.ended_at) == (4, rig.began + 11.0)


def test_a_requeued_job_starts_again_under_its_id_two_minutes_later(rig: Rig) -> None:
    job_id = rig.run("job")
    rig.cluster.requeue(job_id)
    waits = rig.job(job_id)
    assert (waits.state, waits.reason, waits.restarts) == (JobState.PENDING, "BeginTime", 1)
    assert waits.submitted_at == rig.began + 1.0
    rig.cluster.advance(119.0)
    assert rig.state(job_id) is JobState.PENDING
    rig.cluster.advance(1.0)
    assert rig.state(job_id) is JobState.RUNNING
    assert [job.restart for job in rig.started] == [0, 1]


def test_two_copies_are_seen_when_a_requeued_job_left_its_processes(rig: Rig) -> None:
    job_id = rig.run("job")
    rig.cluster.requeue(job_id, processes_live_s=200.0)
    assert rig.slurm.most_alive("job") == 2
    assert rig.slurm.most_running("job") == 1
    rig.cluster.advance(120.0)
    assert rig.slurm.most_running("job") == 2


def test_processes_may_outlive_the_failure_of_their_node(rig: Rig) -> None:
    left: list[str] = []
    job_id = rig.run("job", JobPlan(20, on_end=lambda: left.append("outcome")))
    rig.cluster.fail_node("n1", processes_live_s=30.0)
    assert (rig.state(job_id), rig.job(job_id).reason) == (JobState.NODE_FAIL, "NodeDown")
    rig.cluster.advance(20.0)
    assert left == ["outcome"]
    other = rig.run("other")
    assert rig.job(other).nodes == ("n2",)


def test_a_clock_that_goes_back_gives_an_end_before_the_start(rig: Rig) -> None:
    job_id = rig.run("job", JobPlan(10))
    rig.cluster.clock_ahead_s = -3600.0
    rig.cluster.advance(10.0)
    job = rig.job(job_id)
    assert job.started_at is not None
    assert job.ended_at == job.started_at + 10.0 - 3600.0
    assert rig.slurm.now() == rig.cluster.time - 3600.0
    assert rig.slurm.monotonic() == rig.cluster.time


@pytest.mark.parametrize(
    ("default", "qos", "status"),
    [
        ("long", None, SubmitStatus.ACCEPTED),
        ("normal", None, SubmitStatus.REFUSED),
        ("normal", "long", SubmitStatus.ACCEPTED),
        ("normal", "normal", SubmitStatus.REFUSED),
        ("normal", "unknown", SubmitStatus.ACCEPTED),
    ],
)
def test_a_job_beyond_its_partitions_limit_is_refused_unless_its_qos_lifts_that(rig: Rig, default, qos, status) -> None:
    rig.settings = replace(FAKE_SETTINGS, has_accounting=True)
    rig.__post_init__()
    name = rig.cluster.partitions[0]
    rig.slurm.partition_limits[name] = PartitionSnapshot(name, is_default=True, max_time_s=300.0)
    known = (Qos("long", overrides_max_time=True), Qos("normal"))
    rig.slurm.limits = AssociationLimits((Association("acc", default_qos=default),), known)
    assert rig.slurm.test(rig.request("a", limit_s=600.0, qos=qos)).status is status
