"""Reasons of a step's end, the same as for a job of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.launchers.slurm_pilot.step_status import ended_step_status, lost_step_status, step_job, suspect_nodes
from slurm.request import JobOptions, Launch
from slurm.script import render_script
from tests.kit import OUTCOME, SLOWEST
from tests.orchestrator.launchers.attempts import attempt_request
from trials.attempt_result import LaunchStatus, Liveness
from trials.files.folders import write_json
from trials.pilot.files import StepEnd, StepEndReason, StepStart
from trials.trial import FailureReason

NODES = ("n1", "n2")
END = StepEnd(StepEndReason.EXITED, 1000.0, 1010.0, exit_code=0, signal=0, step="3")
START = StepStart(1001.0, "3")
KILLED = "srun: error: n1: task 0: Killed\n"
CANCELLED = "slurmstepd-n1: error: *** STEP 7.3 ON n1 CANCELLED AT 2026-11-22T02:42:19 ***\n"
ABORTED = "srun: Job step aborted: Waiting up to 4 seconds for job step to finish.\n"
OF_THE_NODE = CANCELLED.replace(" ***\n", " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n")


@pytest.fixture
def request_(tmp_path: Path):
    return attempt_request(tmp_path)


def status(request, log: str = "", **changes) -> LaunchStatus:
    """Status of a step with this log, whose ranks srun or somebody else has ended."""
    Path(request.folder.path, "job.log").write_text(log)
    if {**vars(END), **changes}["step"] is not None:
        request.folder.rank_log(0).write_text(CANCELLED)
    return ended_step_status(request, "7", NODES, replace(END, **changes))


def test_a_step_that_ended_well_is_known_by_job_and_step_and_its_own_time(request_):
    found = status(request_)
    assert (found.liveness, found.started, found.failed, found.reason) == (Liveness.ENDED, True, False, None)
    assert (found.job_id, found.nodes, found.started_at, found.ended_at) == ("7.3", NODES, 1000.0, 1010.0)
    assert found.is_metered
    assert found.extra_node_s == 0.0


@pytest.mark.parametrize(
    ("log", "changes", "reason"),
    [
        ("srun: error: n1: task 0: Exited with exit code 1\n", {"exit_code": 1}, None),
        (KILLED, {"exit_code": 137}, FailureReason.NODE_FAILURE),
        (KILLED + ABORTED, {"exit_code": 137}, FailureReason.NODE_FAILURE),
        (ABORTED + KILLED, {"exit_code": 137}, FailureReason.CANCELLED_BY_USER),
        (ABORTED + KILLED, {"exit_code": 137, "reason": StepEndReason.CANCELLED}, FailureReason.CANCELLED_BY_SEARCH),
        (ABORTED + KILLED, {"exit_code": 137, "reason": StepEndReason.TIME_LIMIT}, FailureReason.TIME_LIMIT),
        (OF_THE_NODE, {"exit_code": 1}, FailureReason.NODE_FAILURE),
        ("srun: error: Node failure on n1\n", {"exit_code": 0}, FailureReason.NODE_FAILURE),
        ("slurmstepd: error: Detected 1 oom-kill event(s)\n" + KILLED, {"exit_code": 137}, FailureReason.HOST_OOM),
        ("srun: error: Unable to create step for job 7: Busy\n", {"exit_code": 1, "step": None}, "launch_failure"),
        ("job.sh: line 20: exec: srun: not found\n", {"exit_code": 127, "step": None}, "launch_failure"),
        ("ModuleNotFoundError\n", {"exit_code": 1, "step": None}, None),
    ],
)
def test_why_it_ended_and_its_words_where_only_the_trial_can_know(request_, log, changes, reason):
    found = status(request_, log, **changes)
    assert found.reason == reason
    assert reason is not None or log.strip() in str(found.detail)


def test_a_step_that_never_got_its_nodes_has_not_started(request_):
    found = status(request_, exit_code=1, step=None, reason=StepEndReason.CANCELLED)
    assert (found.started, found.started_at, found.nodes) == (False, None, ())


@pytest.mark.parametrize(
    ("pilot", "log", "reason"),
    [
        (FailureReason.CANCELLED_BY_USER, "", FailureReason.INTERRUPTED),
        (FailureReason.TIME_LIMIT, "", FailureReason.INTERRUPTED),
        (FailureReason.PREEMPTED, "", FailureReason.PREEMPTED),
        (FailureReason.NODE_FAILURE, OF_THE_NODE, FailureReason.NODE_FAILURE),
        (FailureReason.NODE_FAILURE, "", FailureReason.INTERRUPTED),
        (None, "", FailureReason.LAUNCH_FAILURE),
    ],
)
def test_what_ended_with_its_pilot_is_tried_again_unless_it_was_its_own_node(request_, pilot, log, reason):
    Path(request_.folder.path, "job.log").write_text(log)
    of_pilot = LaunchStatus(Liveness.ENDED, started=True, reason=pilot, started_at=900.0, ended_at=1020.0, job_id="7")
    found = lost_step_status(request_, NODES, START, of_pilot, cancelled=False)
    assert (found.reason, found.job_id, found.nodes, found.ended_at) == (reason, "7.3", NODES, 1020.0)
    asked_for = lost_step_status(request_, NODES, START, of_pilot, cancelled=True)
    assert asked_for.reason is FailureReason.CANCELLED_BY_SEARCH


def test_what_was_lost_before_its_pilot_was_put_back_is_not_timed_over_the_queue(request_):
    again = LaunchStatus(Liveness.ENDED, started=True, started_at=90_000.0, ended_at=90_002.0, job_id="7", restart=1)
    assert not lost_step_status(request_, NODES, START, again, cancelled=False).is_metered


SUSPECT = {"flags": ["suspect_node"]}


@pytest.mark.parametrize(
    ("outcome", "sick"),
    [
        ({"reason": "gpu_oom", "rank": 1}, ()),
        ({"reason": "gpu_memory_in_use", "rank": 3}, ("n2",)),
        ({"reason": "gpu_memory_in_use"}, ("n1", "n2")),
        ({"reason": "launch_failure", "rank": 3}, ("n1", "n2")),
        ({"reason": "of another version", "rank": 3}, ()),
        (SUSPECT | {"fingerprint": {"probe_ms_by_rank": [1.0, 1.0, 1.0, 2.0]}}, ("n2",)),
        (SUSPECT | {"slowest_rank": SLOWEST | {"stragglers": [0]}}, ("n1",)),
        (SUSPECT, ("n1", "n2")),
        ({"flags": None}, ()),  # what cannot be believed makes no node suspect
        (SUSPECT | {"fingerprint": {"probe_ms_by_rank": [1.0, "2"]}}, ()),
        (SUSPECT | {"slowest_rank": SLOWEST | {"stragglers": [0, "1"]}}, ()),
        (SUSPECT | {"rank": "3", "reason": "gpu_memory_in_use"}, ()),
    ],
)
def test_the_nodes_that_an_outcome_makes_suspect(request_, outcome, sick):
    assert suspect_nodes(request_.folder, NODES, tasks_per_node=2) == ()
    write_json(request_.folder.outcome(), OUTCOME.to_json() | outcome)
    assert suspect_nodes(request_.folder, NODES, tasks_per_node=2) == sick


def test_a_steps_script_is_that_of_a_job_with_more_words_for_srun_unless_it_takes_whole_nodes(request_):
    options = JobOptions(gpus_per_node=2, cpus_per_task=3, launch=Launch(srun=("--cpu-bind=cores",)))
    script = render_script(step_job(request_, options, ("n2",), Path("/pilot/step-number.sh")))
    line = next(line for line in script.splitlines() if line.startswith("exec srun"))
    for word in ("--exact", "--nodelist=n2", "--nodes=1", "--ntasks=2", "--gpus-per-node=2", "--cpus-per-task=3"):
        assert word in line
    assert f"--job-name={request_.key} --prolog=/pilot/step-number.sh" in line
    assert line.index("--exact") < line.index("--cpu-bind=cores") < line.index("trials.train")
    assert "--overlap" not in line
    whole = step_job(request_, JobOptions(exclusive=True), ("n2",), Path("/x"))
    assert "--exact" not in whole.options.launch.srun
