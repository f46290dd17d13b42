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


# -- queue and nodes


def test_jobs_start_in_their_order_and_small_ones_fill_the_gaps(rig: Rig) -> None:
    rig.run("long", limit_s=3600)
    rig.submit("both", num_nodes=2)
    too_long, short = rig.submit("too_long", limit_s=7200), rig.submit("short", limit_s=1800)
    rig.cluster.advance(1.0)
    assert (rig.job("2").reason, rig.job(too_long).reason) == ("Resources", "Priority")
    assert rig.state(short) is JobState.RUNNING


def test_jobs_share_a_node_unless_one_wants_it_alone(rig: Rig) -> None:
    for name, exclusive in (("a", False), ("b", False), ("alone", True), ("c", False)):
        rig.slurm.submit(replace(rig.request(name, exclusive=exclusive, nodelist=("n1",)), tasks_per_node=1))
    rig.cluster.advance(1.0)
    assert [job.state.value for job in rig.slurm.jobs()] == ["RUNNING", "RUNNING", "PENDING", "RUNNING"]


def test_a_drained_node_keeps_its_jobs_and_takes_no_more(rig: Rig) -> None:
    first = rig.run("first")
    rig.cluster.drain_node("n1")
    rig.cluster.drain_node("n2")
    waits = rig.submit("waits")
    rig.cluster.advance(5.0)
    assert rig.state(first) is JobState.RUNNING
    assert rig.job(waits).reason == "ReqNodeNotAvail, UnavailableNodes:n1,n2"
    rig.cluster.resume_node("n2")
    assert rig.job(waits).nodes == ("n2",)


# -- how jobs end


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


def test_what_a_job_leaves_at_its_end_is_not_left_by_one_that_is_killed(rig: Rig) -> None:
    left: list[str] = []
    rig.run("ends", JobPlan(10, on_end=lambda: left.append("ends")))
    rig.run("killed", JobPlan(10, on_end=lambda: left.append("killed")))
    rig.slurm.cancel([job for job in rig.slurm.jobs() if job.name == "killed"])
    rig.cluster.advance(20.0)
    assert left == ["ends"]


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


# -- submissions


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


# -- controller and accounting


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


def test_accounting_says_nothing_of_the_exit_code_of_what_was_killed(rig: Rig) -> None:
    rig.run("job")
    rig.slurm.cancel(rig.slurm.jobs())
    rig.cluster.advance(1.0)
    assert (row := rig.row("job"))
    assert (row.state, row.state_text, row.exit_code, row.signal) == (JobState.CANCELLED, "CANCELLED by 1000", 0, 0)


# -- what others do to jobs


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


@pytest.mark.parametrize(("requeue", "state"), [(False, JobState.PREEMPTED), (True, JobState.PENDING)])
def test_a_preempted_job_ends_or_is_put_back(rig: Rig, requeue: bool, state: JobState) -> None:
    job_id = rig.run("job")
    rig.cluster.preempt(job_id, requeue)
    assert rig.state(job_id) is state


def test_a_held_job_waits_until_it_is_released(rig: Rig) -> None:
    job_id = rig.run("job")
    rig.cluster.hold(job_id)
    rig.cluster.advance(1000.0)
    assert (rig.state(job_id), rig.job(job_id).reason) == (JobState.PENDING, "job requeued in held state")
    rig.cluster.release(job_id)
    assert rig.state(job_id) is JobState.RUNNING


def test_processes_may_outlive_the_failure_of_their_node(rig: Rig) -> None:
    left: list[str] = []
    job_id = rig.run("job", JobPlan(20, on_end=lambda: left.append("outcome")))
    rig.cluster.fail_node("n1", processes_live_s=30.0)
    assert (rig.state(job_id), rig.job(job_id).reason) == (JobState.NODE_FAIL, "NodeDown")
    rig.cluster.advance(20.0)
    assert left == ["outcome"]
    other = rig.run("other")
    assert rig.job(other).nodes == ("n2",)


# -- cancels, clocks, strangers


def test_cancels_fail_as_often_as_told(rig: Rig) -> None:
    job_id = rig.run("job")
    rig.slurm.failing_cancels = 2
    assert [rig.slurm.cancel(rig.slurm.jobs()) for _ in range(3)] == [{job_id}, {job_id}, set()]


def test_a_cancelled_job_that_is_slow_to_die_may_still_run(rig: Rig) -> None:
    job_id = rig.run("job", JobPlan(heeds_term=False))
    assert rig.slurm.cancel(rig.slurm.jobs()) == {job_id}
    rig.cluster.advance(15.0)
    assert rig.state(job_id) is JobState.CANCELLED


def test_a_clock_that_goes_back_gives_an_end_before_the_start(rig: Rig) -> None:
    job_id = rig.run("job", JobPlan(10))
    rig.cluster.clock_ahead_s = -3600.0
    rig.cluster.advance(10.0)
    job = rig.job(job_id)
    assert job.started_at is not None
    assert job.ended_at == job.started_at + 10.0 - 3600.0
    assert rig.slurm.now() == rig.cluster.time - 3600.0
    assert rig.slurm.monotonic() == rig.cluster.time


def test_a_word_that_nobody_knows_is_kept(rig: Rig) -> None:
    job_id = rig.run("job")
    rig.slurm.state_words[job_id] = "LEVITATING"
    assert (rig.state(job_id), rig.job(job_id).state_text) == (JobState.UNKNOWN, "LEVITATING")


def test_other_users_jobs_are_described_and_not_listed(rig: Rig) -> None:
    theirs = rig.cluster.accept("bob", rig.request("a|job of\ttheirs"), job_id="77")
    assert rig.job("77").user == "bob"
    assert rig.slurm.jobs() == ()
    assert rig.slurm.cancel([rig.job("77")]) == set()
    assert theirs.state is JobState.PENDING
    assert rig.slurm.accounted_jobs(["a|job of\ttheirs"], 0.0) == ()


def test_commands_take_the_time_they_are_told_to(rig: Rig) -> None:
    rig.slurm.answer_s = 3.0
    rig.slurm.jobs()
    assert rig.cluster.time == rig.began + 3.0


def test_time_goes_to_the_next_event_and_no_further_than_asked(rig: Rig) -> None:
    rig.run("job", JobPlan(100))
    assert rig.cluster.advance_to_next_event(at_most=30.0) == 30.0
    assert rig.cluster.advance_to_next_event(at_most=500.0) == 70.0
    assert rig.cluster.advance_to_next_event(at_most=500.0) == 500.0


def test_a_job_beyond_its_partitions_limit_is_refused_unless_its_qos_lifts_that(rig: Rig) -> None:
    rig.settings = replace(FAKE_SETTINGS, has_accounting=True)
    rig.__post_init__()
    name = rig.cluster.partitions[0]
    rig.slurm.partition_limits[name] = PartitionSnapshot(name, is_default=True, max_time_s=300.0)
    request = rig.request("a", limit_s=600.0)
    assert rig.slurm.test(request).status is SubmitStatus.REFUSED
    long = Qos("long", overrides_max_time=True)
    rig.slurm.limits = AssociationLimits((Association("acc", default_qos="long"),), (long,))
    assert rig.slurm.test(request).status is SubmitStatus.ACCEPTED
    rig.slurm.limits = AssociationLimits((Association("acc", default_qos="normal"),), (long, Qos("normal")))
    assert rig.slurm.test(request).status is SubmitStatus.REFUSED
    assert rig.slurm.test(rig.request("b", limit_s=600.0, qos="long")).status is SubmitStatus.ACCEPTED
    assert rig.slurm.test(rig.request("c", limit_s=600.0, qos="normal")).status is SubmitStatus.REFUSED
    assert rig.slurm.test(rig.request("d", limit_s=600.0, qos="unknown")).status is SubmitStatus.ACCEPTED
