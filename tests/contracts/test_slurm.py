"""Contract of Slurm: the real commands on a real cluster, and the fake."""

from __future__ import annotations

import os
import secrets
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from slurm.client import SlurmClient
from slurm.interface import Slurm, SlurmUnreachable, SubmitStatus
from slurm.job_state import JobSnapshot, JobState
from slurm.request import JobOptions, JobRequest
from slurm.sandbox.sandbox import SLURMCTLD
from slurm.script import render_script
from tests.fake_slurm.client import FakeSlurm
from tests.fake_slurm.cluster import FAKE_SETTINGS, FakeCluster
from tests.fake_slurm.jobs import JobPlan
from tests.fake_slurm.placement import FakeNode
from tests.slurm.sandboxes import FaultySandbox

T = TypeVar("T")

NODES = ("n1", "n2", "n3", "n4")
KILL_WAIT_S = 2.0
ENDED = tuple(state for state in JobState if state.is_ended)
BEHAVIOURS = {
    "succeed": ("sleep 0.2", JobPlan(duration_s=0.2)),
    "fail": ("sleep 0.2; exit 3", JobPlan(duration_s=0.2, exit_code=3)),
    "hang": ("touch ready; exec sleep 300", JobPlan()),
    "ignore_sigterm": ("trap '' TERM; touch ready; while :; do sleep 0.1; done", JobPlan(heeds_term=False)),
}
"""Script of a job on a real Slurm, and plan of one on the fake."""


class Bench(ABC):
    """Four nodes of four CPUs and four GPUs with nothing on them, and jobs that behave as asked."""

    slurm: Slurm

    def __init__(self, root: Path):
        self.root = root
        self.plans: dict[str, JobPlan] = {}

    def request(self, behaviour: str = "succeed", num_nodes: int = 1, **changes: object) -> JobRequest:
        name = f"contract-{secrets.token_hex(4)}"
        script, self.plans[name] = BEHAVIOURS[behaviour]
        (self.root / name).mkdir()
        request = JobRequest(name, self.root / name, num_nodes, 1, 600.0, ("bash", "-c", script), **changes)  # type: ignore[arg-type]
        request.script.write_text(render_script(request))
        return request

    def submit(self, behaviour: str, num_nodes: int = 1, **changes: object) -> str:
        """Submit a job and return its name."""
        request = self.request(behaviour, num_nodes, **changes)
        submission = self.slurm.submit(request)
        assert (submission.status, submission.message) == (SubmitStatus.ACCEPTED, "")
        assert self.job(request.name).job_id == submission.job_id
        return request.name

    def job(self, name: str) -> JobSnapshot:
        """Return the one job of this name; fail unless there is exactly one."""
        [job] = (job for job in self.slurm.jobs() if job.name == name)
        return job

    def until(self, name: str, *states: JobState) -> JobSnapshot:
        return self.eventually(lambda: self.job(name), lambda job: job.state in states)

    def running(self, behaviour: str = "hang", num_nodes: int = 1, **changes: object) -> JobSnapshot:
        """Submit a job and return it once it runs and its processes are ready."""
        job = self.until(self.submit(behaviour, num_nodes, **changes), JobState.RUNNING)
        self.until_ready(job.name)
        return job

    def eventually(self, look: Callable[[], T], wanted: Callable[[T], bool]) -> T:
        """Poll `look` until its result is `wanted`; fail with the last result after two minutes."""
        deadline, last = time.monotonic() + 120, ""
        while time.monotonic() < deadline:
            try:
                if wanted(found := look()):
                    return found
                last = repr(found)
            except SlurmUnreachable as error:
                last = str(error)
            self.let_time_pass()
        raise AssertionError(f"still {last}")

    def fill(self) -> JobSnapshot:
        """Submit a job that takes all nodes."""
        return self.running("hang", len(NODES), options=JobOptions(exclusive=True))

    def known(self, name: str) -> list[JobSnapshot]:
        with suppress(SlurmUnreachable):
            return [job for job in self.slurm.jobs() if job.name == name]
        return []

    def clear(self) -> None:
        left = lambda: self.slurm.cancel([job for job in self.slurm.jobs() if job.name in self.plans])  # noqa: E731
        self.eventually(left, lambda jobs: jobs == set())

    @abstractmethod
    def let_time_pass(self) -> None:
        """Let a moment pass."""

    @abstractmethod
    def until_ready(self, name: str) -> None:
        """Wait until the processes of a running job are ready."""

    @abstractmethod
    def controller(self, is_down: bool) -> AbstractContextManager[None]:
        """Stop the controller for a while, or let it receive requests without answering them."""


class FakeBench(Bench):
    def __init__(self, root: Path, accounting: bool):
        super().__init__(root)
        settings = replace(FAKE_SETTINGS, kill_wait_s=KILL_WAIT_S, has_accounting=accounting)
        self.cluster = FakeCluster([FakeNode(n) for n in NODES], lambda job: self.plans[job.name], settings)
        self.slurm = FakeSlurm(self.cluster)

    def let_time_pass(self) -> None:
        self.cluster.advance(0.1)

    def until_ready(self, name: str) -> None:
        """Nothing to wait for: running jobs are ready."""

    @contextmanager
    def controller(self, is_down: bool) -> Iterator[None]:
        (self.cluster.controller_down if is_down else self.cluster.controller_hung)(for_s=100.0)
        yield
        self.cluster.advance(100.0)


class RealBench(Bench):
    def __init__(self, root: Path, sandbox: FaultySandbox):
        super().__init__(root)
        self.sandbox = sandbox
        self.slurm = SlurmClient(os.environ | sandbox.environment)

    def let_time_pass(self) -> None:
        time.sleep(0.05)

    def until_ready(self, name: str) -> None:
        self.eventually(lambda: (self.root / name / "ready").exists(), bool)

    @contextmanager
    def controller(self, is_down: bool) -> Iterator[None]:
        stop, with_signal = (
            (self.sandbox.kill, signal.SIGTERM) if is_down else (self.sandbox.send_signal, signal.SIGSTOP)
        )
        stop(SLURMCTLD, with_signal)
        try:
            yield
        finally:
            if is_down:
                self.sandbox.start_daemon(SLURMCTLD)
            else:
                self.sandbox.send_signal(SLURMCTLD, signal.SIGCONT)


FAKE, REAL, REAL_WITHOUT_ACCOUNTING = (
    ["fake", "fake_accounting"],
    pytest.param("slurm_sandbox_accounting", marks=[pytest.mark.processes, pytest.mark.timeout(360)]),
    pytest.param("slurm_sandbox", marks=[pytest.mark.processes, pytest.mark.timeout(360)]),
)
REAL_IN_A_WALK = pytest.param(*REAL.values, marks=[*REAL.marks, pytest.mark.walks])
"""Cases for which a real Slurm needs long: until it kills, or restarts."""


@pytest.fixture(params=[*FAKE, REAL])
def bench(request, tmp_path, monkeypatch) -> Iterator[Bench]:
    monkeypatch.setattr("slurm.client.CANCEL_TIMEOUT_S", 120.0)  # COMPLETING was seen to last 40 s
    made: Bench
    if request.param.startswith("fake"):
        made = FakeBench(tmp_path, accounting=request.param == "fake_accounting")
    else:
        made = RealBench(tmp_path, request.getfixturevalue(request.param))
    yield made
    made.clear()


def test_a_job_is_found_by_its_name_and_ends(bench):
    before = bench.slurm.now()
    ended = bench.until(bench.submit("succeed"), *ENDED)
    told = (ended.state, ended.state_text, ended.reason, ended.user, len(ended.nodes))
    assert told == (JobState.COMPLETED, "COMPLETED", None, bench.slurm.user, 1)
    assert int(before) <= ended.submitted_at <= ended.started_at <= ended.ended_at <= bench.slurm.now()
    described = bench.slurm.describe(ended.job_id)
    of_job = {"billing": described.billing, "qos": described.qos}
    assert described == replace(ended, exit_code=0, signal=0, restarts=0, **of_job)
    assert bench.slurm.describe("999999") is None


def test_a_running_job_has_nodes_and_a_start_but_no_end(bench):
    job = bench.until(bench.submit("hang"), JobState.RUNNING)
    assert 0 <= bench.slurm.now() - job.started_at < 60
    assert (len(job.nodes), job.reason, job.ended_at) == (1, None, None)
    described = bench.slurm.describe(job.job_id)
    assert replace(described, exit_code=None, signal=None, restarts=None, billing=None, qos=None) == job
    assert described.restarts == 0


def test_the_exit_code_of_a_failed_job_is_reported_and_cancelling_it_changes_nothing(bench):
    job = bench.until(bench.submit("fail"), *ENDED)
    assert (job.state, job.reason) == (JobState.FAILED, "NonZeroExitCode")
    described = bench.slurm.describe(job.job_id)
    assert (described.exit_code, described.signal) == (3, 0)
    assert bench.slurm.cancel([job]) == set()
    assert bench.job(job.name) == job


def test_two_jobs_of_one_name_are_both_told(bench):
    request = bench.request("hang")
    ids = {bench.slurm.submit(request).job_id for _ in range(2)}
    assert {job.job_id for job in bench.slurm.jobs() if job.name == request.name} == ids
    assert len(ids) == 2


def test_all_jobs_on_a_node_are_told_also_those_that_have_ended(bench):
    ended = bench.until(bench.submit("succeed", options=JobOptions(nodelist=("n2",))), *ENDED)
    running, elsewhere = (bench.running(options=JobOptions(nodelist=(node,))) for node in ("n2", "n3"))
    found = {job.name: job for job in bench.slurm.jobs_on(["n2", "n4"])}
    assert (found[ended.name], found[running.name]) == (ended, running)
    assert elsewhere.name not in found


def test_cancelled_jobs_end_at_once_together(bench):
    jobs = [bench.running() for _ in range(2)]
    assert bench.slurm.cancel(jobs) == set()
    for job in jobs:
        described = bench.slurm.describe(job.job_id)
        told = (described.state, described.nodes, described.started_at)
        assert told == (JobState.CANCELLED, job.nodes, job.started_at)
        assert (described.exit_code, described.signal) == (143, 0)  # of srun, which says what became of its ranks
        assert described.ended_at is not None


@pytest.mark.parametrize("bench", [*FAKE, REAL_IN_A_WALK], indirect=True)
def test_a_cancelled_job_that_ignores_sigterm_is_killed(bench):
    job, asked_at = bench.running("ignore_sigterm"), bench.slurm.now()
    assert bench.slurm.cancel([job]) == set()
    assert bench.slurm.now() - asked_at >= KILL_WAIT_S
    ended = bench.job(job.name)
    assert (ended.state, ended.nodes) == (JobState.CANCELLED, job.nodes)


def test_a_job_waits_for_nodes_and_then_starts_or_never_had_any(bench):
    full = bench.fill()
    name, cancelled = bench.submit("hang"), bench.submit("hang")
    waits = bench.until(cancelled, JobState.PENDING)
    assert (waits.nodes, waits.started_at, waits.ended_at) == ((), None, None)
    bench.eventually(lambda: bench.job(name).reason, lambda reason: reason in ("Resources", "Priority"))
    assert bench.slurm.cancel([waits]) == set()
    ended = bench.job(cancelled)
    assert (ended.state, ended.nodes, ended.started_at) == (JobState.CANCELLED, (), None)
    assert ended.ended_at is not None
    assert bench.slurm.cancel([bench.job(full.name)]) == set()
    bench.until(name, JobState.RUNNING)


@pytest.mark.security("cancel")
@pytest.mark.parametrize("stranger", [{"name": "another-name"}, {"user": "nobody"}])
def test_a_job_is_not_cancelled_for_its_id_alone(bench, stranger):
    job = bench.until(bench.submit("hang"), JobState.RUNNING)
    assert bench.slurm.cancel([replace(job, **stranger)]) == set()
    assert bench.job(job.name) == job


def test_excluded_nodes_are_kept_free_by_jobs_of_one_node_and_of_two(bench):
    job = bench.running(exclude=("n3",), options=JobOptions(exclude=NODES[:2]))
    assert job.nodes == ("n4",)
    assert bench.slurm.cancel([job]) == set()
    assert len(set(bench.running(num_nodes=2, exclude=("n2",)).nodes) & {"n1", "n3", "n4"}) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (JobOptions(partition="nosuch"), "Invalid partition name specified"),
        (JobOptions(exclude=("n99",)), "Invalid node name specified"),
        (JobOptions(gpus_per_node=5), "Requested node configuration is not available"),
        (JobOptions(exclude=NODES), "Requested node configuration is not available"),
    ],
)
def test_what_can_never_run_is_refused_with_slurms_words(bench, options, message):
    request = bench.request(options=options)
    for ask in (bench.slurm.test, bench.slurm.submit):
        assert ask is bench.slurm.submit or bench.known(request.name) == []
        answer = ask(request)
        assert (answer.status, answer.job_id) == (SubmitStatus.REFUSED, None)
        assert message in answer.message


def test_what_is_tested_is_not_submitted_and_needs_no_script_as_a_job_does(bench):
    request = bench.request("hang", num_nodes=2)
    request.script.unlink()
    assert bench.slurm.test(request).status is SubmitStatus.ACCEPTED
    assert bench.known(request.name) == []
    submission = bench.slurm.submit(request)
    assert submission.status is SubmitStatus.REFUSED
    assert "Unable to open file" in submission.message
    full = bench.fill()
    assert bench.slurm.test(request).status is SubmitStatus.ACCEPTED, "a full cluster refuses nothing"
    assert bench.slurm.cancel([bench.job(full.name)]) == set()


def test_a_refused_submission_may_leave_a_job_that_never_ran(bench):
    request = bench.request(exclude=NODES)
    assert bench.slurm.submit(request).status is SubmitStatus.REFUSED
    left = bench.job(request.name)
    assert (left.state, left.reason, left.nodes, left.started_at) == (JobState.FAILED, "BadConstraints", (), None)


def test_settings_partitions_and_nodes_are_the_clusters(bench):
    settings = bench.slurm.settings()
    assert (settings.kill_wait_s, settings.over_time_limit_s) == (KILL_WAIT_S, 0.0)
    assert min(settings.min_job_age_s, settings.message_timeout_s) > 0
    assert settings.cluster_name
    assert settings.version
    main = next(partition for partition in bench.slurm.partitions() if partition.name == "main")
    assert (main.is_default, main.state_text, main.num_nodes) == (True, "UP", len(NODES))
    assert main.allows_account("any")
    nodes = [node for node in bench.slurm.nodes() if node.partition == "main"]
    assert [node.name for node in nodes] == list(NODES)
    told = {(node.cpus, node.gpus, node.is_away, node.is_in_default_partition) for node in nodes}
    assert told == {(4, 4, False, True)}


@pytest.mark.parametrize("bench", [*FAKE, REAL, REAL_WITHOUT_ACCOUNTING], indirect=True)
def test_accounting_has_the_last_word_and_a_users_limits_or_is_not_there(bench):
    has_accounting, before = bench.slurm.settings().has_accounting, bench.slurm.now()
    assert (bench.slurm.association_limits() is not None) is has_accounting
    failed, cancelled = bench.submit("fail"), bench.submit("hang")
    bench.until(cancelled, JobState.RUNNING)
    assert bench.slurm.cancel([bench.job(cancelled)]) == set()
    ended = bench.until(failed, *ENDED)
    if not has_accounting:
        assert bench.slurm.accounted_jobs([failed], before) is None
        return

    def rows() -> dict[str, JobSnapshot]:
        return {row.name: row for row in bench.slurm.accounted_jobs([failed, cancelled], before) or ()}

    found = bench.eventually(rows, lambda rows: len([r for r in rows.values() if r.ended_at is not None]) == 2)
    expected = replace(ended, reason=None, exit_code=3, signal=0, billing=found[failed].billing, qos="normal")
    assert found[failed] == expected
    assert (found[cancelled].state, found[cancelled].exit_code, found[cancelled].signal) == (JobState.CANCELLED, 0, 0)
    assert bench.slurm.accounted_jobs([failed], before) == (expected,)
    assert bench.slurm.accounted_jobs([failed], bench.slurm.now() + 10) == ()
    assert bench.slurm.accounted_jobs(["no-such-job"], before) == ()


@pytest.mark.parametrize("bench", [*FAKE, REAL_IN_A_WALK], indirect=True)
def test_without_a_controller_nothing_is_known_and_nothing_submitted(bench):
    running = bench.until(bench.submit("hang"), JobState.RUNNING)
    request, slurm = bench.request(), bench.slurm
    with bench.controller(is_down=True):
        of_job = (lambda: slurm.describe(running.job_id), lambda: slurm.cancel([running]), lambda: slurm.test(request))
        for ask in (slurm.jobs, slurm.partitions, slurm.nodes, *of_job):
            with pytest.raises(SlurmUnreachable):
                ask()
        submission = slurm.submit(request)
        assert (submission.status, submission.job_id) == (SubmitStatus.BUSY, None)
        assert "Unable to contact slurm controller" in submission.message
    bench.eventually(lambda: bench.known(running.name), lambda jobs: jobs == [running])
    assert bench.known(request.name) == []


def test_a_submission_without_an_answer_may_have_been_accepted(bench):
    request = bench.request("hang")
    with bench.controller(is_down=False):
        submission = bench.slurm.submit(request)
        assert (submission.status, submission.job_id) == (SubmitStatus.UNCONFIRMED, None)
        assert "timed out" in submission.message
    bench.eventually(lambda: bench.known(request.name), lambda jobs: len(jobs) == 1)
