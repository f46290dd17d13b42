"""Supervising actor of one node's ranks, and the driver's record of it.

Does not import ray: the actor is sent to nodes whose Python need not have Parlay.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.launchers.local.fork_servers import NodeForkServers
from orchestrator.launchers.local.processes import GracePeriods, GroupPlan, GroupReport, RankGroup, RankProcess


class NodeSupervisor:
    """Actor that runs one node's ranks of one attempt, which end with it. Pickled by value."""

    def __init__(self, plan: GroupPlan):
        self._started = threading.Event()
        self._ranks: tuple[RankProcess, ...] = ()
        self._group = RankGroup(plan, on_start=self._note_start, on_end=self._started.set)
        self._group.start()

    def _note_start(self, ranks: tuple[RankProcess, ...]) -> None:
        self._ranks = ranks
        self._started.set()

    def report(self) -> dict[str, Any]:
        """Wait for the end of the ranks and return their report."""
        self._group.wait()
        assert self._group.report is not None
        return asdict(self._group.report)

    def ranks(self) -> tuple[float | None, list[dict[str, Any]]]:
        """Wait for the start; return (its time, the rank processes), no ranks if it failed."""
        self._started.wait()
        return self._group.started_at, [asdict(rank) for rank in self._ranks]

    def kill(self) -> None:
        self._group.kill()


class ForkServerHost:
    """Actor that owns the fork servers of a node for all attempts of a driver, with which it ends. Pickled by value.

    Its methods take and return plain data, since each process has classes of its own.
    """

    def __init__(self) -> None:
        self._servers = NodeForkServers(lambda reason: None)  # the ranks' logs have the reason

    def stub_for(self, plan: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the stub for the ranks of a plan, given by its fields; empty for a plain start."""
        return self._servers.stub_for(GroupPlan(**{**plan, "grace_periods": GracePeriods()}))

    def close(self) -> None:
        """End the servers."""
        self._servers.close()


@dataclass
class NodeJob:
    """State of one node's part of a job. `lost` is how the supervisor died, with its ranks.

    `start_seen_at` and `ended_at` are when the driver observed them, in monotonic seconds; `started_at` is the node's
    own UTC time of its first rank's start.
    """

    actor: Any
    ranks_ref: Any
    report_ref: Any
    ranks: tuple[RankProcess, ...] | None = None
    started_at: float | None = None
    start_seen_at: float | None = None
    report: GroupReport | None = None
    lost: str | None = None
    ended_at: float | None = None

    @property
    def is_ended(self) -> bool:
        return self.ended_at is not None

    def end(self, report: GroupReport | None = None, lost: str | None = None) -> None:
        self.report, self.lost, self.ended_at = report, lost, time.monotonic()

    @property
    def pending_refs(self) -> list[Any]:
        """References to the results that are still to come."""
        if self.is_ended:
            return []
        return [self.report_ref] if self.ranks is not None else [self.ranks_ref, self.report_ref]

    def renew(self, ref: Any) -> None:
        """Ask again for the result of this reference."""
        if ref is self.ranks_ref:
            self.ranks_ref = self.actor.ranks.remote()
        else:
            self.report_ref = self.actor.report.remote()


@dataclass
class RayJob:
    """Supervisors of one attempt in a placement group with one bundle per node; `nodes` in rank order."""

    placement_group: Any
    nodes: list[NodeJob] = field(default_factory=list)

    @property
    def is_ended(self) -> bool:
        return all(node.is_ended for node in self.nodes)

    def mark_lost(self, reason: str) -> None:
        """Mark all nodes that have not ended as lost."""
        for node in self.nodes:
            if not node.is_ended:
                node.end(lost=reason)
