"""LaunchStatus from Slurm's report on a job: one row for every case seen on a real Slurm."""

from __future__ import annotations

import pytest

from orchestrator.launchers.slurm.job_status import alive_status, describe_job, ended_status, unknown_status
from slurm.job_state import JobSnapshot, JobState
from slurm.parse import parse_squeue
from trials.attempt_result import Liveness
from trials.trial import FailureReason

SUBMITTED, STARTED, ENDED = 1_800_000_000.0, 1_800_000_010.0, 1_800_000_070.0

# What srun and slurmstepd wrote into job.log, in their order, on a real Slurm.
KILLED_FIRST = """\
srun: error: n1: task 1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=10.0
srun: error: n1: task 0: Terminated
srun: error: n2: tasks 2-3: Terminated
srun: Force Terminated StepId=10.0
"""
EXITED_FIRST = """\
srun: error: n4: task 2: Exited with exit code 3
srun: launch/slurm: _step_signal: Terminating StepId=12.0
srun: error: n4: task 3: Terminated
srun: error: n3: tasks 0-1: Terminated
srun: Force Terminated StepId=12.0
"""
EXITED_THEN_KILLED = EXITED_FIRST.replace(": Terminated", ": Killed")
FILES_FAILED_FIRST = EXITED_FIRST.replace("code 3", "code 74")
TERMINATED_FIRST = """\
srun: error: n4: tasks 2-3: Terminated
srun: launch/slurm: _step_signal: Terminating StepId=16.0
srun: error: n3: tasks 0-1: Terminated
"""
SEGFAULT_FIRST = KILLED_FIRST.replace("Killed", "Segmentation fault")
NO_COMMAND = "srun: error: n2: tasks 2-3: Exited with exit code 127\n"
OUT_OF_MEMORY = """\
slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your processes may have been killed.
srun: error: n1: task 0: Out Of Memory
srun: error: n1: task 1: Exited with exit code 1
"""
OUT_OF_MEMORY_LATER = "srun: error: n1: task 1: Exited with exit code 1\nsrun: error: n1: task 0: Out Of Memory\n"
OVER_MEMORY = "slurmstepd-n1: error: StepId=3.0 exceeded memory limit (2048 > 1024), being killed\n"
CANCELLED = "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-21T14:00:00 ***\n"
TIME_LIMIT = CANCELLED.replace(" ***\n", " DUE TO TIME LIMIT ***\n")


def snapshot(state: str, reason: str | None = None, code: int | None = 0, signal: int | None = 0) -> JobSnapshot:
    times = (SUBMITTED, STARTED, ENDED)
    return JobSnapshot("7", "s.t0001.a1", "me", JobState(state), state, reason, ("n1", "n2"), *times, code, signal, 0)


@pytest.mark.parametrize(
    ("job", "log", "reason", "failed"),
    [
        # -- it ended by itself: only the trial can know why
        (snapshot("COMPLETED"), "", None, False),
        (snapshot("FAILED", "NonZeroExitCode", 3), EXITED_FIRST, None, True),
        (snapshot("FAILED", "NonZeroExitCode", 3), "", None, True),
        (snapshot("FAILED", "NonZeroExitCode", 143), EXITED_FIRST, None, True),
        (snapshot("FAILED", "NonZeroExitCode", 137), EXITED_THEN_KILLED, None, True),
        (snapshot("FAILED", "NonZeroExitCode", 143), SEGFAULT_FIRST, None, True),
        (snapshot("FAILED", "NonZeroExitCode", 127), NO_COMMAND, None, True),
        (snapshot("FAILED", "NonZeroExitCode", 127), "job.sh: line 9: srun: command not found\n", None, True),
        # -- it was ended by somebody who was neither us nor Slurm
        (snapshot("FAILED", "NonZeroExitCode", 143), KILLED_FIRST, FailureReason.NODE_FAILURE, True),
        (snapshot("FAILED", "NonZeroExitCode", 137), KILLED_FIRST, FailureReason.NODE_FAILURE, True),
        (snapshot("FAILED", "NonZeroExitCode", 143), TERMINATED_FIRST, FailureReason.NODE_FAILURE, True),
        (snapshot("FAILED", "JobLaunchFailure", 0, 9), "", FailureReason.NODE_FAILURE, True),
        (snapshot("FAILED", "JobLaunchFailure", 0, 15), "", FailureReason.NODE_FAILURE, True),
        # -- the batch script's folder or log is not there
        (snapshot("FAILED", "JobLaunchFailure", 0, 53), "", FailureReason.LAUNCH_FAILURE, True),
        # -- a rank could not read or write its own files
        (snapshot("FAILED", "NonZeroExitCode", 143), FILES_FAILED_FIRST, FailureReason.LAUNCH_FAILURE, True),
        # -- memory, whatever Slurm then calls it
        (snapshot("OUT_OF_MEMORY", "OutOfMemory", 0, 125), OUT_OF_MEMORY, FailureReason.HOST_OOM, True),
        (snapshot("OUT_OF_MEMORY", "OutOfMemory", 0, 125), "", FailureReason.HOST_OOM, True),
        (snapshot("FAILED", "NonZeroExitCode", 1), OUT_OF_MEMORY, FailureReason.HOST_OOM, True),
        (snapshot("FAILED", "NonZeroExitCode", 1), OUT_OF_MEMORY_LATER, FailureReason.HOST_OOM, True),
        (snapshot("FAILED", "JobLaunchFailure", 0, 9), OVER_MEMORY, FailureReason.HOST_OOM, True),
        # -- time: srun leaves 143 when it heeds SIGTERM and 0 when it does not; other scripts 0:15 and 0:9
        (snapshot("TIMEOUT", "TimeLimit", 143), TIME_LIMIT, FailureReason.TIME_LIMIT, True),
        (snapshot("TIMEOUT", "TimeLimit", 0), TIME_LIMIT, FailureReason.TIME_LIMIT, True),
        (snapshot("TIMEOUT", "TimeLimit", 0, 15), TIME_LIMIT, FailureReason.TIME_LIMIT, True),
        (snapshot("TIMEOUT", "TimeLimit", 0, 9), "", FailureReason.TIME_LIMIT, True),
        (snapshot("DEADLINE", "DeadLine", 0, 1), "", FailureReason.TIME_LIMIT, True),
        # -- nodes, and others' jobs
        (snapshot("NODE_FAIL", "NodeDown"), "", FailureReason.NODE_FAILURE, True),
        (snapshot("NODE_FAIL", "NodeDown", 0, 15), KILLED_FIRST, FailureReason.NODE_FAILURE, True),
        (snapshot("BOOT_FAIL", None), "", FailureReason.BOOT_FAILURE, True),
        (snapshot("PREEMPTED", None, 0, 15), CANCELLED, FailureReason.PREEMPTED, True),
        (snapshot("PREEMPTED", None, 143), CANCELLED, FailureReason.PREEMPTED, True),
        # -- scancel of somebody else; a revoked job went to another cluster
        (snapshot("CANCELLED", None, 143), CANCELLED, FailureReason.CANCELLED_BY_USER, True),
        (snapshot("CANCELLED", None, 0), CANCELLED, FailureReason.CANCELLED_BY_USER, True),
        (snapshot("CANCELLED", None, 0, 15), KILLED_FIRST, FailureReason.CANCELLED_BY_USER, True),
        (snapshot("CANCELLED", "DependencyNeverSatisfied"), "", FailureReason.CANCELLED_BY_USER, True),
        (snapshot("REVOKED"), "", FailureReason.CANCELLED_BY_USER, True),
        # -- accounting's words, which know neither reason nor, mostly, exit code
        (snapshot("TIMEOUT", None, 0), "", FailureReason.TIME_LIMIT, True),
        (snapshot("CANCELLED", None, 0), "", FailureReason.CANCELLED_BY_USER, True),
        (snapshot("FAILED", None, 3), "", None, True),
        (snapshot("FAILED", None, None, None), "", None, True),
    ],
)
def test_what_slurm_says_of_an_end(job, log, reason, failed):
    status = ended_status(job, log, cancelled=False)
    assert (status.liveness, status.reason, status.failed) == (Liveness.ENDED, reason, failed)
    assert (status.started, status.started_at, status.ended_at) == (True, STARTED, ENDED)
    assert (status.nodes, status.job_id, status.restart) == (("n1", "n2"), "7", 0)
    assert status.detail == describe_job(job)


@pytest.mark.parametrize(("code", "signal"), [(143, 0), (0, 0), (0, 15), (0, 9)])
def test_a_cancelled_job_was_cancelled_by_the_search_where_we_asked_for_it(code, signal):
    status = ended_status(snapshot("CANCELLED", None, code, signal), KILLED_FIRST, cancelled=True)
    assert status.reason is FailureReason.CANCELLED_BY_SEARCH


@pytest.mark.parametrize(
    ("state", "code", "reason"),
    [
        ("COMPLETED", 0, None),
        ("FAILED", 3, None),
        ("TIMEOUT", 143, FailureReason.TIME_LIMIT),
        ("NODE_FAIL", 0, FailureReason.NODE_FAILURE),
    ],
)
def test_a_job_that_had_ended_before_our_scancel_ended_as_slurm_says(state, code, reason):
    assert ended_status(snapshot(state, None, code), "", cancelled=True).reason is reason


@pytest.mark.parametrize("held", [None, "JobHeldUser"])
def test_a_job_cancelled_before_it_had_a_node_never_started(held):
    job = JobSnapshot("7", "n", "me", JobState.CANCELLED, "CANCELLED", held, (), SUBMITTED, None, ENDED, 0, 0, 0)
    status = ended_status(job, "", cancelled=True)
    assert (status.started, status.started_at, status.nodes) == (False, None, ())
    assert (status.failed, status.reason) == (True, FailureReason.CANCELLED_BY_SEARCH)


def test_every_ended_state_has_a_row_above():
    """A final state that is missing in this table would be reported as a broken script."""
    rows = test_what_slurm_says_of_an_end.pytestmark[0].args[1]
    assert {job.state for job, *_ in rows} == {state for state in JobState if state.is_ended}


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (snapshot("COMPLETED"), "Slurm job 7: COMPLETED"),
        (snapshot("FAILED", "NonZeroExitCode", 3), "Slurm job 7: FAILED (NonZeroExitCode), exit code 3"),
        (snapshot("FAILED", "JobLaunchFailure", 0, 53), "Slurm job 7: FAILED (JobLaunchFailure), signal 53"),
        (snapshot("TIMEOUT", "TimeLimit", None, None), "Slurm job 7: TIMEOUT (TimeLimit)"),
    ],
)
def test_slurms_words_stand_on_one_line(job, words):
    assert describe_job(job) == words


def row(state: str, reason: str = "None", nodes: str = "") -> JobSnapshot:
    """Return a job as squeue reports it."""
    started = "2026-11-21T12:00:10" if nodes else "N/A"
    [job] = parse_squeue(f"7|me|{state}|{reason}|{nodes}|2026-11-21T12:00:00|{started}|N/A|s.t0001.a1")
    return job


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("PENDING", "Priority"),
        ("PENDING", "Resources"),
        ("PENDING", "BeginTime"),  # put back into the queue: by an operator, a node's failure, a preemption
        ("PENDING", "ReqNodeNotAvail, UnavailableNodes:n[1-4]"),
        ("PENDING", "JobHeldAdmin"),
        ("PENDING", "job requeued in held state"),
        ("PENDING", "launch failed requeued held"),
        ("REQUEUE_HOLD", "JobHeldUser"),
        ("SPECIAL_EXIT", "job_requeued_in_held_state"),
    ],
)
def test_what_a_waiting_job_waits_for_is_reported(state, reason):
    status = alive_status(row(state, reason), restart=1)
    assert (status.liveness, status.started, status.detail, status.restart) == (Liveness.ALIVE, False, reason, 1)
    assert (status.nodes, status.started_at, status.ended_at) == ((), None, None)


def test_a_job_whose_nodes_still_boot_has_not_started():
    status = alive_status(row("CONFIGURING", nodes="n[1-2]"), restart=0)
    assert (status.liveness, status.started, status.nodes, status.started_at) == (Liveness.ALIVE, False, (), None)


@pytest.mark.parametrize(
    ("state", "detail"),
    [
        *((state, None) for state in ("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "RESIZING")),
        *(("SUSPENDED", "suspended"), ("STOPPED", "stopped")),
    ],
)
def test_a_job_with_processes_runs_and_one_that_stands_still_says_so(state, detail):
    status = alive_status(row(state, nodes="n[1-2]"), restart=2)
    assert (status.liveness, status.started, status.nodes) == (Liveness.ALIVE, True, ("n1", "n2"))
    assert (status.started_at, status.job_id, status.restart, status.detail) == (
        row(state, nodes="n1").started_at,
        "7",
        2,
        detail,
    )


@pytest.mark.parametrize("word", ["POWER_UP_NODE", "LAUNCH_FAILED", "COMPLETED_BUT_ODD", ""])
def test_a_word_in_none_of_our_lists_is_unknown_and_kept(word):
    status = unknown_status(row(word))
    assert (status.liveness, status.reason, status.job_id) == (Liveness.UNKNOWN, None, "7")
    assert word in str(status.detail)
