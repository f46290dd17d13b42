"""Rate-limited Slurm queries with cached answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from orchestrator.launchers.base import LaunchPostponed
from orchestrator.launchers.slurm.squeue_cache import SqueueSnapshot
from slurm.association_limits import AssociationLimits, billing_with_factor
from slurm.driver_script import DRIVER_SUFFIX
from slurm.interface import Slurm, SlurmSettings, SlurmUnreachable
from slurm.job_state import JobSnapshot
from trials.attempt_result import LaunchStatus

_MAX_ITERATION_INTERVAL_S = 2.0  # between two answers only a cancellation or the files of pilot steps bring news

LONGEST_INTERVAL_S = 300.0
BUSY_FACTOR = 5.0
"""Interval per second that a query takes: at most a fifth of the controller's time is used."""


class PollBackoff:
    """Seconds between the starts of two queries, never below `floor_s`.

    The interval is `BUSY_FACTOR` times what the last query took. Each failure doubles it, up to LONGEST_INTERVAL_S or
    the floor, whichever is longer; the first answer resets it.
    """

    def __init__(self, floor_s: float):
        self._floor_s = floor_s
        self._interval_s = floor_s

    @property
    def interval_s(self) -> float:
        return self._interval_s

    def answered(self, took_s: float) -> None:
        """Record a query that was answered after `took_s` seconds."""
        self._interval_s = max(self._floor_s, BUSY_FACTOR * took_s)

    def failed(self, took_s: float = 0.0) -> None:
        """Record a query that failed after `took_s` seconds."""
        longest = max(self._floor_s, LONGEST_INTERVAL_S)
        self._interval_s = min(longest, max(2 * self._interval_s, BUSY_FACTOR * took_s))


class SlurmQueries:
    """One squeue for all attempts of all searches, no more often than `backoff` allows. Times are `Slurm.monotonic`'s.

    `jobs` returns all the user's jobs from a query of at most the given age, `jobs_on` everybody's on some nodes, by
    default from a query of its own. `answer` is the last one, queried at
    `asked_at`; None before the first and while Slurm does not answer, of which `error_message` says why. `has_news` is
    set by every refresh, also a failed one, and cleared by its reader. Jobs with `whole_nodes` have no neighbours.
    """

    def __init__(
        self,
        slurm: Slurm,
        backoff: PollBackoff,
        jobs: Callable[[float], SqueueSnapshot],
        whole_nodes: bool = False,
        jobs_on: Callable[[Sequence[str], float], SqueueSnapshot] | None = None,
    ):
        self.answer: SqueueSnapshot | None = None
        self.asked_at = 0.0
        self.error_message = ""
        self.has_news = False
        self.accounting_error = ""
        self._slurm = slurm
        self._backoff = backoff
        self._jobs = jobs
        self._jobs_on = jobs_on or (lambda nodes, _: SqueueSnapshot(slurm.jobs_on(nodes), slurm.now(), 0.0))
        self._whole_nodes = whole_nodes
        self._settings: SlurmSettings | None = None
        self._settings_again_at = 0.0
        self._next_look_at = 0.0
        self._describes = True
        self._accounting_again_at = 0.0
        self._neighbours: tuple[JobSnapshot, ...] | None = None
        self._limits: AssociationLimits | None = None
        self._leaves: Mapping[str, str] | None = None
        self._leaves_again_at = 0.0

    def refresh(self, now: bool = False) -> None:
        """Query the jobs if the interval has passed, or now; failures lengthen the interval."""
        if not now and self.is_future(self._next_look_at):
            return
        self._describes, self._neighbours = True, None
        began = self._slurm.monotonic()
        try:
            self.answer = self._jobs(0.0 if now else self._backoff.interval_s / 2)
            # Another driver may have queried earlier, which only the system clock can tell.
            age_s = max(0.0, self._slurm.now() - self.answer.asked_at)
            self.asked_at = min(began, self._slurm.monotonic() - age_s)
            self.error_message = ""
            self._backoff.answered(self.answer.took_s)
        except SlurmUnreachable as error:
            self.answer, self.asked_at, self.error_message = None, began, f"Slurm does not answer: {error}"
            self._backoff.failed()
        self.has_news = True
        self._next_look_at = self._slurm.monotonic() + self._backoff.interval_s

    def refresh_in(self, seconds: float) -> None:
        """Make the next refresh due then, whatever the interval: something changed that it will show."""
        self._next_look_at = self._slurm.monotonic() + seconds

    @property
    def interval_s(self) -> float:
        """Current seconds between two queries."""
        return self._backoff.interval_s

    def iteration_interval_s(self, least_s: float) -> float:
        """Return the driver's longest wait between iterations: a fraction of the query interval, at least `least_s`."""
        return min(_MAX_ITERATION_INTERVAL_S, max(least_s, self.interval_s / 15))

    def settings(self) -> SlurmSettings | None:
        """Return the cluster's configuration; None while it does not answer."""
        if self._settings is None and not self.is_future(self._settings_again_at):
            try:
                self._settings = self._slurm.settings()
            except SlurmUnreachable:
                self._settings_again_at = self._slurm.monotonic() + self._backoff.interval_s
        return self._settings

    def ending_s(self, partition: str | None) -> float:
        """Return `SlurmSettings.ending_s` of this cluster. Raises LaunchPostponed while it does not answer."""
        if (settings := self.settings()) is None:
            raise LaunchPostponed("Slurm does not report its settings, which the cost of a job depends on")
        return settings.ending_s(partition)

    def absence_grace_s(self) -> float:
        """Return how long a job must be absent everywhere to be taken for lost."""
        return max(600.0, 2 * (self.settings() or SlurmSettings()).min_job_age_s)

    def describe(self, job: JobSnapshot) -> JobSnapshot | None:
        """Return the job with exit code and restarts, where the controller still knows it; None while it does not
        answer.

        After one failure nothing more is queried until the next refresh.
        """
        if not self._describes:
            return None
        try:
            described = self._slurm.describe(job.job_id)
        except SlurmUnreachable:
            self._describes = False
            return None
        is_same = described is not None and (described.name, described.user) == (job.name, job.user)
        return described if described is not None and is_same else job

    def billing(self, job: JobSnapshot) -> float | None:
        """Return what the job is billed in an hour, in billing units with the factor of its QOS; None where Slurm does
        not tell."""
        if self._limits is None and (settings := self.settings()) is not None and settings.has_accounting:
            with suppress(SlurmUnreachable):
                self._limits = self._slurm.association_limits()
        has_factors = self._limits is not None or (self._settings is not None and not self._settings.has_accounting)
        return billing_with_factor(job, self._limits) if has_factors else None

    def leaves_of(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Return the leaf switch, or the block, of each node, by the topology as it was at the first call that Slurm
        answered; () where the leaf of one is not known."""
        if self._leaves is None and nodes and not self.is_future(self._leaves_again_at):
            try:
                self._leaves = self._slurm.leaves()
            except SlurmUnreachable:
                self._leaves_again_at = self._slurm.monotonic() + self._backoff.interval_s
        leaves = self._leaves or {}
        return tuple(leaves[node] for node in nodes) if all(node in leaves for node in nodes) else ()

    def with_neighbours(self, status: LaunchStatus) -> LaunchStatus:
        """Return the status of an ended attempt, which says whether other jobs were seen on its nodes while it ran.

        One query for all attempts that end between two refreshes. Drivers of the user's searches are not counted.
        """
        begins, ends, own_id = status.started_at, status.ended_at, (status.job_id or "").partition(".")[0]
        if self._whole_nodes or begins is None or ends is None:
            return status
        others = [
            job
            for job in self._jobs_on_own_nodes()
            if job.job_id != own_id
            and not (job.user == self._slurm.user and job.name.endswith(DRIVER_SUFFIX))
            and job.started_at is not None
            and job.started_at < ends
            and (job.ended_at is None or job.ended_at > begins)
            and not {*job.nodes}.isdisjoint(status.nodes)
        ]
        return replace(status, had_neighbours=bool(others))

    def _jobs_on_own_nodes(self) -> tuple[JobSnapshot, ...]:
        """Return all jobs on the nodes of the user's jobs in the last answer; () while Slurm does not answer."""
        if self._neighbours is None and self.answer is not None:
            nodes = sorted({node for job in self.answer.jobs for node in job.nodes})
            age_s = max(0.0, self._slurm.now() - self.answer.asked_at)  # of the same moment, or newer
            self._neighbours = ()
            with suppress(SlurmUnreachable):
                self._neighbours = self._jobs_on(nodes, age_s).jobs if nodes else ()
        return self._neighbours or ()

    def accounted_jobs(self, names: Iterable[str], since: float) -> tuple[JobSnapshot, ...] | None:
        """Return accounting records, () without accounting; None where it does not answer (`accounting_error`)."""
        self.accounting_error = ""
        began = self._slurm.monotonic()
        try:
            return self._slurm.accounted_jobs(names, since) or ()
        except SlurmUnreachable as error:
            self.accounting_error = f" (accounting does not answer: {error})"
            return None
        finally:
            pause_s = BUSY_FACTOR * (self._slurm.monotonic() - began)
            self._accounting_again_at = began + pause_s if pause_s > self.interval_s else 0.0

    @property
    def accounting_is_due(self) -> bool:
        """True if a slow accounting was left alone long enough; a fast one may be queried after every refresh."""
        return not self.is_future(self._accounting_again_at)

    def is_future(self, moment: float) -> bool:
        return self._slurm.monotonic() < moment
