"""Scheduling of a simulated cluster: first in, first out, with backfill. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm.nodes import cpus_requested, gpus_requested
from slurm.request import JobRequest


@dataclass(frozen=True)
class FakeNode:
    """One node of the simulated cluster."""

    name: str
    cpus: int = 4
    gpus: int = 4
    memory_mib: int | None = None
    gpu_kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Allocation:
    """A job's share of each of its nodes, until its time limit (seconds since the epoch)."""

    nodes: tuple[str, ...]
    request: JobRequest
    until: float


@dataclass(frozen=True)
class Placement:
    """Nodes on which a job starts now, or () and Slurm's reason for its wait: None if these nodes never suffice."""

    nodes: tuple[str, ...] = ()
    reason: str | None = None


def schedule(
    wanted: Iterable[tuple[JobRequest, float]], nodes: Sequence[FakeNode], allocations: list[Allocation]
) -> list[Placement]:
    """Decide which pending jobs start now on the available `nodes`; each comes with the end of its limit.

    The first that has to wait reserves nodes from the earliest moment they will be free; a later one starts now if it
    ends by then or does not need them.
    """
    placements = []
    reserved: Allocation | None = None
    allocations = list(allocations)
    for request, until in wanted:
        spared = reserved.nodes if reserved and until > reserved.until else ()
        chosen = choose_nodes(request, [node for node in nodes if node.name not in spared], allocations)
        if chosen:
            allocations.append(Allocation(chosen, request, until))
            placements.append(Placement(chosen))
        elif reserved:
            placements.append(Placement(reason="Priority"))
        else:
            reserved = _reservation(request, nodes, allocations)
            placements.append(Placement(reason="Resources" if reserved else None))
    return placements


def choose_nodes(request: JobRequest, nodes: Sequence[FakeNode], allocations: Iterable[Allocation]) -> tuple[str, ...]:
    """Return the first nodes with room for the job in addition to `allocations`, or ()."""
    taken = list(allocations)
    fitting = [node.name for node in nodes if may_use(request, node) and _has_room(request, node, taken)]
    return tuple(fitting[: request.num_nodes]) if len(fitting) >= request.num_nodes else ()


def may_use(request: JobRequest, node: FakeNode) -> bool:
    """True if the job could run on this node if it were empty, and its options allow it."""
    options = request.options
    wanted = not options.nodelist or node.name in options.nodelist
    avoided = node.name in request.exclude or node.name in options.exclude
    return wanted and not avoided and cpus_requested(request) <= node.cpus and gpus_requested(request) <= node.gpus


def _has_room(request: JobRequest, node: FakeNode, allocations: Sequence[Allocation]) -> bool:
    here = [other.request for other in allocations if node.name in other.nodes]
    if here and any(other.options.exclusive is True for other in (request, *here)):
        return False
    cpus = sum(map(cpus_requested, here)) + cpus_requested(request)
    return cpus <= node.cpus and sum(map(gpus_requested, here)) + gpus_requested(request) <= node.gpus


def _reservation(
    request: JobRequest, nodes: Sequence[FakeNode], allocations: Sequence[Allocation]
) -> Allocation | None:
    """Return the earliest allocation of the job, if every job ran until its limit; None: never."""
    for moment in sorted({other.until for other in allocations}):
        chosen = choose_nodes(request, nodes, [other for other in allocations if other.until > moment])
        if chosen:
            return Allocation(chosen, request, moment)
    return None
