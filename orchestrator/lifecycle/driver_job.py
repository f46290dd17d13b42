"""Driver as a Slurm job: a chain of jobs of one name, one that runs and at most one that waits.

The next link is submitted as soon as a driver holds its search, with a dependency on the end of that driver's job
(afterany). So the search goes on when the driver is killed, its node fails, or the signal before the time limit comes
too late. The waiting link is cancelled when the search ends.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.preflight.slurm_site import slurm_unreachable_error
from orchestrator.lifecycle.signals import StopSignals
from orchestrator.search.lease import LeaseLost, lease_holder
from search_spaces.errors import ExternalError, InputError
from search_spaces.schema.durations import format_duration, parse_duration_s
from slurm.driver_script import DRIVER_SUFFIX, DriverJob, driver_options, render_driver_script
from slurm.interface import Slurm, SlurmUnreachable, Submission, SubmitStatus
from slurm.job_state import JobSnapshot
from trials.files.folders import SearchFolder, write_text
from trials.ledger.events import FencedError

_log = logging.getLogger(__name__)


DEFAULT_JOB_TIME_S = 8 * 3600.0
"""Default time limit of a driver's job: most partitions allow it, and it covers a night."""

LEAST_JOB_TIME_S = 600.0
"""Slurm signals a driver two to three minutes before its end, and it may have to wait for the lease first."""

LEASE_WAIT_S = 300.0
"""Timeout of a new driver's wait for the lease of its predecessor, which may have died on another node without
releasing it, or may still be ending."""

RETRY_S = 60.0
"""Pause between two attempts to submit the next link; an unanswered submission has this long to appear in squeue."""


def job_name(search_id: str) -> str:
    """Name of every job that drives the search."""
    return f"{search_id}{DRIVER_SUFFIX}"


def parlay_command(*arguments: str) -> tuple[str, ...]:
    """Command line of this Parlay installation, with this process's interpreter, for any working directory."""
    # -P: no file in the working directory may shadow a module.
    return (sys.executable, "-P", "-m", "orchestrator.cli.main", *arguments)


def own_job_id(environ: Mapping[str, str], search_id: str) -> str | None:
    """Id of the driver's job that this process runs in; None outside of such a job."""
    return environ.get("SLURM_JOB_ID") if environ.get("SLURM_JOB_NAME") == job_name(search_id) else None


def job_time_s(text: str | None) -> float:
    """Seconds of `--job-time`, or the default. InputError for an invalid duration, or one too short for a driver."""
    seconds = DEFAULT_JOB_TIME_S if text is None else parse_duration_s(text, key="--job-time")
    if seconds < LEAST_JOB_TIME_S:
        rule = f"a driver's job takes at least {LEAST_JOB_TIME_S / 60:.0f} minutes, since it hands over before its end"
        raise InputError.of(
            "job_time", f"is {text!r}", rule=rule, fix="for example 8:00:00", key="--job-time", value=text
        )
    return seconds


def require_slurm(spec: SearchSpec) -> None:
    """InputError for a launcher whose trials would run inside the driver's job."""
    if not spec.launcher.uses_slurm:
        raise InputError.of(
            "as_job",
            f"launcher.kind is {spec.launcher.kind}",
            rule="a driver's job has one core, so its trials have to run in jobs of their own",
            fix="--launcher slurm, or leave out --as-job",
            key="--as-job",
        )


def driver_job(folder: SearchFolder, spec: SearchSpec, ledger_url: str, time_limit_s: float) -> DriverJob:
    """Job of the chain's first link: `parlay resume --as-job` with this process's interpreter."""
    path = folder.path.absolute()
    command = parlay_command("resume", str(path), "--ledger", ledger_url)
    return DriverJob(
        name=job_name(folder.search_id),
        directory=path,
        num_nodes=1,
        tasks_per_node=1,
        time_limit_s=time_limit_s,
        argv=(*command, "--as-job", "--job-time", format_duration(time_limit_s)),
        options=driver_options(spec.launcher.slurm.job_options()),
        is_first=not folder.driver_script.exists(),
    )


class DriverAlreadyQueued(Exception):
    """A driver's job of this search is already waiting or running."""


def submit_first_link(slurm: Slurm, job: DriverJob) -> str:
    """Submit the first link; returns its job id. Raises DriverAlreadyQueued, or ExternalError with Slurm's message."""
    try:
        found = active_jobs(slurm, job.name)
    except SlurmUnreachable as error:
        raise slurm_unreachable_error(error) from error
    if found:
        state = "waits" if found[0].state.waits else f"runs on {','.join(found[0].nodes)}"
        raise DriverAlreadyQueued(f"job {found[0].job_id} is this search's driver, and {state}")
    submission = _submit(slurm, job)
    if submission.status is SubmitStatus.ACCEPTED and submission.job_id is not None:
        return submission.job_id
    if submission.status is SubmitStatus.UNCONFIRMED:
        raise ExternalError(f"no answer from Slurm: {submission.message}; {job.name} may be in the queue nevertheless")
    raise ExternalError(f"Slurm rejected {job.name}: {submission.message}")


def cancel_driver_jobs(slurm: Slurm, search_id: str) -> set[str]:
    """Cancel running and waiting driver's jobs; returns ids of those that may still run. Raises SlurmUnreachable."""
    found = active_jobs(slurm, job_name(search_id))
    return slurm.cancel(found) if found else set()


def active_jobs(slurm: Slurm, name: str) -> list[JobSnapshot]:
    """The user's jobs of this name that have not ended, sorted by id."""
    jobs = (job for job in slurm.jobs() if (job.name, job.user) == (name, slurm.user) and not job.state.is_ended)
    return sorted(jobs, key=lambda job: int(job.job_id))


def _submit(slurm: Slurm, job: DriverJob) -> Submission:
    write_text(job.script, render_driver_script(job))
    return slurm.submit(job)


class DriverChain:
    """Chain of driver's jobs, seen from the running one, whose next link it keeps in the queue.

    Its `signals` are those of the running driver; SIGUSR1 says that the time limit is near.
    """

    def __init__(self, slurm: Slurm, link: DriverJob, clock: Callable[[], float] = time.monotonic):
        """`link` is the next job, which depends on the end of this driver's job."""
        self._slurm = slurm
        self._link = link
        self._clock = clock
        self._retry_at = 0.0
        self.has_next_link = False
        self.signals = StopSignals(has_terminal=False)

    def wait_for_lease(self, folder: SearchFolder, sleep: Callable[[float], None] = time.sleep) -> None:
        """Wait until the lease is free, LEASE_WAIT_S are over, or a stop is requested."""
        deadline = self._clock() + LEASE_WAIT_S
        while not self.signals.is_requested() and self._clock() < deadline:
            if lease_holder(folder, time.time()) is None:
                return
            sleep(1.0)

    @contextmanager
    def keeping_next_link(self) -> Iterator[None]:
        """Submit the next link before the driver's loop. When the driver fails by a bug it is cancelled: it would fail
        the same way."""
        self.ensure_next_link()
        try:
            yield
        except (ExternalError, OSError, LeaseLost, FencedError):
            raise
        except Exception:
            self.cancel_next_link()
            raise

    def ensure_next_link(self) -> None:
        """Submit the next link unless one waits; a failed submission is retried, at most every RETRY_S."""
        if self.has_next_link or self._clock() < self._retry_at:
            return
        self._retry_at = self._clock() + RETRY_S
        try:
            message = self._submit_next(self._waiting())
        except (SlurmUnreachable, OSError) as error:  # for example a full disk
            message = str(error)
        if not self.has_next_link:
            _log.warning(f"the job of the next driver could not be submitted yet: {message}")

    def _submit_next(self, waiting: Sequence[JobSnapshot]) -> str:
        """Submit the link unless one waits, and return Slurm's message. Of several waiting the oldest is kept."""
        if len(waiting) > 1:
            self._slurm.cancel(waiting[1:])
        if waiting:
            self.has_next_link = True
            return ""
        submission = _submit(self._slurm, self._link)
        self.has_next_link = submission.status is SubmitStatus.ACCEPTED
        return submission.message

    def finish(self, has_ended: bool) -> None:
        """Before the driver exits: cancel the link of a search that has ended, or check it again at the time limit."""
        if has_ended:
            self.cancel_next_link()
        elif signal.SIGUSR1 in self.signals.received:
            self.has_next_link, self._retry_at = False, 0.0
            self.ensure_next_link()

    def cancel_next_link(self) -> None:
        """Cancel the waiting link."""
        try:
            left = self._slurm.cancel(self._waiting())
        except SlurmUnreachable as error:
            _log.warning(f"the waiting job of the next driver may be left in the queue; it would exit at once: {error}")
            return
        self.has_next_link = bool(left)

    def _waiting(self) -> list[JobSnapshot]:
        found = active_jobs(self._slurm, self._link.name)
        return [job for job in found if job.state.waits and job.job_id != self._link.after]
