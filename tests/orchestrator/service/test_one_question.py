"""Fifty searches query Slurm no more often than five: drivers share the answers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from orchestrator.launchers.slurm.queries import SlurmQueries
from slurm.job_state import JobSnapshot
from slurm.poll_backoff import PollBackoff
from slurm.squeue_cache import SqueueCache

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


@pytest.fixture
def asked_in_an_hour(tmp_path, monkeypatch):
    def count(drivers: int) -> int:
        """squeue calls in an hour of this many drivers, each with turns of half a second."""
        slurm, rng, folder = CountingSlurm(), random.Random(drivers), Path(tmp_path) / str(drivers)
        folder.mkdir()
        monkeypatch.setattr("slurm.squeue_cache.time.time", slurm.now)
        shared = [SqueueCache(slurm, folder, ("/etc/slurm.conf",)) for _ in range(drivers)]
        asking = [SlurmQueries(slurm, PollBackoff(INTERVAL_S), answers.jobs) for answers in shared]
        end = slurm.now_s + HOUR_S
        while slurm.now_s < end:
            slurm.now_s += 2.0
            for queries in rng.sample(asking, drivers):
                queries.refresh()
        return slurm.asked

    return count


def test_many_drivers_ask_no_more_often_than_a_few_and_at_most_twice_as_often_as_one(asked_in_an_hour):
    alone = asked_in_an_hour(1)
    assert alone == HOUR_S / INTERVAL_S
    assert asked_in_an_hour(5) <= 2 * alone
    assert asked_in_an_hour(50) <= 2 * alone
