"""Parsers of the output of Slurm's commands. Pure; no text makes them raise.

Lines that do not parse are skipped: a warning, a header or another user's odd job name must not hide other jobs. Times
are read as UTC in Slurm's standard form, which the client's environment asks for (slurm/environment.py).
"""

from __future__ import annotations

import calendar
import math
import re
import time
from collections.abc import Callable, Iterable

from slurm.field_parsers import billing_units, field_of, whole_number
from slurm.hostlist import HostListError, expand
from slurm.interface import SlurmSettings, Submission, SubmitStatus
from slurm.job_state import JobSnapshot, JobState

SQUEUE_FORMAT = "%A|%u|%T|%r|%N|%V|%S|%e|%j"
"""id, user, state, reason, nodes, submit, start, end, name. The name is last, since it may hold any character."""

SACCT_FORMAT = "JobIDRaw,User,State,ExitCode,Submit,Start,End,NodeList,AllocTRES,QOS,JobName"

_NO_TEXT = {"", "(null)", "None", "None assigned", "N/A", "Unknown"}
_JOB_ID = re.compile(r"[1-9][0-9]{0,9}")
_SUBMITTED = re.compile(r"(?:Submitted batch job )?([1-9][0-9]{0,9})(?:;\S+| on cluster \S+)?")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}")
_EXIT_CODE = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")
_CONFIG_LINE = re.compile(r"(\w+)\s*=\s*(.*?)\s*")
_LENGTH = re.compile(r"([0-9]{1,9})(?:\s+(sec|min)\w*)?")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # the newline stays
_MAX_MESSAGE_CHARS = 1000

# The name may hold any text, so fields are matched by their neighbours. All of them come before the comment, the
# command and the directories, which may hold any text too.
_SCONTROL_JOB = re.compile(
    r"JobId=(?P<job_id>[0-9]+) .*?JobName=(?P<name>.*?) UserId=(?P<user>[^ ()]+)\([0-9]+\) GroupId=(?P<head>.*?)"
    r" JobState=(?P<state>\S+) Reason=(?P<reason>.*?) Dependency=(?P<rest>.*)",
    re.DOTALL,
)


# -- submissions


def classify_submission(rc: int | None, stdout: str, stderr: str) -> Submission:
    """Classify a submission; `rc` is sbatch's exit code, None or negative when it was killed.

    Only what certainly did not submit is BUSY or REFUSED. A request that may have reached the controller while its
    answer was lost (a timeout, a broken connection) is UNCONFIRMED, and so is every unknown message.
    """
    message = printable_output(stderr)
    if rc == 0 and (job_id := parse_submitted(stdout)) is not None:
        return Submission(SubmitStatus.ACCEPTED, job_id, message)
    message = message or printable_output(stdout)
    if rc is None or rc <= 0 or _matches(_UNCONFIRMED_MESSAGES, message):
        return Submission(SubmitStatus.UNCONFIRMED, message=message)
    if _matches(_BUSY_MESSAGES, message) and not _is_beyond_every_limit(message):
        return Submission(SubmitStatus.BUSY, message=message)
    if _matches(_REFUSAL_MESSAGES, message) or (rc == _USAGE_EXIT_CODE and message):
        return Submission(SubmitStatus.REFUSED, message=message)
    return Submission(SubmitStatus.UNCONFIRMED, message=message)


def reports_no_answer(stderr: str) -> bool:
    """True if a command failed only because no controller answered."""
    return _matches((*_UNCONFIRMED_MESSAGES, *_NO_CONTROLLER_MESSAGES), printable_output(stderr))


def parse_tested_partition(stderr: str) -> str | None:
    """Return the partition in which `sbatch --test-only` would start a job."""
    match = re.search(r"to start at \S+ .*in partition (\S+)$", stderr, re.MULTILINE)
    return match[1] if match else None


def parse_submitted(stdout: str) -> str | None:
    """Return the id that `sbatch --parsable` printed (`12` or `12;cluster`), with whatever a site's wrapper printed
    around it.

    None when there is no id, or more than one.
    """
    found = {match[1] for line in stdout.split("\n") if (match := _SUBMITTED.fullmatch(line.strip()))}
    return found.pop() if len(found) == 1 else None


def printable_output(text: str) -> str:
    """Return a command's message without blank lines and control characters, and only its end where it is long."""
    lines = (_CONTROL.sub(" ", line).strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line)[-_MAX_MESSAGE_CHARS:]


_USAGE_EXIT_CODE = 255

_UNCONFIRMED_MESSAGES = (
    r"Socket timed out",
    r"\(send failure\)",
    r"\(receive failure\)",
    r"\(shutdown failure\)",
    r"Zero Bytes were transmitted",
    r"Communication (connection|shutdown) failure",
)

# slurm_errno.c: refusals of the controller, or errors before anything was sent.
_NO_CONTROLLER_MESSAGES = (
    r"Unable to contact slurm controller \(connect failure\)",
    r"Could not establish a configuration source",  # without slurm.conf on this node it is fetched from the controller
)
_BUSY_MESSAGES = (
    *_NO_CONTROLLER_MESSAGES,
    r"backup controller in standby mode",
    r"Controller is in standby mode",
    r"temporarily unable",
    r"Resource temporarily unavailable",
    r"Slurm job queue full",
    r"Unable to create job record, try again",
    r"Job violates accounting/QOS policy",
    r"(QOS|Assoc)\w*Submit\w*Limit",
    r"MaxSubmitJob",
    r"Required partition not available",  # drained or inactive, for example during maintenance
    r"Requested partition configuration not available now",
    r"Required node not available",
    r"Requested reservation not usable now",
    r"Job can not start due to maintenance reservation",
    r"Requested operation is presently disabled",
)
_REFUSAL_MESSAGES = (
    r"Invalid partition name",
    r"invalid partition specified",
    r"No partition specified",
    r"Access/permission denied",
    r"group not permitted to use this partition",
    r"Requested nodes not in this partition",
    r"Invalid account",
    r"Invalid qos",
    r"Job violates accounting/QOS policy",
    r"breached requested QOS usage threshold",
    r"Requested reservation is invalid",
    r"Access denied to requested reservation",
    r"Requested time limit is invalid",
    r"Time limit specification required",
    r"Invalid time-min specification",
    r"Node count specification invalid",
    r"Requested node configuration is not available",
    r"More processors requested than permitted",
    r"Requested more tasks than available processors",
    r"(CPU|Task|Core) count .*(invalid|can not be satisfied)",
    r"Task distribution specification invalid",
    r"Memory (required by task is not available|specification can not be satisfied)",
    r"Job size specification needs to be provided",
    r"Invalid (generic resource|GRES|Trackable RESource|feature|preferred feature|cluster feature|license)",
    r"Invalid (node name|user id|group id|job array|cluster name|wckey)",
    r"Insufficient GRES",
    r"Duplicate generic resource",
    r"Requested GRES option unsupported",
    r"Invalid -{1,2}[\w-]+",
    r"(unrecognized|invalid|ambiguous) option|option .* (requires|doesn't allow) an argument",
    r"Job dependency problem",
    r"Burst Buffer permission denied",
    r"Pathname of a file, directory or other parameter too long",
    r"Requested operation not supported on this system",
    r"Unable to open file|does not look like a batch script|Batch script is empty|contains DOS line breaks",
    r"Unspecified error",  # a site's job_submit plugin refused; its message is in the lines before
)


def _matches(patterns: Iterable[str], message: str) -> bool:
    return any(re.search(pattern, message, re.IGNORECASE) for pattern in patterns)


def _is_beyond_every_limit(message: str) -> bool:
    """True if the message names a limit on the job itself (size, time), which waiting does not cure."""
    limits = re.findall(r"\b(?:QOS|Assoc)\w*(?:Limit|Minutes|RunMinsLimit)\b", message)
    return bool(limits) and not any("Submit" in limit for limit in limits)


# -- jobs


def parse_squeue(stdout: str) -> tuple[JobSnapshot, ...]:
    """Parse rows of SQUEUE_FORMAT."""
    return _rows(stdout, _squeue_row)


def parse_sacct(stdout: str) -> tuple[JobSnapshot, ...]:
    """Parse rows of SACCT_FORMAT (`sacct --parsable2 --allocations`), one per job."""
    return _rows(stdout, _sacct_row)


def parse_scontrol_job(stdout: str, job_id: str) -> JobSnapshot | None:
    """Parse the line of this job in the output of `scontrol --oneliner show job`."""
    matches = (_SCONTROL_JOB.fullmatch(line.strip()) for line in stdout.split("\n"))
    match = next((match for match in matches if match and match["job_id"] == job_id), None)
    if match is None:
        return None
    rest = " " + match["rest"]
    code, signal = parse_exit_code(field_of(rest, "ExitCode"))
    return _snapshot(
        (job_id, match["user"], match["state"], match["reason"], field_of(rest, "NodeList")),
        (field_of(rest, "SubmitTime"), field_of(rest, "StartTime"), field_of(rest, "EndTime")),
        match["name"],
        exit_code=code,
        signal=signal,
        restarts=whole_number(field_of(rest, "Restarts")),
        billing=billing_units(field_of(rest, "AllocTRES") or field_of(rest, "TRES")),
        qos=field_of(match["head"], "QOS") or None,
    )


def _rows(stdout: str, parse_row: Callable[[str], JobSnapshot | None]) -> tuple[JobSnapshot, ...]:
    # Not splitlines(): it also splits at characters that a job's name may contain.
    return tuple(job for line in stdout.split("\n") if (job := parse_row(line)) is not None)


def _squeue_row(line: str) -> JobSnapshot | None:
    fields = line.split("|", SQUEUE_FORMAT.count("|"))
    if len(fields) != SQUEUE_FORMAT.count("|") + 1 or not _JOB_ID.fullmatch(fields[0]):
        return None
    job_id, user, state, reason, nodes, submitted, started, ended, name = fields
    return _snapshot((job_id, user, state, reason, nodes), (submitted, started, ended), name)


def _sacct_row(line: str) -> JobSnapshot | None:
    fields = line.split("|", SACCT_FORMAT.count(","))
    if len(fields) != SACCT_FORMAT.count(",") + 1 or not _JOB_ID.fullmatch(fields[0]):
        return None
    job_id, user, state, exit_code, submitted, started, ended, nodes, tres, qos, name = fields
    code, signal = parse_exit_code(exit_code)
    head, times = (job_id, user, state, "", nodes), (submitted, started, ended)
    return _snapshot(head, times, name, code, signal, billing=billing_units(tres), qos=qos or None)


def _snapshot(
    head: tuple[str, str, str, str, str],
    times: tuple[str, str, str],
    name: str,
    exit_code: int | None = None,
    signal: int | None = None,
    restarts: int | None = None,
    billing: float | None = None,
    qos: str | None = None,
) -> JobSnapshot:
    """Build a job from Slurm's text: (id, user, state, reason, nodes) and (submit, start, end).

    The start of a pending job and the end of a running one are estimates and left out. So is the start of a job that
    was cancelled before it had a node, where Slurm repeats the end.
    """
    job_id, user, state_text, reason, node_list = head
    submitted_at, started_at, ended_at = map(parse_time, times)
    state, nodes = parse_state(state_text), parse_nodes(node_list)
    return JobSnapshot(
        job_id=job_id,
        name=name,
        user=user,
        state=state,
        state_text=state_text,
        reason=None if reason in _NO_TEXT else reason,
        nodes=nodes,
        submitted_at=submitted_at,
        started_at=started_at if nodes and not state.waits else None,
        ended_at=ended_at if state.has_end_time else None,
        exit_code=exit_code,
        signal=signal,
        restarts=restarts,
        billing=billing,
        qos=qos,
    )


def parse_state(text: str) -> JobState:
    """Parse a state. `CANCELLED by 1000` and `CANCELLED+`, a word that sacct truncated, are CANCELLED."""
    word = text.split()[0] if text.split() else ""
    known = [state for state in JobState if state.value == word.rstrip("+")]
    if not known and word.endswith("+"):
        known = [state for state in JobState if state.value.startswith(word.rstrip("+"))]
    return known[0] if len(known) == 1 else JobState.UNKNOWN


def parse_nodes(text: str) -> tuple[str, ...]:
    """Return the names in a host list; () for none, and for anything else."""
    if text in _NO_TEXT:
        return ()
    try:
        return expand(text)
    except HostListError:
        return ()


def parse_time(text: str) -> float | None:
    """Return UTC seconds since the epoch; None for N/A, Unknown, None and any other text."""
    if not _TIME.fullmatch(text):
        return None
    try:
        return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except (ValueError, OverflowError):
        return None


def parse_exit_code(text: str) -> tuple[int | None, int | None]:
    """Parse `code:signal`. A signal above 64 is a code of Slurm's own (0:125 out of memory, 0:53 no directory)."""
    match = _EXIT_CODE.fullmatch(text)
    return (int(match[1]), int(match[2])) if match else (None, None)


# -- the configuration


def parse_config(stdout: str) -> SlurmSettings:
    """Parse `scontrol show config`, with Slurm's defaults for what is missing."""
    found = {m[1]: m[2] for line in stdout.split("\n") if (m := _CONFIG_LINE.fullmatch(line.strip()))}
    defaults = SlurmSettings()
    return SlurmSettings(
        cluster_name=found.get("ClusterName", ""),
        version=found.get("SLURM_VERSION", ""),
        min_job_age_s=_seconds(found.get("MinJobAge"), defaults.min_job_age_s),
        kill_wait_s=_seconds(found.get("KillWait"), defaults.kill_wait_s),
        over_time_limit_s=_seconds(found.get("OverTimeLimit"), defaults.over_time_limit_s),
        message_timeout_s=_seconds(found.get("MessageTimeout"), defaults.message_timeout_s),
        has_accounting=found.get("AccountingStorageType", "").endswith("slurmdbd"),
        enforces_limits=found.get("EnforcePartLimits", "NO") != "NO",
    )


def _seconds(text: str | None, default: float) -> float:
    """Parse `30 sec`, `5 min` or UNLIMITED (of OverTimeLimit: no job is ever ended)."""
    if text == "UNLIMITED":
        return math.inf
    match = _LENGTH.fullmatch(text or "")
    return float(match[1]) * (60 if match[2] == "min" else 1) if match else default
