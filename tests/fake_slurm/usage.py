"""True usage of a simulated cluster, independent of what Slurm and its users know."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from tests.fake_slurm.jobs import FakeJob, Run

Key = tuple[str, str]
"""User and job name."""


class FakeUsage:
    """Most jobs at once, and node-seconds, by user and job name.

    `most_alive` is the most jobs that were ever pending or running at once, with processes that Slurm lost;
    `most_running` the most whose processes ran at once.
    """

    def __init__(self) -> None:
        self.most_alive: Counter[Key] = Counter()
        self.most_running: Counter[Key] = Counter()
        self._released_node_s: defaultdict[Key, float] = defaultdict(float)

    def update(self, jobs: Iterable[FakeJob], runs: Iterable[Run]) -> None:
        """Update the maxima from the current state."""
        runs = list(runs)
        alive = Counter(job.key for job in jobs if not job.state.is_ended)
        alive.update(run.job.key for run in runs if run.is_orphan)
        self.most_alive |= alive
        self.most_running |= Counter(run.job.key for run in runs)

    def add(self, run: Run, until: float) -> None:
        """Add the node-seconds of a run whose nodes are free again."""
        self._released_node_s[run.job.key] += run.node_s(until)

    def node_s(self, key: Key, jobs: Iterable[FakeJob], now: float) -> float:
        """Return the node-seconds that jobs of this user and name have held so far."""
        held = (job.run.node_s(now) for job in jobs if job.run and job.key == key)
        return self._released_node_s[key] + sum(held)
