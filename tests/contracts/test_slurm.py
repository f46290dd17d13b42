"""Contract of Slurm: the real commands on a real cluster, and the fake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from slurm.interface import SlurmUnreachable, SubmitStatus
from slurm.job_state import JobSnapshot, JobState
from slurm.request import JobOptions
from tests.contracts.slurm_benches import ENDED, KILL_WAIT_S, NODES, Bench, FakeBench, RealBench

FAKE, REAL, REAL_WITHOUT_ACCOUNTING = (
    ["fake", "fake_accounting"],
    pytest.param("slurm_sandbox_accounting", marks=[pytest.mark.processes, pytest.mark.timeout(360)]),
    pytest.param("slurm_sandbox", marks=[pytest.mark.processes, pytest.mark.timeout(360)]),
)
REAL_IN_A_WALK = pytest.param(*REAL.values, marks=[*REAL.marks, pytest.mark.walks])
"""Cases for which a real Slurm needs long: until it kills, or restarts."""


@pytest.fixture(params=[*FAKE, REAL])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
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
    name = bench.submit("succeed")
    ended = bench.until(name, *ENDED)
    assert (ended.state, ended.state_text, ended.reason, ended.user) == (
        JobState.COMPLETED,
        "COMPLETED",
        None,
        bench.slurm.user,
    )
    assert len(ended.nodes) == 1
    assert ended.submitted_at is not None
    assert ended.started_at is not None
    assert ended.ended_at is not None
    assert int(before) <= ended.submitted_at <= ended.started_at <= ended.ended_at <= bench.slurm.now()
    described = bench.slurm.describe(ended.job_id)
    of_job = {"billing": described.billing, "qos": described.qos}
    assert described == replace(ended, exit_code=0, signal=0, restarts=0, **of_job)


def test_a_running_job_has_nodes_and_a_start_but_no_end(bench):
    job = bench.until(bench.submit("hang"), JobState.RUNNING)
    assert job.started_at is not None
    assert 0 <= bench.slurm.now() - job.started_at < 60
    assert (len(job.nodes), job.reason, job.ended_at) == (1, None, None)
    described = bench.slurm.describe(job.job_id)
    assert described is not None
    assert replace(described, exit_code=None, signal=None, restarts=None, billing=None, qos=None) == job
    assert described.restarts == 0


def test_the_exit_code_of_a_failed_job_is_reported(bench):
    job = bench.until(bench.submit("fail"), *ENDED)
    assert (job.state, job.reason) == (JobState.FAILED, "NonZeroExitCode")
    described = bench.slurm.describe(job.job_id)
    assert described is not None
    assert (described.exit_code, described.signal) == (3, 0)


def test_an_id_that_slurm_does_not_know_is_none(bench):
    assert bench.slurm.describe("999999") is None


def test_two_jobs_of_one_name_are_both_told(bench):
    request = bench.request("hang")
    ids = {bench.slurm.submit(request).job_id for _ in range(2)}
    assert {job.job_id for job in bench.slurm.jobs() if job.name == request.name} == ids
    assert len(ids) == 2


def test_all_jobs_on_a_node_are_told_also_those_that_have_ended(bench):
    ended = bench.until(bench.submit("succeed", options=JobOptions(nodelist=("n2",))), *ENDED)
    running = bench.until(bench.submit("hang", options=JobOptions(nodelist=("n2",))), JobState.RUNNING)
    elsewhere = bench.until(bench.submit("hang", options=JobOptions(nodelist=("n3",))), JobState.RUNNING)
    found = {job.name: job for job in bench.slurm.jobs_on(["n2", "n4"])}
    assert found[ended.name] == ended
    assert found[running.name] == running
    assert elsewhere.name not in found


def test_a_cancelled_job_ends(bench):
    job = bench.until(bench.submit("hang"), JobState.RUNNING)
    bench.until_ready(job.name)
    assert bench.slurm.cancel([job]) == set()
    described = bench.slurm.describe(job.job_id)
    assert described is not None
    assert (described.state, described.nodes, described.started_at) == (JobState.CANCELLED, job.nodes, job.started_at)
    assert (described.exit_code, described.signal) == (
        143,
        0,
    )  # the script is srun, which says what became of its ranks
    assert described.ended_at is not None


@pytest.mark.parametrize("bench", [*FAKE, REAL_IN_A_WALK], indirect=True)
def test_a_cancelled_job_that_ignores_sigterm_is_killed(bench):
    job = bench.until(bench.submit("ignore_sigterm"), JobState.RUNNING)
    bench.until_ready(job.name)
    asked_at = bench.slurm.now()
    assert bench.slurm.cancel([job]) == set()
    assert bench.slurm.now() - asked_at >= KILL_WAIT_S
    ended = bench.job(job.name)
    assert (ended.state, ended.nodes) == (JobState.CANCELLED, job.nodes)


def test_a_job_cancelled_before_it_starts_never_had_nodes(bench):
    bench.fill()
    waits = bench.until(bench.submit("hang"), JobState.PENDING)
    assert (waits.nodes, waits.started_at, waits.ended_at) == ((), None, None)
    assert bench.slurm.cancel([waits]) == set()
    ended = bench.job(waits.name)
    assert (ended.state, ended.nodes, ended.started_at) == (JobState.CANCELLED, (), None)
    assert ended.ended_at is not None


def test_a_job_waits_for_nodes_and_then_starts(bench):
    full = bench.fill()
    name = bench.submit("hang")
    bench.eventually(lambda: bench.job(name).reason, lambda reason: reason in ("Resources", "Priority"))
    assert bench.slurm.cancel([bench.job(full)]) == set()
    bench.until(name, JobState.RUNNING)


def test_cancelling_a_job_that_has_ended_changes_nothing(bench):
    job = bench.until(bench.submit("fail"), *ENDED)
    assert bench.slurm.cancel([job]) == set()
    assert bench.job(job.name) == job


@pytest.mark.security("cancel")
@pytest.mark.parametrize("stranger", [{"name": "another-name"}, {"user": "nobody"}])
def test_a_job_is_not_cancelled_for_its_id_alone(bench, stranger):
    job = bench.until(bench.submit("hang"), JobState.RUNNING)
    assert bench.slurm.cancel([replace(job, **stranger)]) == set()  # type: ignore[arg-type]
    assert bench.job(job.name) == job


def test_many_jobs_are_cancelled_at_once(bench):
    names = [bench.submit("hang") for _ in range(3)]
    assert bench.slurm.cancel([bench.job(name) for name in names]) == set()
    assert {bench.job(name).state for name in names} == {JobState.CANCELLED}


def test_excluded_nodes_are_kept_free(bench):
    options = JobOptions(exclude=NODES[:2])
    job = bench.until(bench.submit("hang", exclude=("n3",), options=options), JobState.RUNNING)
    assert job.nodes == ("n4",)


def test_a_job_runs_on_two_nodes(bench):
    job = bench.until(bench.submit("hang", num_nodes=2, exclude=("n2",)), JobState.RUNNING)
    assert len(set(job.nodes) & {"n1", "n3", "n4"}) == 2


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
    tested = bench.slurm.test(request)
    assert (tested.status, tested.job_id) == (SubmitStatus.REFUSED, None)
    assert message in tested.message
    assert _known(bench, request.name) == []
    submission = bench.slurm.submit(request)
    assert (submission.status, submission.job_id) == (SubmitStatus.REFUSED, None)
    assert message in submission.message


def test_what_is_tested_is_not_submitted_and_needs_no_script(bench):
    request = bench.request("hang", num_nodes=2)
    request.script.unlink()
    assert bench.slurm.test(request).status is SubmitStatus.ACCEPTED
    assert _known(bench, request.name) == []
    full = bench.fill()
    assert bench.slurm.test(request).status is SubmitStatus.ACCEPTED, "a full cluster refuses nothing"
    assert bench.slurm.cancel([bench.job(full)]) == set()


def test_a_refused_submission_may_leave_a_job_that_never_ran(bench):
    request = bench.request(exclude=NODES)
    assert bench.slurm.submit(request).status is SubmitStatus.REFUSED
    left = bench.job(request.name)
    assert (left.state, left.reason, left.nodes, left.started_at) == (JobState.FAILED, "BadConstraints", (), None)


def test_a_job_without_its_script_is_refused(bench):
    request = bench.request()
    request.script.unlink()
    submission = bench.slurm.submit(request)
    assert submission.status is SubmitStatus.REFUSED
    assert "Unable to open file" in submission.message


def test_settings_are_the_clusters(bench):
    settings = bench.slurm.settings()
    assert (settings.kill_wait_s, settings.over_time_limit_s) == (KILL_WAIT_S, 0.0)
    assert settings.min_job_age_s > 0
    assert settings.message_timeout_s > 0
    assert settings.cluster_name
    assert settings.version


def test_partitions_and_their_nodes_are_the_clusters(bench):
    main = next(partition for partition in bench.slurm.partitions() if partition.name == "main")
    assert (main.is_default, main.state_text, main.num_nodes) == (True, "UP", len(NODES))
    assert main.allows_account("any")
    nodes = [node for node in bench.slurm.nodes() if node.partition == "main"]
    assert [node.name for node in nodes] == list(NODES)
    assert {(node.cpus, node.gpus, node.is_away, node.is_in_default_partition) for node in nodes} == {
        (4, 4, False, True)
    }


@pytest.mark.parametrize("bench", [*FAKE, REAL, REAL_WITHOUT_ACCOUNTING], indirect=True)
def test_what_a_user_may_have_is_accountings_to_say(bench):
    association_limits = bench.slurm.association_limits()
    assert (association_limits is not None) is bench.slurm.settings().has_accounting


@pytest.mark.parametrize("bench", [*FAKE, REAL, REAL_WITHOUT_ACCOUNTING], indirect=True)
def test_accounting_has_the_last_word_or_is_not_there(bench):
    before = bench.slurm.now()
    failed, cancelled = bench.submit("fail"), bench.submit("hang")
    bench.until(cancelled, JobState.RUNNING)
    assert bench.slurm.cancel([bench.job(cancelled)]) == set()
    ended = {name: bench.until(name, *ENDED) for name in (failed, cancelled)}
    if not bench.slurm.settings().has_accounting:
        assert bench.slurm.accounted_jobs([failed], before) is None
        return

    def rows() -> dict[str, JobSnapshot]:
        return {row.name: row for row in bench.slurm.accounted_jobs([failed, cancelled], before) or ()}

    found = bench.eventually(rows, lambda rows: len([r for r in rows.values() if r.ended_at is not None]) == 2)
    of_job = {"billing": found[failed].billing, "qos": "normal"}
    expected = replace(ended[failed], reason=None, exit_code=3, signal=0, **of_job)
    assert found[failed] == expected
    assert (found[cancelled].state, found[cancelled].exit_code, found[cancelled].signal) == (JobState.CANCELLED, 0, 0)
    assert bench.slurm.accounted_jobs([failed], before) == (expected,)
    assert bench.slurm.accounted_jobs([failed], bench.slurm.now() + 10) == ()
    assert bench.slurm.accounted_jobs(["no-such-job"], before) == ()


@pytest.mark.parametrize("bench", [*FAKE, REAL_IN_A_WALK], indirect=True)
def test_without_a_controller_nothing_is_known_and_nothing_submitted(bench):
    name = bench.submit("hang")
    running = bench.until(name, JobState.RUNNING)
    request = bench.request()
    with bench.controller_down():
        for ask in (
            bench.slurm.jobs,
            bench.slurm.partitions,
            bench.slurm.nodes,
            lambda: bench.slurm.describe(running.job_id),
            lambda: bench.slurm.cancel([running]),
            lambda: bench.slurm.test(request),
        ):
            with pytest.raises(SlurmUnreachable):
                ask()
        submission = bench.slurm.submit(request)
        assert (submission.status, submission.job_id) == (SubmitStatus.BUSY, None)
        assert "Unable to contact slurm controller" in submission.message
    bench.eventually(lambda: _known(bench, name), lambda jobs: jobs == [running])
    assert _known(bench, request.name) == []


def test_a_submission_without_an_answer_may_have_been_accepted(bench):
    request = bench.request("hang")
    with bench.controller_hung():
        submission = bench.slurm.submit(request)
        assert (submission.status, submission.job_id) == (SubmitStatus.UNCONFIRMED, None)
        assert "timed out" in submission.message
    bench.eventually(lambda: _known(bench, request.name), lambda jobs: len(jobs) == 1)


def _known(bench: Bench, name: str) -> list[JobSnapshot]:
    with suppress(SlurmUnreachable):
        return [job for job in bench.slurm.jobs() if job.name == name]
    return []
