"""Nodes as sinfo lists them, and whether a job is only kept from starting by those that are away. Pure.

`sbatch --test-only` refuses a job for which too few nodes are up with the same words as one that no node could ever
run, while sbatch itself takes the first, and it waits. Only the nodes tell the two apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from slurm.hostlist import compress, expand_all
from slurm.request import JobRequest

SINFO_FORMAT = "%N|%T|%c|%G|%P"
"""Name, state, CPUs, generic resources, partition: one line for each node of each partition (`--Node`)."""

_AWAY = ("down", "drain", "fail", "error", "unknown", "inval", "maint", "reboot")
"""How the states begin in which a node takes no job now and will again (sinfo(1), "NODE STATE CODES")."""

_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:([0-9]{1,4})(?![0-9])")


@dataclass(frozen=True)
class NodeSnapshot:
    """One node as a member of one partition. `state_text` is Slurm's word; with a * the node does not respond."""

    name: str
    state_text: str
    cpus: int
    gpus: int
    partition: str
    is_in_default_partition: bool

    @property
    def is_away(self) -> bool:
        """Whether it takes no new job for now."""
        return self.state_text.startswith(_AWAY) or self.state_text.endswith("*")


def parse_sinfo(stdout: str) -> tuple[NodeSnapshot, ...]:
    """Rows of SINFO_FORMAT; lines that are none are passed over."""
    return tuple(node for line in stdout.split("\n") if (node := _node(line)) is not None)


def _node(line: str) -> NodeSnapshot | None:
    fields = line.strip().split("|")
    if len(fields) != SINFO_FORMAT.count("|") + 1:
        return None
    name, state, cpus, gres, partition = fields
    digits = re.match(r"[0-9]{1,9}", cpus)
    gpus = sum(int(count) for count in _GPUS.findall(gres))
    return NodeSnapshot(
        name, state, int(digits[0]) if digits else 0, gpus, partition.rstrip("*"), partition.endswith("*")
    )


def why_it_waits(request: JobRequest, nodes: Iterable[NodeSnapshot]) -> str | None:
    """The nodes that are away and that the job would wait for; None where they are not what keeps it from starting."""
    fitting = {node.name: node for node in _allowed(request, nodes) if _has_room(request, node)}
    away = [node for node in fitting.values() if node.is_away]
    if not len(fitting) - len(away) < request.num_nodes <= len(fitting):
        return None
    states = " or ".join(sorted({node.state_text for node in away}))
    return f"{compress(node.name for node in away)} of the {len(fitting)} nodes that could run it: {states}"


def _allowed(request: JobRequest, nodes: Iterable[NodeSnapshot]) -> list[NodeSnapshot]:
    """Those of the request's partitions that it neither keeps away from nor leaves out."""
    options = request.options
    partitions = options.partition.split(",") if options.partition else None
    avoided, wanted = set(expand_all((*options.exclude, *request.exclude))), set(expand_all(options.nodelist))
    return [
        node
        for node in nodes
        if (node.is_in_default_partition if partitions is None else node.partition in partitions)
        and node.name not in avoided
        and (not wanted or node.name in wanted)
    ]


def _has_room(request: JobRequest, node: NodeSnapshot) -> bool:
    return cpus_asked(request) <= node.cpus and gpus_asked(request) <= node.gpus


def cpus_asked(request: JobRequest) -> int:
    """CPUs on each node."""
    return request.tasks_per_node * (request.options.cpus_per_task or 1)


def gpus_asked(request: JobRequest) -> int:
    """GPUs on each node, of `--gpus-per-node=4` or `--gres=gpu:a100:4`."""
    if request.options.gpus_per_node is not None:
        return request.options.gpus_per_node
    return sum(int(count) for count in _GPUS.findall(request.options.gres or ""))
