"""Node-hours of the Slurm job that a driver runs in: those held so far, and those that it may still hold. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.search.index import SearchIndex
from trials.trial import Attempt

RECORD_INTERVAL_S = 300.0
"""Interval at which a driver records what its job has held, for the case that nobody can tell later."""

ENDING_S = 60.0
"""Time reserved for a driver after its last attempt: it judges that attempt and ends the search."""


@dataclass(frozen=True)
class OwnJob:
    """Slurm job that this driver runs in. It holds `node_share` of one node since `started_at` (UTC seconds),
    and is billed `billing` units in an hour, None where Slurm does not tell."""

    job_id: str
    started_at: float
    node_share: float
    billing: float | None = None

    def billed_hours(self, now: float) -> float | None:
        """Billing hours so far."""
        return None if self.billing is None else self.billing * max(0.0, now - self.started_at) / 3600

    def node_hours(self, now: float) -> float:
        """Node-hours held so far."""
        return self.node_share * max(0.0, now - self.started_at) / 3600

    def unrecorded_node_hours(self, index: SearchIndex, now: float) -> float:
        """Node-hours held so far beyond those in the search's record."""
        known = index.search.driver_jobs.get(self.job_id)
        return max(0.0, self.node_hours(now) - (0.0 if known is None else known.node_hours))

    def is_record_due(self, index: SearchIndex, now: float) -> bool:
        """True if what is not recorded is worth an event."""
        is_known = self.job_id in index.search.driver_jobs
        return not is_known or self.unrecorded_node_hours(index, now) >= self.node_share * RECORD_INTERVAL_S / 3600

    def committed_node_hours(self, index: SearchIndex, now: float, next_s: float = 0.0) -> float:
        """Node-hours beyond the record that it has held, and may hold until all attempts in flight have ended, and
        another one of `next_s` seconds."""
        remaining_s = max([next_s, *(_remaining_s(attempt, now) for attempt in index.in_flight)])
        return self.unrecorded_node_hours(index, now) + self.node_share * (remaining_s + ENDING_S) / 3600


def _remaining_s(attempt: Attempt, now: float) -> float:
    """Seconds until the attempt has certainly ended; of one that waits, once it has started."""
    started_at = now if attempt.started_at is None else attempt.started_at
    return max(0.0, started_at + attempt.longest_s - now)
