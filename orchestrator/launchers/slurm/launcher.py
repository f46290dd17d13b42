"""Slurm launcher: each attempt is a batch job of its own, named by its attempt key. Jobs outlive the driver.

Submission is in submissions.py, queries in queries.py, the status of attempts in monitor.py, cancellation in
cancellation.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from orchestrator.launchers.base import Launcher, LaunchRequest
from orchestrator.launchers.slurm.cancellation import JobCanceller
from orchestrator.launchers.slurm.handover import HandoverFile
from orchestrator.launchers.slurm.monitor import JobMonitor
from orchestrator.launchers.slurm.queries import SlurmQueries
from orchestrator.launchers.slurm.submissions import Submissions
from slurm.interface import Slurm, SlurmUnreachable
from slurm.nodes import are_told, nodes_for, num_up
from slurm.poll_backoff import PollBackoff
from slurm.request import JobOptions, Placement, max_job_s
from slurm.squeue_cache import SqueueSnapshot
from trials.attempt_result import LaunchStatus


class SlurmLauncher(Launcher):
    """Submits to `slurm` with the user's `options`. `sleep` waits on its clock.

    `jobs` returns all the user's jobs from a query of at most the given age: one query for all attempts of all
    searches, no more often than `backoff` allows, valid until the next one. `handover` is the file in the search's
    folder in which a driver leaves uncertain jobs to the next.
    """

    name = "slurm"

    def __init__(
        self,
        slurm: Slurm,
        options: JobOptions,
        backoff: PollBackoff,
        jobs: Callable[[float], SqueueSnapshot],
        sleep: Callable[[float], None] = time.sleep,
        handover: Path | None = None,
    ):
        self._slurm = slurm
        self._options = options
        self._sleep = sleep
        self._queries = SlurmQueries(slurm, backoff, jobs, whole_nodes=options.exclusive is True)
        self.iteration_interval_s = self._queries.iteration_interval_s(self.iteration_interval_s)
        self._submissions = Submissions(
            slurm, options, self._queries, HandoverFile(handover, slurm.monotonic, slurm.now)
        )
        self._monitor = JobMonitor(slurm, self._queries, self._submissions)
        self._canceller = JobCanceller(slurm, self._queries, self._submissions, self._monitor)

    def launch(self, request: LaunchRequest) -> str | None:
        request.require_taken()
        return self._submissions.launch(request)

    def adopt(self, requests: Mapping[str, LaunchRequest]) -> dict[str, str]:
        return self._submissions.adopt(requests)

    def poll(self, keys: Iterable[str]) -> dict[str, LaunchStatus]:
        return self._monitor.poll(keys)

    def cancel(self, keys: Iterable[str]) -> set[str]:
        return self._canceller.cancel(keys)

    def longest_s(self, time_limit_s: float) -> float:
        """Add what Slurm adds to a limit: whole minutes, OverTimeLimit, the interval of its checks, and KillWait."""
        return max_job_s(time_limit_s, self._queries.ending_s(self._options.partition))

    def now(self) -> float:
        return self._slurm.now()

    def wait(self, seconds: float) -> None:
        self._sleep(seconds)

    def leaves_of(self, nodes: Sequence[str]) -> tuple[str, ...]:
        return self._queries.leaves_of(nodes)

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
