import math
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm.interface import SlurmSettings, SubmitStatus
from slurm.job_state import JobSnapshot, JobState
from slurm.parse import (
    classify_submission,
    parse_config,
    parse_exit_code,
    parse_sacct,
    parse_scontrol_job,
    parse_squeue,
    parse_state,
    parse_submitted,
    parse_tested_partition,
    parse_time,
    printable_output,
    reports_no_answer,
)

NOON, LATER = 1795262400.0, 1795262461.0  # 2026-11-21T12:00:00Z and 61 s after it
KEY = "gpt-abcdef.t0001.a1"


def test_squeue_rows_are_jobs_whose_expected_times_are_no_facts():
    rows = (
        "11|me|FAILED|NonZeroExitCode|n[1-2]|2026-11-21T12:00:00|2026-11-21T12:00:00|2026-11-21T12:01:01|" + KEY,
        "12|me|PENDING|ReqNodeNotAvail, UnavailableNodes:n[1-4]||2026-11-21T12:00:00|N/A|N/A|" + KEY,
        "",
    )
    failed, waiting = parse_squeue("\n".join(rows))
    nodes = ("n1", "n2")
    assert failed == JobSnapshot(
        "11", KEY, "me", JobState.FAILED, "FAILED", "NonZeroExitCode", nodes, NOON, NOON, LATER
    )
    assert (waiting.state, waiting.reason) == (JobState.PENDING, "ReqNodeNotAvail, UnavailableNodes:n[1-4]")
    assert (waiting.nodes, waiting.started_at, waiting.ended_at) == ((), None, None)
    rows = (
        "1|me|PENDING|Resources||2026-11-21T12:00:00|2026-11-21T12:01:01|2026-11-21T13:00:00|expected to start",
        "2|me|RUNNING|None|n1|2026-11-21T12:00:00|2026-11-21T12:01:01|2026-11-21T13:00:00|expected to end",
        "3|me|CANCELLED|JobHeldUser||2026-11-21T12:00:00|2026-11-21T12:01:01|2026-11-21T12:01:01|never started",
    )
    waiting, running, cancelled = parse_squeue("\n".join(rows))
    assert (waiting.started_at, waiting.ended_at) == (None, None)
    assert (running.started_at, running.ended_at, running.reason) == (LATER, None, None)
    assert (cancelled.started_at, cancelled.ended_at) == (None, LATER)


@pytest.mark.parametrize("name", ["a|b c|", "", "ü\u2028\x0b\x1c", "12|me|RUNNING"])
def test_a_strangers_job_name_may_hold_anything(name):
    [job] = parse_squeue(f"7|me|RUNNING|None|n1|2026-11-21T12:00:00|2026-11-21T12:00:00|N/A|{name}")
    assert (job.job_id, job.name) == ("7", name)


def test_lines_that_are_no_jobs_hide_no_others():
    row = f"7|me|RUNNING|None|n1|2026-11-21T12:00:00|2026-11-21T12:00:00|N/A|{KEY}"
    text = f"CLUSTER: big\nsqueue: warning: x\n|||||||||\nx|{row}\n{row}\n0{row}\n7|me|RUNNING\n"
    assert [job.job_id for job in parse_squeue(text)] == ["7"]
    [job] = parse_squeue(row.replace("RUNNING", "LAUNCHING"))
    assert (job.state, job.state_text, job.state.is_ended) == (JobState.UNKNOWN, "LAUNCHING", False)


def test_sacct_rows_are_jobs():
    rows = (
        "11|me|FAILED|3:0|2026-11-21T12:00:00|2026-11-21T12:00:00|2026-11-21T12:01:01|n[1-2]"
        f"|billing=40,cpu=8,gres/gpu=4,node=2|normal|{KEY}",
        "12|me|CANCELLED by 1000|0:0|2026-11-21T12:00:00|None|2026-11-21T12:01:01|None assigned||normal|x",
        "13|me|FAILED|0:0|2026-11-21T12:00:00|2026-11-21T12:00:00|Unknown|n1|cpu=4|normal|still being written",
    )
    failed, cancelled, unfinished = parse_sacct("\n".join(rows))
    assert (failed.exit_code, failed.signal, failed.nodes, failed.ended_at) == (3, 0, ("n1", "n2"), LATER)
    assert (failed.billing, failed.qos) == (40.0, "normal")
    assert cancelled.billing is None is unfinished.billing
    assert (cancelled.state, cancelled.state_text) == (JobState.CANCELLED, "CANCELLED by 1000")
    assert (cancelled.nodes, cancelled.started_at, cancelled.ended_at) == ((), None, LATER)
    assert (unfinished.state, unfinished.ended_at) == (JobState.FAILED, None)


SCONTROL = (
    "JobId={id} JobName={name} UserId=me(1000) GroupId=us(1000) MCS_label=N/A Priority=1 Nice=0 Account=a QOS=normal"
    " JobState={state} Reason={reason} Dependency=(null) Requeue=0 Restarts=2 BatchFlag=1 Reboot=0 ExitCode={code}"
    " RunTime=00:01:01 TimeLimit=00:02:00 TimeMin=N/A SubmitTime=2026-11-21T12:00:00 EligibleTime=2026-11-21T12:00:00"
    " AccrueTime=Unknown StartTime=2026-11-21T12:00:00 EndTime=2026-11-21T12:01:01 Deadline=N/A Partition=main"
    " ReqNodeList=(null) ExcNodeList=n[3-4] NodeList=n[1-2] BatchHost=n1 TRES=cpu=8,node=2,billing=40"
    " Comment=JobState=RUNNING ExitCode=9:9"
    " Command=/a b/job.sh WorkDir=/a b "
)


def scontrol(job_id="11", name=KEY, state="FAILED", reason="NonZeroExitCode", code="3:0"):
    return SCONTROL.format(id=job_id, name=name, state=state, reason=reason, code=code)


def test_scontrol_describes_a_job_in_full_and_of_several_lines_the_one_of_this_job_counts():
    expected = JobSnapshot(
        *("11", KEY, "me", JobState.FAILED, "FAILED", "NonZeroExitCode", ("n1", "n2"), NOON, NOON, LATER, 3, 0, 2),
        billing=40.0,
        qos="normal",
    )
    assert parse_scontrol_job(scontrol() + "\n", "11") == expected
    newer = scontrol().replace(" TRES=cpu=8,node=2,billing=40", " ReqTRES=cpu=2,billing=2 AllocTRES=cpu=8,billing=9")
    assert parse_scontrol_job(newer, "11") == replace(expected, billing=9.0)
    job = parse_scontrol_job("\n".join((scontrol("10"), "noise", scontrol("11", state="RUNNING"))), "11")
    assert job is not None
    assert (job.job_id, job.state, job.ended_at) == ("11", JobState.RUNNING, None)
    assert parse_scontrol_job(scontrol("110"), "11") is None


@pytest.mark.parametrize("name", ["a JobState=COMPLETED ExitCode=0:0 b", "a UserId=b", "", "NodeList=n9"])
def test_what_a_name_or_a_comment_says_is_no_field(name):
    job = parse_scontrol_job(scontrol(name=name, reason="job_requeued_in_held_state"), "11")
    assert job is not None
    assert (job.name, job.user, job.state, job.exit_code) == (name, "me", JobState.FAILED, 3)
    assert (job.reason, job.nodes) == ("job_requeued_in_held_state", ("n1", "n2"))


@pytest.mark.parametrize(
    ("text", "state"),
    [
        *((state.value, state) for state in JobState),
        ("CANCELLED by 0", JobState.CANCELLED),
        ("CANCELLED+", JobState.CANCELLED),
        ("OUT_OF_ME+", JobState.OUT_OF_MEMORY),
        ("COMPLET+", JobState.UNKNOWN),  # -ED or -ING
        ("POWER_UP_NODE", JobState.UNKNOWN),
        ("", JobState.UNKNOWN),
    ],
)
def test_states_in_slurms_spellings(text, state):
    assert parse_state(text) is state


def test_times_are_utc_exit_codes_have_two_halves_and_what_is_neither_is_none(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert parse_time("2026-11-21T12:00:00") == NOON
    finally:
        monkeypatch.undo()
        time.tzset()
    for text in ("N/A", "Unknown", "None", "", "INVALID", "2026-13-01T00:00:00", "12:00:00", "NOW"):
        assert parse_time(text) is None
    assert parse_exit_code("0:53") == (0, 53)
    assert parse_exit_code("3:") == parse_exit_code("x:0") == parse_exit_code("") == (None, None)


def test_the_configuration_in_seconds_and_slurms_default_for_what_it_does_not_say():
    text = (
        "Configuration data as of 2026-11-21T13:37:43\nAccountingStorageType   = accounting_storage/slurmdbd\n"
        "ClusterName             = big\nEnforcePartLimits       = ANY\n"
        "KillWait                = 60 sec\nMessageTimeout          = 100 sec\n"
        "MinJobAge               = 10 sec\nOverTimeLimit           = 5 min\nSLURM_VERSION           = 23.02.7\n\n"
        "Slurmctld(primary) at vm is UP\n"
    )
    assert parse_config(text) == SlurmSettings("big", "23.02.7", 10.0, 60.0, 300.0, 100.0, True, True)
    assert parse_config("") == SlurmSettings()
    assert parse_config("OverTimeLimit = UNLIMITED").over_time_limit_s == math.inf
    for none in ("accounting_storage/none", "(null)", ""):
        assert not parse_config(f"AccountingStorageType = {none}").has_accounting
    assert not parse_config("EnforcePartLimits = NO").enforces_limits


def test_a_controller_that_says_nothing_is_no_refusal():
    silent = "allocation failure: Unable to contact slurm controller (connect failure)"
    for message in (silent, "allocation failure: Invalid partition name specified", ""):
        assert reports_no_answer(message) is (message == silent)
        assert parse_tested_partition(message) is None
    starts = "sbatch: Job 2 to start at 2026-11-21T14:32:48 using 4 processors on nodes n[1-2] in partition short"
    assert parse_tested_partition(f"sbatch: warning: odd\n{starts}\n") == "short"


@pytest.mark.parametrize(
    ("stdout", "job_id"),
    [
        ("12;big\n", "12"),
        ("Welcome to BIG!\n\n  12\nYour balance: 100 h\n", "12"),
        ("Submitted batch job 12 on cluster big\n", "12"),
        ("0\n", None),
        ("12\n13\n", None),
        ("job 12\n", None),
    ],
)
def test_the_id_of_a_new_job(stdout, job_id):
    assert parse_submitted(stdout) == job_id


FAILED = "sbatch: error: Batch job submission failed: "
POLICY = FAILED + "Job violates accounting/QOS policy (...)"

SUBMISSIONS = [
    (0, "12\n", "", "accepted"),
    (0, "12\n", "sbatch: warning: Your project is nearly out of budget", "accepted"),
    (0, "", "", "unconfirmed"),
    (None, "12\n", "", "unconfirmed"),
    (-9, "", FAILED + "Invalid partition name specified", "unconfirmed"),
    (None, "", "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", "unconfirmed"),
    (1, "", "", "unconfirmed"),
    (1, "", FAILED + "Socket timed out on send/recv operation", "unconfirmed"),
    (1, "", FAILED + "Unable to contact slurm controller (send failure)", "unconfirmed"),
    (1, "", FAILED + "Protocol authentication error", "unconfirmed"),
    (1, "", FAILED + "A message of the future", "unconfirmed"),
    (1, "", FAILED + "Unable to contact slurm controller (connect failure)", "busy"),
    (1, "", FAILED + "Resource temporarily unavailable", "busy"),
    (1, "", FAILED + "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "busy"),
    (1, "", "sbatch: error: QOSMaxSubmitJobPerUserLimit\n" + POLICY, "busy"),
    (1, "", "sbatch: error: AssocMaxSubmitJobLimit\n" + POLICY, "busy"),
    (1, "", "sbatch: error: QOSMaxWallDurationPerJobLimit\n" + POLICY, "refused"),
    (1, "", FAILED + "Required partition not available (inactive or drain)", "busy"),
    (1, "", FAILED + "Unable to create job record, try again", "busy"),
    (1, "", "sbatch: fatal: Could not establish a configuration source", "busy"),
    (1, "", FAILED + "Invalid partition name specified", "refused"),
    (1, "", FAILED + "Invalid account or account/partition combination specified", "refused"),
    (1, "", FAILED + "Invalid qos specification", "refused"),
    (1, "", FAILED + "Requested time limit is invalid (missing or exceeds some limit)", "refused"),
    (1, "", FAILED + "Requested node configuration is not available", "refused"),
    (1, "", "sbatch: error: Invalid generic resource (gres) specification", "refused"),
    (1, "", FAILED + "User's group not permitted to use this partition", "refused"),
    (1, "", "sbatch: error: CPU count per node can not be satisfied\n" + FAILED + "...", "refused"),
    (1, "", "sbatch: error: Please give an account\n" + FAILED + "Unspecified error", "refused"),
    (1, "", "sbatch: error: Batch script contains DOS line breaks (\\r\\n)", "refused"),
    (255, "", "sbatch: unrecognized option '--bogus'\nTry \"sbatch --help\" for more information", "refused"),
    (255, "", "", "unconfirmed"),
]


@pytest.mark.parametrize(("rc", "stdout", "stderr", "status"), SUBMISSIONS)
def test_what_became_of_a_submission(rc, stdout, stderr, status):
    submission = classify_submission(rc, stdout, stderr)
    assert submission.status is SubmitStatus(status)
    assert (submission.job_id is not None) == (status == "accepted")
    assert submission.message.startswith(stderr[:40])


def test_words_are_plain():
    assert printable_output("\x1b[31mred\x1b[0m \n\n  two\r\n") == "[31mred [0m\ntwo"
    assert len(printable_output("x" * 10_000)) <= 1000


lines = st.one_of(
    st.text(),
    st.lists(st.one_of(st.text(max_size=8), st.sampled_from(["1", "n[1-2]", "RUNNING", "0:0"])), max_size=12).map(
        "|".join
    ),
    st.builds(scontrol, st.text(max_size=5), st.text(), st.text(max_size=12), st.text(), st.text(max_size=12)),
)


@pytest.mark.slow
@given(st.lists(lines, max_size=4).map("\n".join))
def test_any_text_is_parsed(text):
    for job in (*parse_squeue(text), *parse_sacct(text)):
        assert job.job_id.isdigit()
    parse_scontrol_job(text, "1")
    parse_config(text)
    parse_submitted(text)
    parse_state(text)
    parse_time(text)
    parse_exit_code(text)


@pytest.mark.slow
@given(st.one_of(st.none(), st.integers(-64, 255)), lines, lines)
def test_only_an_exit_code_of_zero_and_an_id_is_accepted(rc, stdout, stderr):
    submission = classify_submission(rc, stdout, stderr)
    assert (submission.status is SubmitStatus.ACCEPTED) == (rc == 0 and parse_submitted(stdout) is not None)
