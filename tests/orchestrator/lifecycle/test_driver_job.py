"""A driver's jobs on a simulated Slurm: one link of their chain waits."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import Mock

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
from slurm.driver_script import DriverJob
from tests.fake_slurm.client import FakeSlurm
from tests.fake_slurm.cluster import FakeCluster
from tests.fake_slurm.placement import FakeNode

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


@pytest.mark.fault(16)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_any_signal_stops_the_driver_at_its_next_safe_point_and_none_interrupts_a_submission(bench, number):
    signals, driver = bench.chain().signals, Mock()
    with signals.handling(signal.SIGUSR1):
        for _ in range(2):  # while the next link is submitted
            signal.raise_signal(number)
        with signals.stopping(driver):
            assert (driver.stop_now.call_count, driver.interrupt.call_count) == (1, 0)
        signal.raise_signal(number)  # while the last link is looked for


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
    with chain.keeping_next_link():
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
        with bench.chain().keeping_next_link():
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
