"""A driver's jobs on a simulated Slurm: one link of their chain waits, and their node-hours are those of Slurm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator.lifecycle.driver_job import (
    RETRY_S,
    DriverAlreadyQueued,
    DriverChain,
    active_jobs,
    cancel_driver_jobs,
    own_job_id,
    submit_first_link,
)
from orchestrator.lifecycle.driver_job_usage import WHOLE_NODE, own_job, usage_of_ended_jobs
from orchestrator.search.own_job import OwnJob
from slurm.driver_script import DriverJob
from tests.fake_slurm.client import FakeSlurm
from tests.fake_slurm.cluster import FakeCluster
from tests.fake_slurm.jobs import FakeJob, JobPlan
from tests.fake_slurm.placement import FakeNode
from trials.ledger.events import DriverJobUsage, SearchRecord

SEARCH_ID = "tiny-abc234"
NAME = f"{SEARCH_ID}.driver"


@dataclass
class ChainBench:
    """One driver runs on the only node, so its next link waits. `now` is the chain's clock."""

    folder: Path
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.cluster = FakeCluster([FakeNode("n1", cpus=1)])
        self.slurm = FakeSlurm(self.cluster)
        self.job = DriverJob(NAME, self.folder, 1, 1, 3600.0, ("parlay", "resume"))
        self.own_id = submit_first_link(self.slurm, self.job)
        self.cluster.advance(1.0)

    def chain(self) -> DriverChain:
        return DriverChain(self.slurm, replace(self.job, after=self.own_id), lambda: self.now)

    @property
    def waiting(self) -> list[str]:
        return [job.job_id for job in active_jobs(self.slurm, NAME) if job.state.waits]


@pytest.fixture
def bench(tmp_path) -> ChainBench:
    return ChainBench(tmp_path)


def test_one_link_waits_however_often_it_is_asked_for(bench):
    for chain in (bench.chain(), bench.chain()):
        chain.ensure_next_link()
        chain.ensure_next_link()
        assert chain.has_next_link
    assert len(bench.waiting) == 1
    assert "afterany:" + bench.own_id in bench.job.script.read_text()


def test_a_queue_that_takes_no_more_jobs_is_asked_again_a_minute_later(bench, logged):
    bench.slurm.submissions_busy(times=1)
    chain = bench.chain()
    chain.ensure_next_link()
    chain.ensure_next_link()
    assert (chain.has_next_link, len(logged)) == (False, 1)
    bench.now += RETRY_S
    chain.ensure_next_link()
    assert (chain.has_next_link, len(bench.waiting)) == (True, 1)


def test_a_submission_without_an_answer_is_found_by_its_name_and_of_twins_the_elder_stays(bench):
    chain = bench.chain()
    bench.slurm.submissions_time_out()
    chain.ensure_next_link()
    assert (chain.has_next_link, len(bench.waiting)) == (False, 1)
    [elder] = bench.waiting
    bench.cluster.accept(bench.slurm.user, bench.job)  # a twin that appeared late
    bench.now += RETRY_S
    chain.ensure_next_link()
    assert (chain.has_next_link, bench.waiting) == (True, [elder])


def test_a_controller_that_is_away_ends_no_driver(bench, logged):
    bench.cluster.controller_down(for_s=3600.0)
    chain = bench.chain()
    with chain.driver_context(object()):  # type: ignore[arg-type]
        assert not chain.has_next_link
    assert "Unable to contact slurm controller" in logged[0]


def test_a_search_that_has_ended_leaves_no_link(bench):
    chain = bench.chain()
    chain.ensure_next_link()
    chain.finish(has_ended=True)
    assert (chain.has_next_link, bench.waiting) == (False, [])
    assert [job.job_id for job in active_jobs(bench.slurm, NAME)] == [bench.own_id]


def test_a_driver_that_ends_by_a_bug_takes_its_successor_with_it(bench):
    def drive() -> None:
        with bench.chain().driver_context(object()):  # type: ignore[arg-type]
            assert len(bench.waiting) == 1
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        drive()
    assert bench.waiting == []


def test_a_search_gets_one_driver_in_a_job_until_it_is_cancelled(bench):
    with pytest.raises(DriverAlreadyQueued, match=f"job {bench.own_id} .* runs on n1"):
        submit_first_link(bench.slurm, bench.job)
    assert cancel_driver_jobs(bench.slurm, "tiny-abc234") == set()
    assert submit_first_link(bench.slurm, bench.job) != bench.own_id


def test_another_users_job_of_that_name_is_nobodys_driver(bench):
    stranger = FakeSlurm(bench.cluster, user="bob")
    assert active_jobs(stranger, NAME) == []
    assert cancel_driver_jobs(stranger, "tiny-abc234") == set()
    assert [job.job_id for job in active_jobs(bench.slurm, NAME)] == [bench.own_id]


def test_only_the_job_of_this_search_is_its_own():
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": NAME}
    assert own_job_id(environ, "tiny-abc234") == "7"
    assert own_job_id(environ, "tiny-xyz234") is None
    assert own_job_id({}, "tiny-abc234") is None


ENVIRON = {"SLURM_CPUS_ON_NODE": "2", "SLURMD_NODENAME": "n1"}
SHARE = 0.25


@dataclass
class UsageBench:
    """One node of eight CPUs, which driver's jobs share; each job runs `lasts_s`."""

    folder: Path
    lasts_s: float | None = 100.0

    def __post_init__(self) -> None:
        self.cluster = FakeCluster([FakeNode("n1", cpus=8)], lambda job: JobPlan(self.lasts_s, completing_s=20.0))
        self.slurm = FakeSlurm(self.cluster)
        self.record = SearchRecord(SEARCH_ID, {}, "c0de", self.cluster.time)

    def run(self, name: str = NAME, user: str | None = None) -> FakeJob:
        """Let a job run to its end; with `lasts_s` None it runs on."""
        request = DriverJob(name, self.folder, 1, 1, 3600.0, ("parlay", "resume"))
        job = self.cluster.accept(user or self.slurm.user, request)
        self.cluster.advance(2.0 + (self.lasts_s or 0.0))
        return job

    def found(self, own: OwnJob | None = None) -> dict[str, DriverJobUsage]:
        return usage_of_ended_jobs(self.slurm, self.record, own)

    def own(self, **environ: str) -> OwnJob:
        self.lasts_s = None
        job = self.run()
        self.cluster.advance(50.0)
        return own_job(self.slurm, job.job_id, environ or ENVIRON)


@pytest.fixture
def usage(tmp_path) -> UsageBench:
    return UsageBench(tmp_path)


def test_a_drivers_job_counts_from_slurms_start_by_its_cpus_of_its_nodes(usage):
    own = usage.own()
    started_at = usage.cluster.job(own.job_id).started_at
    assert (own.started_at, own.node_share) == (started_at, SHARE)
    assert own.node_hours(started_at + 3600.0) == SHARE


def test_a_job_of_a_slurm_that_does_not_answer_counts_from_now_on_as_a_whole_node(usage):
    usage.cluster.controller_down(for_s=600.0)
    began = usage.cluster.time
    assert own_job(usage.slurm, "7", ENVIRON) == OwnJob("7", began, WHOLE_NODE)


def test_a_job_that_has_ended_is_booked_by_slurms_times_though_its_driver_recorded_less(usage):
    job = usage.run()
    usage.record = replace(usage.record, driver_jobs={job.job_id: DriverJobUsage(SHARE, 0.001)})
    wanted = {job.job_id: DriverJobUsage(SHARE, SHARE * 100.0 / 3600)}
    assert usage.found() == wanted
    usage.record = replace(usage.record, driver_jobs=wanted)
    assert usage.found() == {}, "it is not recorded twice"


def test_a_job_that_only_accounting_knows_is_found_and_the_running_one_is_not(usage):
    job = usage.run()
    usage.cluster.advance(100.0)
    usage.cluster.purge(job.job_id)
    own = usage.own()
    assert usage.found(own) == {job.job_id: DriverJobUsage(SHARE, SHARE * 100.0 / 3600)}


def test_what_others_held_and_what_slurm_does_not_tell_is_left_as_it_is_recorded(usage):
    usage.run(name="other-abc234.driver")
    usage.run(user="bob")
    assert usage.found() == {}
    usage.run()
    usage.cluster.controller_down(for_s=600.0)
    assert usage.found() == {}
