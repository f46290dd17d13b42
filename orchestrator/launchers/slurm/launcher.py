"""Slurm launcher: each attempt is a batch job of its own, named by its attempt key. Jobs outlive the driver.

Submission is in submissions.py, queries in queries.py, the status of attempts in monitor.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.launchers.base import Launcher, LaunchRequest
from orchestrator.launchers.slurm.handover import HandoverFile
from orchestrator.launchers.slurm.monitor import JobMonitor
from orchestrator.launchers.slurm.queries import PollBackoff, SlurmQueries
from orchestrator.launchers.slurm.squeue_cache import SqueueSnapshot
from orchestrator.launchers.slurm.submissions import CONFIRM_WINDOW_S, Submissions, TrackedJob
from slurm.interface import Slurm, SlurmUnreachable
from slurm.nodes import are_told, nodes_for, num_up
from slurm.request import JobOptions, Placement, max_job_s
from trials.attempt_result import LaunchStatus

_NEXT_QUERY_S = 1.0
"""Delay after a scancel before the other attempts are polled again."""


@dataclass(frozen=True)
class SlurmAccess:
    """Slurm as the attempts of a search meet it: submissions to `slurm` with the user's `options`.

    `jobs` returns all the user's jobs from a query of at most the given age: one query for all attempts of all
    searches, no more often than `backoff` allows, valid until the next one; `jobs_on` everybody's on some nodes, by
    default from a query of its own. `sleep` waits on Slurm's clock. `handover`
    is the file in the search's folder in which a driver leaves uncertain jobs to the next.
    """

    slurm: Slurm
    options: JobOptions
    backoff: PollBackoff
    jobs: Callable[[float], SqueueSnapshot]
    sleep: Callable[[float], None] = time.sleep
    handover: Path | None = None
    jobs_on: Callable[[Sequence[str], float], SqueueSnapshot] | None = None


class SlurmBackend(Launcher):
    """Base of the launchers that submit to Slurm."""

    def __init__(self, access: SlurmAccess):
        self._slurm = slurm = access.slurm
        self._options = access.options
        self._sleep = access.sleep
        self._handover = HandoverFile(access.handover, slurm.monotonic, slurm.now)
        has_whole_nodes = access.options.exclusive is True
        self._queries = SlurmQueries(slurm, access.backoff, access.jobs, has_whole_nodes, access.jobs_on)
        self.iteration_interval_s = self._queries.iteration_interval_s(self.iteration_interval_s)

    def now(self) -> float:
        return self._slurm.now()

    def wait(self, seconds: float) -> None:
        self._sleep(seconds)

    def leaves_of(self, nodes: Sequence[str]) -> tuple[str, ...]:
        return self._queries.leaves_of(nodes)


class SlurmLauncher(SlurmBackend):
    """Submits a job for each attempt."""

    name = "slurm"

    def __init__(self, access: SlurmAccess):
        super().__init__(access)
        self._submissions = Submissions(self._slurm, self._options, self._queries, self._handover)
        self._monitor = JobMonitor(self._slurm, self._queries, self._submissions)

    def launch(self, request: LaunchRequest) -> str | None:
        request.require_taken()
        return self._submissions.launch(request)

    def adopt(self, requests: Mapping[str, LaunchRequest]) -> dict[str, str]:
        return self._submissions.adopt(requests)

    def poll(self, keys: Iterable[str]) -> dict[str, LaunchStatus]:
        return self._monitor.poll(keys)

    def cancel(self, keys: Iterable[str]) -> set[str]:
        """Cancel with one scancel for all and poll once; repeated at the interval of other queries."""
        known = self._submissions.tracked
        wanted = {key: known[key] for key in keys if key in known}
        for tracked in wanted.values():
            tracked.cancelled = True
        due = {key: tracked for key, tracked in wanted.items() if _may_live(tracked) and self._is_due(tracked)}
        if due:
            self._queries.refresh(now=not self._queries.error_message)  # no extra query of a Slurm that does not answer
            self._monitor.read(due)
            self._cancel_due(due)
        return {key for key, tracked in wanted.items() if _may_live(tracked)}

    def _is_due(self, tracked: TrackedJob) -> bool:
        at = tracked.cancelled_at
        return at is None or not self._queries.is_future(at + self._queries.interval_s)

    def _cancel_due(self, due: Mapping[str, TrackedJob]) -> None:
        if self._queries.answer is None:
            return
        for tracked in due.values():
            tracked.cancelled_at = self._slurm.monotonic()
            since = tracked.unconfirmed_since
            window_is_over = since is not None and self._queries.asked_at >= since + CONFIRM_WINDOW_S
            if window_is_over and self._submissions.job_of(tracked) is None:
                tracked.unconfirmed_since = None
        if alive := [job for job in self._submissions.jobs_of(due.values()) if not job.state.is_ended]:
            self._submissions.cancel(alive)
            self._queries.refresh(now=True)
            self._monitor.read(due)
        self._queries.refresh_in(_NEXT_QUERY_S)

    def longest_s(self, time_limit_s: float) -> float:
        """Add what Slurm adds to a limit: whole minutes, OverTimeLimit, the interval of its checks, and KillWait."""
        return max_job_s(time_limit_s, self._queries.ending_s(self._options.partition))

    def num_choosable_nodes(self) -> int | None:
        """Return the nodes that are up, where Slurm tells which jobs may get. While one is away there is no choice for
        repeats in one block or next to each other: they might wait for that node."""
        if not are_told(self._options):
            return None
        try:
            nodes = nodes_for(self._options, self._slurm.nodes())
        except SlurmUnreachable:
            return None
        is_strict = self._options.repeat_placement in (Placement.ONE_BLOCK, Placement.CONTIGUOUS)
        return None if is_strict and any(node.is_away for node in nodes) else num_up(self._options, nodes)

    def close(self) -> None:
        """Save the state of jobs for the next driver; they outlive this one."""
        self._submissions.save()


def _may_live(tracked: TrackedJob) -> bool:
    never_submitted = tracked.job_id is None and tracked.unconfirmed_since is None
    return not never_submitted and not tracked.is_ended
