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
from slurm.interface import SlurmSettings, SlurmUnreachable, SubmitStatus
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
        assert self.job(job_id).state is JobState.RUNNING
        return job_id

    def job(self, job_id: str) -> JobSnapshot:
        job = self.slurm.describe(job_id)
        assert job is not None
        return job

    def row(self, name: str) -> JobSnapshot | None:
        """Return the accounting row of the only job of this name."""
        rows = self.slurm.accounted_jobs([name], self.began)
        assert rows is not None
        assert len(rows) <= 1
        return rows[0] if rows else None


def state(rig: Rig, job_id: str) -> JobState:
    return rig.job(job_id).state


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_the_time_limit_is_looked_at_once_a_minute_and_a_stubborn_job_has_kill_wait_more(rig: Rig) -> None:
    job_id = rig.run("job", JobPlan(heeds_term=False), limit_s=120)
    rig.cluster.advance(120.0 + 58.0)
    assert state(rig, job_id) is JobState.RUNNING
    rig.cluster.advance(1.0)
    assert state(rig, job_id) is JobState.COMPLETING
    rig.cluster.advance(rig.settings.kill_wait_s)
    job = rig.job(job_id)
    assert (job.state, job.reason, job.ended_at) == (JobState.TIMEOUT, "TimeLimit", rig.began + 180.0)
    assert "DUE TO TIME LIMIT" in (rig.root / "job" / "job.log").read_text()
    assert rig.slurm.used_node_s("job") == 179.0 + rig.settings.kill_wait_s


def test_nodes_are_held_until_they_are_clean(rig: Rig) -> None:
    job_id = rig.run("job", JobPlan(10, completing_s=60), num_nodes=2)
    rig.cluster.advance(69.0)
    assert (state(rig, job_id), rig.slurm.used_node_s("job")) == (JobState.COMPLETING, 2 * 69.0)
    rig.cluster.advance(10.0)
    assert (state(rig, job_id), rig.slurm.used_node_s("job")) == (JobState.COMPLETED, 2 * 70.0)


def test_a_submission_that_timed_out_appears_later_or_never(rig: Rig) -> None:
    rig.slurm.submissions_time_out(appears_after_s=30.0)
    rig.slurm.submissions_time_out(appears_after_s=None)
    for name in ("late", "never"):
        assert rig.slurm.submit(rig.request(name)).status is SubmitStatus.UNCONFIRMED
    assert [job.name for job in rig.slurm.jobs()] == []
    rig.cluster.advance(60.0)
    assert [job.name for job in rig.slurm.jobs()] == ["late"]


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
    assert [job.name for job in rig.slurm.jobs()] == ["kept"]
    assert rig.submit("stranger") == lost
    row = rig.row("lost")
    assert row is None or not row.state.is_ended


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
    assert state(rig, job_id) is JobState.PENDING
    rig.cluster.advance(1.0)
    assert state(rig, job_id) is JobState.RUNNING
    assert [job.restart for job in rig.started] == [0, 1]


def test_two_copies_are_seen_when_a_requeued_job_left_its_processes(rig: Rig) -> None:
    job_id = rig.run("job")
    rig.cluster.requeue(job_id, processes_live_s=200.0)
    assert rig.slurm.most_alive("job") == 2
    assert rig.slurm.most_running("job") == 1
    rig.cluster.advance(120.0)
    assert rig.slurm.most_running("job") == 2


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
