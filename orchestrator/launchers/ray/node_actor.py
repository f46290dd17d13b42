"""The ranks of an attempt on Ray's nodes: the actor that runs them there, and what the driver knows of it.

Nothing here imports ray: the actor travels to nodes whose Python need not have Parlay.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.launchers.local.processes import GroupPlan, GroupReport, RankGroup, RankProcess


class NodeSupervisor:
    """The actor: runs one node's ranks of one attempt, which end with it. Travels to the node by value."""

    def __init__(self, plan: GroupPlan):
        self._begun = threading.Event()
        self._ranks: tuple[RankProcess, ...] = ()
        self._group = RankGroup(plan, on_start=self._note_start, on_end=self._begun.set)
        self._group.start()

    def _note_start(self, ranks: tuple[RankProcess, ...]) -> None:
        self._ranks = ranks
        self._begun.set()

    def report(self) -> dict[str, Any]:
        """How the ranks ended; waits for it."""
        self._group.wait()
        assert self._group.report is not None
        return asdict(self._group.report)

    def ranks(self) -> tuple[float | None, list[dict[str, Any]]]:
        """(when they started, the rank processes); waits for the start, none if it failed."""
        self._begun.wait()
        return self._group.started_at, [asdict(rank) for rank in self._ranks]

    def kill(self) -> None:
        self._group.kill()


@dataclass
class NodeJob:
    """One node's part of a job, as far as is known. `lost` says how the supervisor died, with its ranks.

    `start_seen_at` and `ended_at` are when the driver saw it, in monotonic seconds; `started_at` is the node's own UTC
    time of its first rank's start.
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


@dataclass
class RayJob:
    """The supervisors of one attempt in a placement group of one bundle a node; `nodes` in rank order."""

    placement_group: Any
    nodes: list[NodeJob] = field(default_factory=list)

    @property
    def is_ended(self) -> bool:
        return all(node.is_ended for node in self.nodes)

    def lose(self, why: str) -> None:
        """What has not ended has now."""
        for node in self.nodes:
            if not node.is_ended:
                node.end(lost=why)


def open_refs(node: NodeJob) -> list[Any]:
    if node.is_ended:
        return []
    return [node.report_ref] if node.ranks is not None else [node.ranks_ref, node.report_ref]


def ask_again(node: NodeJob, ref: Any) -> None:
    if ref is node.ranks_ref:
        node.ranks_ref = node.actor.ranks.remote()
    else:
        node.report_ref = node.actor.report.remote()
