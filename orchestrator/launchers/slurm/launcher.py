"""SlurmLauncher: each attempt is a batch job of its own, named by its attempt key. Jobs outlive the driver.

How an attempt gets its one job is in submissions.py, what is asked of Slurm in queries.py, what follows
from the answers in monitor.py, how attempts are ended in cancellation.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from orchestrator.launchers.base import Launcher, LaunchPostponed, LaunchRequest
from orchestrator.launchers.slurm.cancellation import JobCanceller
from orchestrator.launchers.slurm.handover import HandoverFile
from orchestrator.launchers.slurm.monitor import JobMonitor
from orchestrator.launchers.slurm.queries import SlurmQueries
from orchestrator.launchers.slurm.submissions import Submissions
from slurm.interface import Slurm, SlurmSettings
from slurm.poll_backoff import PollBackoff
from slurm.request import JobOptions, limit_min
from slurm.squeue_cache import SqueueSnapshot
from trials.attempt_result import LaunchStatus

CHECK_INTERVAL_S = 60.0
"""Slurm looks for jobs over their limit about every half minute and was seen to end them up to a minute late."""

_MAX_ITERATION_INTERVAL_S = 2.0  # between two answers only the user's wish to cancel is news

_NEVER_ENDED_S = 365 * 86400.0  # OverTimeLimit=UNLIMITED, which no journal can hold as it is


class SlurmLauncher(Launcher):
    """Submits to `slurm` with the user's `options`; `sleep` lets seconds of its clock pass, `note` is told what a user
    should know of a launch.

    `jobs` answers with all the user's jobs, as they were at most so many seconds ago: one question for all attempts of
    all searches, no oftener than `backoff` allows. Between two answers the last one stands. `handover` is a file of the
    search's folder, by which a driver tells the next one what is in doubt.
    """

    name = "slurm"

    def __init__(
        self,
        slurm: Slurm,
        options: JobOptions,
        backoff: PollBackoff,
        jobs: Callable[[float], SqueueSnapshot],
        sleep: Callable[[float], None] = time.sleep,
        note: Callable[[str], None] = lambda text: None,
        handover: Path | None = None,
    ):
        self._slurm = slurm
        self.iteration_interval_s = min(
            _MAX_ITERATION_INTERVAL_S, max(self.iteration_interval_s, backoff.interval_s / 15)
        )
        self._partition = options.partition
        self._sleep = sleep
        self._queries = SlurmQueries(slurm, backoff, jobs)
        self._submissions = Submissions(
            slurm, options, self._queries, note, HandoverFile(handover, slurm.monotonic, slurm.now)
        )
        self._monitor = JobMonitor(slurm, self._queries, self._submissions)
        self._canceller = JobCanceller(slurm, self._queries, self._submissions, self._monitor)

    def _launch(self, request: LaunchRequest) -> str | None:
        return self._submissions.launch(request)

    def adopt(self, requests: Mapping[str, LaunchRequest]) -> dict[str, str]:
        return self._submissions.adopt(requests)

    def poll(self, keys: Iterable[str]) -> dict[str, LaunchStatus]:
        return self._monitor.poll(keys)

    def cancel(self, keys: Iterable[str]) -> set[str]:
        return self._canceller.cancel(keys)

    def longest_s(self, time_limit_s: float, num_nodes: int = 1) -> float:
        """Slurm rounds a limit up to minutes, grants OverTimeLimit, looks once in a while, and waits for SIGKILL."""
        settings = self._queries.settings()
        if settings is None:
            raise LaunchPostponed("Slurm does not tell its settings, so that nobody knows what a job may cost")
        return max_job_s(time_limit_s, settings, self._partition)

    def now(self) -> float:
        return self._slurm.now()

    def wait(self, seconds: float) -> None:
        self._sleep(seconds)

    def close(self) -> None:
        """Nothing is held: jobs outlive their driver, and the next one is told what is known of them."""
        self._submissions.leave()


def max_job_s(time_limit_s: float, settings: SlurmSettings, partition: str | None) -> float:
    """Seconds for which a job of this limit may hold its nodes at most on a cluster with these settings."""
    over_time_s = min(settings.over_time_s(partition), _NEVER_ENDED_S)
    return limit_min(time_limit_s) * 60 + over_time_s + CHECK_INTERVAL_S + settings.kill_wait_s
