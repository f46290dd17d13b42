"""Slurm client, the only file that runs Slurm's commands: argument lists, no shell, a timeout for each call."""

from __future__ import annotations

import logging
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from slurm.association_limits import ASSOCIATION_FORMAT, QOS_FORMAT, AssociationLimits, parse_associations, parse_qos
from slurm.environment import query_environment, submission_environment
from slurm.hostlist import compress
from slurm.interface import Slurm, SlurmSettings, SlurmUnreachable, Submission, SubmitStatus
from slurm.job_state import JobSnapshot
from slurm.nodes import SINFO_FORMAT, NodeSnapshot, parse_blocks, parse_leaves, parse_sinfo, wait_reason
from slurm.parse import (
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    classify_submission,
    parse_config,
    parse_sacct,
    parse_scontrol_job,
    parse_squeue,
    parse_tested_partition,
    printable_output,
    reports_no_answer,
)
from slurm.partitions import (
    PartitionSnapshot,
    default_partition,
    named_partitions,
    parse_partitions,
)
from slurm.request import JobRequest
from slurm.script import render_script

_log = logging.getLogger(__name__)

COMMAND_TIMEOUT_S = 30.0
CANCEL_TIMEOUT_S = 15.0
"""Longest wait in `cancel` for the jobs to end: KillWait and epilogs may take longer."""

_REAP_TIMEOUT_S = 2.0  # a process in an uninterruptible wait (a dead file system) cannot be killed
_FIRST_PAUSE_S = 0.5  # doubled each time: five queries for a job that ends slowly
_NO_TOPOLOGY = "No topology information"
_NAMES_A_CALL = 200
_IDS_A_CALL = 500
_CLOCK_SLACK_S = 3600.0

_SACCTMGR = ("sacctmgr", "--noheader", "--parsable2", "--readonly", "show")

# Without states, sacct selects jobs by the time they became eligible, which a job cancelled while held never does.
_ACCOUNTED_STATES = "BF,CA,CD,DL,F,NF,OOM,PD,PR,R,S,TO"


class SlurmClient(Slurm):
    """Slurm's commands (sbatch, squeue, scontrol, sacct, scancel), run as the user of this process. Not thread-safe.

    Output is parsed from the plain formats. `squeue --json` is not used: it exits 0 with an empty list of jobs when the
    controller is down, and its fields change between versions. `before_command` is called before each command, which
    may take `timeout_s` seconds; one method may run several.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        timeout_s: float = COMMAND_TIMEOUT_S,
        before_command: Callable[[], None] = lambda: None,
    ):
        self._environ = dict(os.environ if environ is None else environ)
        self._timeout_s = timeout_s
        self._before_command = before_command
        self._uid = os.geteuid()
        self.user = _user_name(self._uid)
        self._settings: SlurmSettings | None = None

    def now(self) -> float:
        return time.time()

    def settings(self) -> SlurmSettings:
        """Return the configuration, queried once per client."""
        if self._settings is None:
            found = parse_config(self._query("scontrol", "show", "config"))
            partitions = self.partitions()
            over_times_s = {p.name: p.over_time_s for p in partitions if p.over_time_s is not None}
            default = default_partition(partitions)
            self._settings = replace(found, default_partition=default, partition_over_times_s=over_times_s)
        return self._settings

    def partitions(self) -> tuple[PartitionSnapshot, ...]:
        return parse_partitions(self._query("scontrol", "--all", "--oneliner", "show", "partition"))

    def nodes(self) -> tuple[NodeSnapshot, ...]:
        return parse_sinfo(self._query("sinfo", "--noheader", "--all", "--Node", f"--format={SINFO_FORMAT}"))

    def blocks(self) -> tuple[int, ...]:
        return parse_blocks(self._topology())

    def leaves(self) -> Mapping[str, str]:
        return parse_leaves(self._topology())

    def _topology(self) -> str:
        """Return what scontrol shows of the topology, "" where there is none."""
        result = self._run_query("scontrol", "show", "topology")
        return "" if _NO_TOPOLOGY in result.stderr else self._answer(result)

    def association_limits(self) -> AssociationLimits | None:
        if not self.settings().has_accounting:
            return None
        associations = self._query(*_SACCTMGR, "associations", f"user={self.user}", f"format={ASSOCIATION_FORMAT}")
        all_qos = self._query(*_SACCTMGR, "qos", f"format={QOS_FORMAT}")
        cluster = self.settings().cluster_name
        return AssociationLimits(parse_associations(associations, cluster), parse_qos(all_qos))

    def monotonic(self) -> float:
        return time.monotonic()

    def test(self, request: JobRequest) -> Submission:
        environment = submission_environment(self._environ)
        result = self._run(["sbatch", "--test-only"], environment, None, render_script(request))
        if result.rc is None or (result.rc != 0 and reports_no_answer(result.stderr)):
            self._answer(result)
        tested = classify_submission(result.rc, "", result.stderr)  # it prints no id
        if tested.status is SubmitStatus.REFUSED and "node configuration is not available" in tested.message:
            return self._busy_without_nodes(request, tested)
        if tested.status in (SubmitStatus.REFUSED, SubmitStatus.BUSY):
            return tested
        message = self._beyond_partition(request, result.stderr)
        return Submission(SubmitStatus.ACCEPTED if message is None else SubmitStatus.REFUSED, message=message or "")

    def _busy_without_nodes(self, request: JobRequest, refused: Submission) -> Submission:
        """Return BUSY where too few nodes are up: only a test refuses that, sbatch accepts it and the job waits."""
        message = wait_reason(request, self.nodes())
        return refused if message is None else Submission(SubmitStatus.BUSY, message=message)

    def _beyond_partition(self, request: JobRequest, tested: str) -> str | None:
        """Return the limit that keeps an accepted job from ever starting, where EnforcePartLimits is NO."""
        if self.settings().enforces_limits:
            return None
        partitions, found = self.partitions(), parse_tested_partition(tested)
        named = named_partitions(request, partitions) if request.options.partition else []
        return self.beyond_limits(request, named or [p for p in partitions if p.name == found])

    def submit(self, request: JobRequest) -> Submission:
        argv = ["sbatch", "--parsable", f"./{request.script.name}"]
        try:
            result = self._run(argv, submission_environment(self._environ), request.directory)
        except SlurmUnreachable as error:  # sbatch itself did not start: not a refusal, and may pass
            return Submission(SubmitStatus.BUSY, message=str(error))
        return classify_submission(result.rc, result.stdout, result.stderr)

    def jobs(self) -> tuple[JobSnapshot, ...]:
        return self._squeue(f"--user={self._uid}")

    def jobs_on(self, nodes: Sequence[str]) -> tuple[JobSnapshot, ...]:
        return self._squeue(f"--nodelist={compress(nodes)}")

    def _squeue(self, wanted: str) -> tuple[JobSnapshot, ...]:
        # --all: jobs in partitions hidden from listings would otherwise seem to be gone.
        stdout = self._query("squeue", "--noheader", "--all", "--states=all", wanted, f"--format={SQUEUE_FORMAT}")
        jobs = parse_squeue(stdout)
        if not jobs and _rows(stdout):
            raise SlurmUnreachable(f"squeue printed something other than a list of jobs: {printable_output(stdout)}")
        return jobs

    def describe(self, job_id: str) -> JobSnapshot | None:
        result = self._run_query("scontrol", "--all", "--oneliner", "show", "job", job_id)
        if result.rc != 0 and "Invalid job id" in result.stderr:
            return None
        return parse_scontrol_job(self._answer(result), job_id)

    def accounted_jobs(self, names: Iterable[str], since: float) -> tuple[JobSnapshot, ...] | None:
        if not self.settings().has_accounting:
            return None
        wanted = sorted(set(names))
        found: list[JobSnapshot] = []
        for begin in range(0, len(wanted), _NAMES_A_CALL):
            answer = self._accounted_jobs_chunk(wanted[begin : begin + _NAMES_A_CALL], since)
            if answer is None:
                return None
            found.extend(answer)
        return tuple(found)

    def _accounted_jobs_chunk(self, names: Sequence[str], since: float) -> list[JobSnapshot] | None:
        result = self._run_query(
            *("sacct", "--noheader", "--parsable2", "--allocations", f"--user={self._uid}"),
            *(f"--name={','.join(names)}", f"--state={_ACCOUNTED_STATES}", f"--format={SACCT_FORMAT}"),
            f"--starttime={_utc(since)}",
            f"--endtime={_utc(self.now() + _CLOCK_SLACK_S)}",  # the controller's clock may be ahead of ours
        )
        if "accounting storage is disabled" in result.stderr:
            return None
        jobs = parse_sacct(self._answer(result))
        # Slurm writes whole seconds: a job submitted in the same second as `since` is not older.
        return [j for j in jobs if j.name in names and (j.submitted_at is None or j.submitted_at >= int(since))]

    def cancel(self, jobs: Sequence[JobSnapshot]) -> set[str]:
        """Cancel as `Slurm.cancel` does, and wait up to CANCEL_TIMEOUT_S for the jobs to end, or until the controller
        is silent.

        Raises SlurmUnreachable only before anything was cancelled.
        """
        pending = self._still_there(jobs) if jobs else set()
        deadline = time.monotonic() + CANCEL_TIMEOUT_S
        self._scancel(sorted(pending, key=int))
        pause_s = _FIRST_PAUSE_S
        while pending and (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(pause_s, left_s))
            pause_s *= 2
            try:
                pending &= self._still_there(jobs)
            except SlurmUnreachable:
                break
        return pending

    def _still_there(self, jobs: Sequence[JobSnapshot]) -> set[str]:
        """Return the ids of those that have not ended; the name is compared too, since ids are reused."""
        wanted = {_identity(job) for job in jobs}
        return {job.job_id for job in self.jobs() if _identity(job) in wanted and not job.state.is_ended}

    def _scancel(self, job_ids: Sequence[str]) -> None:
        """Send scancel. Its exit code is not used, since it exits 0 for unknown jobs.

        After a request without an answer the remaining ones are not sent: they would only time out as well.
        """
        for begin in range(0, len(job_ids), _IDS_A_CALL):
            try:
                result = self._run_query("scancel", *job_ids[begin : begin + _IDS_A_CALL])
            except SlurmUnreachable:
                return
            if result.rc is None:
                return

    # -- running a command

    def _query(self, *argv: str) -> str:
        return self._answer(self._run_query(*argv))

    def _run_query(self, *argv: str) -> _Result:
        return self._run(argv, query_environment(self._environ), None)

    def _answer(self, result: _Result) -> str:
        """Return the command's stdout. An error with an empty stdout is not an empty answer: SlurmUnreachable."""
        if result.rc is None:
            raise SlurmUnreachable(f"{result.command} did not answer within {self._timeout_s:g} s")
        if result.rc != 0 or (not result.stdout.strip() and "error" in result.stderr):
            message = printable_output(result.stderr) or printable_output(result.stdout) or f"exit code {result.rc}"
            raise SlurmUnreachable(f"{result.command}: {message}")
        return result.stdout

    def _run(
        self, argv: Sequence[str], environment: Mapping[str, str], directory: Path | None, given: str | None = None
    ) -> _Result:
        """Run a command to its end, or kill its process group at the timeout. Raises SlurmUnreachable.

        `given` is written to its standard input.
        """
        self._before_command()
        _log.debug("%s", shlex.join(argv))
        if self._is_missing(argv[0]):
            raise SlurmUnreachable(f"{argv[0]} is not on PATH: Slurm's commands are not installed on this machine")
        try:
            child = subprocess.Popen(
                argv,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C on a terminal must not interrupt a submission
            )
        except OSError as error:
            raise SlurmUnreachable(f"{argv[0]} could not be started: {error}") from error
        try:
            data = None if given is None else given.encode()
            stdout, stderr = child.communicate(data, timeout=self._timeout_s)
        except BaseException as error:
            # Not reaped yet, so its id and its group's cannot have been reused.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            stdout, stderr = _remaining_output(child)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return _Result(argv[0], None, _text(stdout), _text(stderr))
        return _Result(argv[0], child.returncode, _text(stdout), _text(stderr))

    def _is_missing(self, command: str) -> bool:
        return shutil.which(command, path=self._environ.get("PATH", os.defpath)) is None


@dataclass(frozen=True)
class _Result:
    """Output of a command; `rc` is None when it was killed at its timeout."""

    command: str
    rc: int | None
    stdout: str
    stderr: str


def _remaining_output(child: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Reap a killed process and return what it had printed."""
    try:
        return child.communicate(timeout=_REAP_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        return error.output or b"", error.stderr or b""


def _identity(job: JobSnapshot) -> tuple[str, str, str]:
    return job.job_id, job.name, job.user


def _rows(stdout: str) -> list[str]:
    """Lines that should be jobs: with SLURM_CLUSTERS set, squeue prints the cluster's name on a line of its own."""
    return [line for line in stdout.split("\n") if line.strip() and not line.startswith("CLUSTER: ")]


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)  # as Slurm prints a user without a name


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
