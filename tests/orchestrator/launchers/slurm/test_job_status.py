"""LaunchStatus from Slurm's report on a job: one row for every kind of case seen on a real Slurm."""

from __future__ import annotations

import pytest

from orchestrator.launchers.slurm.job_status import alive_status, describe_job, ended_status, unknown_status
from orchestrator.launchers.slurm.launcher import SlurmLauncher
from slurm.job_state import JobSnapshot, JobState
from slurm.parse import parse_squeue
from tests.orchestrator.launchers.attempts import attempt_request, poll_one
from tests.rig import access_to
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

NON_ZERO, LAUNCH = "NonZeroExitCode", "JobLaunchFailure"
NODE, MEMORY, TIME = FailureReason.NODE_FAILURE, FailureReason.HOST_OOM, FailureReason.TIME_LIMIT
USER, PREEMPTED = FailureReason.CANCELLED_BY_USER, FailureReason.PREEMPTED

ENDS = [
    # -- it ended by itself: only the trial can know why
    (("COMPLETED",), "", None),
    (("FAILED", NON_ZERO, 3), EXITED_FIRST, None),
    (("FAILED", NON_ZERO, 137), EXITED_THEN_KILLED, None),
    (("FAILED", NON_ZERO, 143), SEGFAULT_FIRST, None),
    (("FAILED", NON_ZERO, 127), NO_COMMAND, None),
    # -- it was ended by somebody who was neither us nor Slurm
    (("FAILED", NON_ZERO, 143), KILLED_FIRST, NODE),
    (("FAILED", NON_ZERO, 143), TERMINATED_FIRST, NODE),
    (("FAILED", LAUNCH, 0, 9), "", NODE),
    # -- the batch script's folder or log is not there; a rank could not read or write its own files
    (("FAILED", LAUNCH, 0, 53), "", FailureReason.LAUNCH_FAILURE),
    (("FAILED", NON_ZERO, 143), FILES_FAILED_FIRST, FailureReason.LAUNCH_FAILURE),
    # -- memory, whatever Slurm then calls it
    (("OUT_OF_MEMORY", "OutOfMemory", 0, 125), "", MEMORY),
    (("FAILED", NON_ZERO, 1), OUT_OF_MEMORY, MEMORY),
    (("FAILED", NON_ZERO, 1), OUT_OF_MEMORY_LATER, MEMORY),
    (("FAILED", NON_ZERO, 1), EXITED_FIRST.replace("code 3", "code 76"), MEMORY),  # of a rank that was forked
    (("FAILED", LAUNCH, 0, 9), OVER_MEMORY, MEMORY),
    # -- time, with whatever code srun leaves
    (("TIMEOUT", "TimeLimit", 143), TIME_LIMIT, TIME),
    (("DEADLINE", "DeadLine", 0, 1), "", TIME),
    # -- nodes, and others' jobs
    (("NODE_FAIL", "NodeDown", 0, 15), KILLED_FIRST, NODE),
    (("BOOT_FAIL",), "", FailureReason.BOOT_FAILURE),
    (("PREEMPTED", None, 143), CANCELLED, PREEMPTED),
    # -- scancel of somebody else; a revoked job went to another cluster
    (("CANCELLED", None, 0, 15), KILLED_FIRST, USER),
    (("REVOKED",), "", USER),
    # -- accounting's words, which know neither reason nor, mostly, exit code
    (("FAILED", None, None, None), "", None),
]


def snapshot(state: str, reason: str | None = None, code: int | None = 0, signal: int | None = 0) -> JobSnapshot:
    times = (SUBMITTED, STARTED, ENDED)
    return JobSnapshot("7", "s.t0001.a1", "me", JobState(state), state, reason, ("n1", "n2"), *times, code, signal, 0)


@pytest.mark.parametrize(("told", "log", "reason"), ENDS)
def test_what_slurm_says_of_an_end(told, log, reason):
    job = snapshot(*told)
    status = ended_status(job, log, cancelled=False)
    assert (status.liveness, status.reason, status.failed) == (Liveness.ENDED, reason, told[0] != "COMPLETED")
    assert (status.started, status.started_at, status.ended_at) == (True, STARTED, ENDED)
    assert (status.nodes, status.job_id, status.restart) == (("n1", "n2"), "7", 0)
    assert status.detail == describe_job(job)


def test_every_ended_state_has_a_row_above():
    """A final state that is missing in this table would be reported as a broken script."""
    assert {told[0] for told, _, _ in ENDS} == {state.value for state in JobState if state.is_ended}


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (("CANCELLED", None, 143), FailureReason.CANCELLED_BY_SEARCH),
        (("COMPLETED",), None),
        (("FAILED", None, 3), None),
        (("TIMEOUT", None, 143), TIME),
        (("NODE_FAIL",), NODE),
    ],
)
def test_a_job_that_we_cancelled_ended_by_that_unless_it_had_ended_before(told, reason):
    log = KILLED_FIRST if told[0] == "CANCELLED" else ""
    assert ended_status(snapshot(*told), log, cancelled=True).reason is reason


@pytest.mark.parametrize("held", [None, "JobHeldUser"])
def test_a_job_cancelled_before_it_had_a_node_never_started(held):
    job = JobSnapshot("7", "n", "me", JobState.CANCELLED, "CANCELLED", held, (), SUBMITTED, None, ENDED, 0, 0, 0)
    status = ended_status(job, "", cancelled=True)
    assert (status.started, status.started_at, status.nodes) == (False, None, ())
    assert (status.failed, status.reason) == (True, FailureReason.CANCELLED_BY_SEARCH)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (("COMPLETED",), "COMPLETED"),
        (("FAILED", NON_ZERO, 3), "FAILED (NonZeroExitCode), exit code 3"),
        (("FAILED", LAUNCH, 0, 53), "FAILED (JobLaunchFailure), signal 53"),
        (("TIMEOUT", "TimeLimit", None, None), "TIMEOUT (TimeLimit)"),
    ],
)
def test_slurms_words_stand_on_one_line(told, words):
    assert describe_job(snapshot(*told)) == f"Slurm job 7: {words}"


def row(state: str, reason: str = "None", nodes: str = "") -> JobSnapshot:
    """Return a job as squeue reports it."""
    started = "2026-11-21T12:00:10" if nodes else "N/A"
    [job] = parse_squeue(f"7|me|{state}|{reason}|{nodes}|2026-11-21T12:00:00|{started}|N/A|s.t0001.a1")
    return job


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("PENDING", "BeginTime"),  # put back into the queue: by an operator, a node's failure, a preemption
        ("PENDING", "ReqNodeNotAvail, UnavailableNodes:n[1-4]"),
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
    assert (status.job_id, status.restart, status.detail) == ("7", 2, detail)
    assert status.started_at == row(state, nodes="n1").started_at


@pytest.mark.parametrize("word", ["POWER_UP_NODE", "LAUNCH_FAILED", "COMPLETED_BUT_ODD", ""])
def test_a_word_in_none_of_our_lists_is_unknown_and_kept(word):
    status = unknown_status(row(word))
    assert (status.liveness, status.reason, status.job_id) == (Liveness.UNKNOWN, None, "7")
    assert word in str(status.detail)


@pytest.mark.fault(20)
@pytest.mark.walks
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_real_slurm_that_ends_a_job_at_its_limit_is_a_time_limit(tmp_path, slurm_sandbox):
    launcher = SlurmLauncher(access_to(slurm_sandbox))
    request = attempt_request(tmp_path, "hang", time_limit_s=300.0)
    job_id = launcher.launch(request)
    # A job runs before srun has its step, and Slurm gives none to a job whose end has passed: srun would fail.
    while not (request.folder.path / "hanging-0").exists():
        launcher.wait(0.5)
    slurm_sandbox.ask("scontrol", "update", f"JobId={job_id}", "EndTime=now")  # Slurm looks every half minute
    while (status := poll_one(launcher, request)).liveness is not Liveness.ENDED:
        launcher.wait(0.5)
    assert (status.reason, status.failed, status.is_metered) == (FailureReason.TIME_LIMIT, True, True)
    assert "TIMEOUT (TimeLimit)" in (status.detail or "")
    assert "DUE TO TIME LIMIT" in (request.folder.path / "job.log").read_text()
