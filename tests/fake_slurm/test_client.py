"""Fake Slurm: what searches are judged by, and what its faults are."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm.interface import SlurmUnreachable
from slurm.job_state import JobState
from slurm.request import JobRequest
from tests.fake_slurm.client import FakeSlurm
from tests.fake_slurm.cluster import FakeCluster
from tests.fake_slurm.jobs import JobPlan
from tests.fake_slurm.placement import FakeNode


class Rig:
    """Two nodes of four CPUs; jobs run as planned by their name, or until they are ended."""

    def __init__(self, root: Path):
        self.root = root
        self.plans: dict[str, JobPlan] = {}
        nodes = [FakeNode("n1"), FakeNode("n2")]
        self.cluster = FakeCluster(nodes, lambda job: self.plans.get(job.name, JobPlan()))
        self.slurm = FakeSlurm(self.cluster)
        self.began = self.cluster.time

    def request(self, name: str, num_nodes: int = 1, limit_s: float = 600.0) -> JobRequest:
        (self.root / name).mkdir(exist_ok=True)
        request = JobRequest(name, self.root / name, num_nodes, 4, limit_s, ("true",))
        request.script.write_text("#!/bin/bash\n")
        return request

    def run(self, name: str, plan: JobPlan | None = None, **request: int | float) -> str:
        """Submit a job that runs; return its id."""
        self.plans[name] = plan or JobPlan()
        job_id = self.slurm.submit(self.request(name, **request)).job_id  # type: ignore[arg-type]
        self.cluster.advance(1.0)
        assert job_id
        assert self.state(job_id) is JobState.RUNNING
        return job_id

    def state(self, job_id: str) -> JobState:
        job = self.slurm.describe(job_id)
        assert job is not None
        return job.state


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_a_stubborn_job_at_its_time_limit_has_kill_wait_more_and_all_of_it_is_used(rig: Rig) -> None:
    job_id = rig.run("job", JobPlan(heeds_term=False), limit_s=120)
    rig.cluster.advance(120.0 + 58.0)  # it is looked at once a minute
    assert rig.state(job_id) is JobState.RUNNING
    rig.cluster.advance(1.0)
    assert rig.state(job_id) is JobState.COMPLETING
    wait_s = rig.cluster.settings.kill_wait_s
    rig.cluster.advance(wait_s)
    assert rig.state(job_id) is JobState.TIMEOUT
    assert "DUE TO TIME LIMIT" in (rig.root / "job" / "job.log").read_text()
    assert rig.slurm.used_node_s("job") == 179.0 + wait_s


def test_two_copies_are_seen_when_a_requeued_job_left_its_processes(rig: Rig) -> None:
    job_id = rig.run("job")
    rig.cluster.requeue(job_id, processes_live_s=200.0)
    assert (rig.slurm.most_alive("job"), rig.slurm.most_running("job")) == (2, 1)
    rig.cluster.advance(119.0)
    assert rig.state(job_id) is JobState.PENDING
    rig.cluster.advance(1.0)
    assert (rig.state(job_id), rig.slurm.most_running("job")) == (JobState.RUNNING, 2)


def test_a_controller_that_crashed_forgets_jobs_and_gives_their_ids_again(rig: Rig) -> None:
    rig.slurm.submit(rig.request("kept"))
    rig.cluster.advance(10.0)
    lost = rig.run("lost")
    rig.cluster.crash(loses_s=5.0)
    assert [job.name for job in rig.slurm.jobs()] == ["kept"]
    assert rig.slurm.submit(rig.request("stranger")).job_id == lost


def test_accounting_that_was_down_lies_until_it_knows_the_end(rig: Rig) -> None:
    rig.run("job", JobPlan(10, exit_code=4))
    rig.cluster.accounting_down(for_s=60.0, wrong_for_s=9.0)
    with pytest.raises(SlurmUnreachable):
        rig.slurm.accounted_jobs(["job"], rig.began)
    told = []
    for seconds in (60.0, 9.0):
        rig.cluster.advance(seconds)
        [row] = rig.slurm.accounted_jobs(["job"], rig.began) or ()
        told.append((row.state, row.exit_code, row.ended_at))
    assert told == [(JobState.FAILED, 0, None), (JobState.FAILED, 4, rig.began + 11.0)]
