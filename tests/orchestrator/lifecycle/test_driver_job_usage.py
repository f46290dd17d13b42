"""Node-hours of the jobs that drive a search, by a simulated Slurm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator.lifecycle.drive import SearchCallbacks
from orchestrator.lifecycle.driver_job import DriverChain
from orchestrator.lifecycle.driver_job_usage import WHOLE_NODE, own_job, usage_of_ended_jobs
from orchestrator.search.own_job import OwnJob
from slurm.driver_script import DriverJob
from slurm.fake.client import FakeSlurm
from slurm.fake.cluster import FakeCluster
from slurm.fake.jobs import FakeJob, JobPlan
from slurm.fake.placement import FakeNode
from trials.ledger.events import DriverJobUsage, SearchRecord

SEARCH_ID = "tiny-abc234"
NAME = f"{SEARCH_ID}.driver"
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
def bench(tmp_path) -> UsageBench:
    return UsageBench(tmp_path)


def test_a_drivers_job_counts_from_slurms_start_by_its_cpus_of_its_nodes(bench):
    own = bench.own()
    started_at = bench.cluster.job(own.job_id).started_at
    assert (own.started_at, own.node_share) == (started_at, SHARE)
    assert own.node_hours(started_at + 3600.0) == SHARE


def test_the_chain_hands_the_job_to_the_driver_that_runs_in_it(bench, monkeypatch):
    bench.lasts_s = None
    job = bench.run()
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    chain = DriverChain(bench.slurm, replace(job.request, after=job.job_id))
    assert chain.attach_to(SearchCallbacks()).own_job == OwnJob(job.job_id, job.started_at, SHARE)


@pytest.mark.parametrize("environ", [{"SLURM_CPUS_ON_NODE": "2"}, {"SLURMD_NODENAME": "n1"}])
def test_a_job_whose_cpus_are_not_known_holds_a_whole_node(bench, environ):
    assert bench.own(**environ).node_share == WHOLE_NODE


def test_a_job_of_a_slurm_that_does_not_answer_counts_from_now_on_as_a_whole_node(bench):
    bench.cluster.controller_down(for_s=600.0)
    began = bench.cluster.time
    assert own_job(bench.slurm, "7", ENVIRON) == OwnJob("7", began, WHOLE_NODE)


def test_a_job_that_has_ended_is_booked_by_slurms_times_though_its_driver_recorded_less(bench):
    job = bench.run()
    bench.record = replace(bench.record, driver_jobs={job.job_id: DriverJobUsage(SHARE, 0.001)})
    wanted = {job.job_id: DriverJobUsage(SHARE, SHARE * 100.0 / 3600)}
    assert bench.found() == wanted
    bench.record = replace(bench.record, driver_jobs=wanted)
    assert bench.found() == {}, "it is not recorded twice"


def test_a_job_that_only_accounting_knows_is_found_and_the_running_one_is_not(bench):
    job = bench.run()
    bench.cluster.advance(100.0)
    bench.cluster.purge(job.job_id)
    own = bench.own()
    assert bench.found(own) == {job.job_id: DriverJobUsage(SHARE, SHARE * 100.0 / 3600)}


def test_a_job_whose_driver_recorded_nothing_held_as_much_of_a_node_as_the_others(bench):
    first, second = bench.run(), bench.run()
    bench.record = replace(bench.record, driver_jobs={first.job_id: DriverJobUsage(SHARE, SHARE * 100.0 / 3600)})
    assert bench.found() == {second.job_id: DriverJobUsage(SHARE, SHARE * 100.0 / 3600)}


def test_a_link_that_was_cancelled_while_it_waited_held_nothing(bench):
    bench.cluster.drain_node("n1")
    bench.cluster.cancel(bench.run().job_id)
    assert bench.found() == {}


def _cancelled(bench: UsageBench) -> None:
    bench.run(name="other-abc234.driver")
    bench.run(user="bob")


def _unreachable(bench: UsageBench) -> None:
    bench.run()
    bench.cluster.controller_down(for_s=600.0)


@pytest.mark.parametrize("happens", [_cancelled, _unreachable], ids=["jobs of others", "no answer"])
def test_what_others_held_and_what_slurm_does_not_tell_is_left_as_it_is_recorded(
    bench, happens: Callable[[UsageBench], None]
):
    happens(bench)
    assert bench.found() == {}
