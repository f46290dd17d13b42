"""What really ran on a simulated cluster, whatever Slurm and its users believe."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from slurm.fake.jobs import FakeJob, Run

Key = tuple[str, str]
"""User and job name."""


class FakeUsage:
    """`most_alive`: the most jobs of a user and name that ever waited or ran at once, counting processes that Slurm
    lost; `most_running`: the most of them whose processes ran at once."""

    def __init__(self) -> None:
        self.most_alive: Counter[Key] = Counter()
        self.most_running: Counter[Key] = Counter()
        self._released_node_s: defaultdict[Key, float] = defaultdict(float)

    def look(self, jobs: Iterable[FakeJob], runs: Iterable[Run]) -> None:
        """Compare how things stand now with the most there ever was."""
        runs = list(runs)
        alive = Counter(job.key for job in jobs if not job.state.is_ended)
        alive.update(run.job.key for run in runs if run.is_orphan)
        self.most_alive |= alive
        self.most_running |= Counter(run.job.key for run in runs)

    def add(self, run: Run, until: float) -> None:
        """The nodes of this run are free again."""
        self._released_node_s[run.job.key] += run.node_s(until)

    def node_s(self, key: Key, jobs: Iterable[FakeJob], now: float) -> float:
        """Seconds times nodes that jobs of this user and name have held so far."""
        held = (job.run.node_s(now) for job in jobs if job.run and job.key == key)
        return self._released_node_s[key] + sum(held)
