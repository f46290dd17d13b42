"""Fifty searches query Slurm no more often than five: drivers share the answers."""

from __future__ import annotations

import random

import pytest

from orchestrator.launchers.slurm.queries import PollBackoff, SlurmQueries
from orchestrator.launchers.slurm.squeue_cache import SqueueCache
from slurm.job_state import JobSnapshot

pytestmark = pytest.mark.slow

INTERVAL_S = 30.0
HOUR_S = 3600.0


class CountingSlurm:
    """A clock for all drivers, and a count of squeue calls."""

    user = "me"
    now_s = 1.0e9
    asked = 0

    def jobs(self) -> tuple[JobSnapshot, ...]:
        self.asked += 1
        return ()

    def now(self) -> float:
        return self.now_s

    monotonic = now


@pytest.mark.parametrize(("drivers", "most"), [(1, 1), (5, 2), (50, 2)])
def test_many_drivers_ask_no_more_often_than_a_few_and_at_most_twice_as_often_as_one(
    tmp_path, monkeypatch, drivers, most
):
    """In an hour, each with turns of two seconds."""
    slurm, rng = CountingSlurm(), random.Random(drivers)
    monkeypatch.setattr("orchestrator.launchers.slurm.squeue_cache.time.time", slurm.now)
    shared = [SqueueCache(slurm, tmp_path, ("/etc/slurm.conf",)) for _ in range(drivers)]
    asking = [SlurmQueries(slurm, PollBackoff(INTERVAL_S), answers.jobs) for answers in shared]
    end = slurm.now_s + HOUR_S
    while slurm.now_s < end:
        slurm.now_s += 2.0
        for queries in rng.sample(asking, drivers):
            queries.refresh()
    assert HOUR_S / INTERVAL_S <= slurm.asked <= most * HOUR_S / INTERVAL_S
