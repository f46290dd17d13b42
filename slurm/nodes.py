"""Nodes as sinfo lists them, whether only unavailable ones keep a job from starting, and the topology. Pure.

`sbatch --test-only` gives the same message for a job with too few nodes up as for one that no node could ever run,
while sbatch itself accepts the first, and it waits. Only the list of nodes distinguishes the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from slurm.field_parsers import field_of
from slurm.hostlist import HostListError, compress, expand, expand_all
from slurm.request import JobOptions, JobRequest, Placement

SINFO_FORMAT = "%N|%T|%c|%m|%G|%P|%f"
"""Name, state, CPUs, memory (MiB), generic resources, partition, features: a line per node and partition (`--Node`)."""

_AWAY = ("down", "drain", "fail", "error", "unknown", "inval", "maint", "reboot")
"""Prefixes of states in which a node takes no job now but will again (sinfo(1), "NODE STATE CODES")."""

_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:([0-9]{1,4})(?![0-9])")
_GPU_KINDS = re.compile(r"(?:^|,)gpu:([^:,()]*[^:,()0-9][^:,()]*)")
_FEATURES = re.compile(r"[A-Za-z0-9_.:=+-]+(&[A-Za-z0-9_.:=+-]+)*")
_MEM_MIB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}


@dataclass(frozen=True)
class NodeSnapshot:
    """One node as a member of one partition. `state_text` is Slurm's word; with a * the node does not respond.

    `memory_mib` is None where Slurm does not report it; `gpu_kinds` are the site's names of its GPUs, `features` those
    that a constraint may name.
    """

    name: str
    state_text: str
    cpus: int
    gpus: int
    partition: str
    is_in_default_partition: bool
    memory_mib: int | None = None
    gpu_kinds: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    @property
    def is_away(self) -> bool:
        """True if the node takes no new job for now."""
        return self.state_text.startswith(_AWAY) or self.state_text.endswith("*")


def parse_sinfo(stdout: str) -> tuple[NodeSnapshot, ...]:
    """Parse rows of SINFO_FORMAT; other lines are skipped."""
    return tuple(node for line in stdout.split("\n") if (node := _node(line)) is not None)


def _node(line: str) -> NodeSnapshot | None:
    fields = line.strip().split("|")
    if len(fields) != SINFO_FORMAT.count("|") + 1:
        return None
    name, state, cpus, memory, gres, partition, features = fields
    return NodeSnapshot(
        name,
        state,
        cpus=_leading_number(cpus) or 0,
        gpus=sum(int(count) for count in _GPUS.findall(gres)),
        partition=partition.rstrip("*"),
        is_in_default_partition=partition.endswith("*"),
        memory_mib=_leading_number(memory),
        gpu_kinds=tuple(dict.fromkeys(_GPU_KINDS.findall(gres))),
        features=() if features == "(null)" else tuple(features.split(",")),
    )


def _leading_number(text: str) -> int | None:
    match = re.match(r"[0-9]{1,9}", text)
    return int(match[0]) if match else None


def wait_reason(request: JobRequest, nodes: Iterable[NodeSnapshot]) -> str | None:
    """Describe the unavailable nodes for which the job would wait; None if they do not keep it from starting. Of a
    placed job any of them may."""
    fitting = {node.name: node for node in usable_nodes(request, nodes)}
    away = [node for node in fitting.values() if node.is_away]
    num_free = len(fitting) - len(away) if request.placement is Placement.ANY else 0
    if not away or not num_free < request.num_nodes <= len(fitting):
        return None
    states = " or ".join(sorted({node.state_text for node in away}))
    return f"{compress(node.name for node in away)} of the {len(fitting)} nodes that could run it: {states}"


class Resource(str, Enum):
    """A resource that a job requests on each node, or nodes of a partition."""

    __str__ = str.__str__

    NODES = "nodes"
    CPUS = "CPUs"
    MEMORY = "MiB of memory"
    GPUS = "GPUs"


@dataclass(frozen=True)
class Shortage:
    """A requested resource of which too few of the allowed nodes have enough, whatever their state."""

    resource: Resource
    message: str


def shortages(request: JobRequest, nodes: Iterable[NodeSnapshot]) -> tuple[Shortage, ...]:
    """Return all resources of which the allowed nodes have too little; () where the job could run. Nodes may repeat."""
    allowed = {node.name: node for node in _allowed(request, nodes)}.values()
    if len(allowed) < request.num_nodes:
        message = f"{_counted(request.num_nodes)} requested, there are {len(allowed)}"
        return (Shortage(Resource.NODES, message),)
    requests: tuple[tuple[Resource, int, Callable[[NodeSnapshot], int | None]], ...] = (
        (Resource.CPUS, cpus_requested(request), lambda node: node.cpus),
        (Resource.MEMORY, memory_mib(request.options.mem), lambda node: node.memory_mib),
        (Resource.GPUS, gpus_requested(request), lambda node: node.gpus),
    )
    found = []
    for resource, requested, of in requests:
        having = [count for node in allowed if (count := of(node)) is not None]
        too_few = [count for count in having if count < requested]
        if len(allowed) - len(too_few) < request.num_nodes:
            found.append(
                Shortage(resource, f"{requested} {resource} per node requested, the nodes have {_range(having)}")
            )
    return tuple(found)


def _counted(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _range(counts: Sequence[int]) -> str:
    least, most = min(counts), max(counts)
    return str(most) if least == most else f"{least} to {most}"


def _allowed(request: JobRequest, nodes: Iterable[NodeSnapshot]) -> list[NodeSnapshot]:
    """Return the nodes of the request's partitions that the job may use."""
    return _usable(request.options, request.exclude, nodes)


def num_up(options: JobOptions, nodes: Iterable[NodeSnapshot]) -> int:
    """Nodes that jobs with these options may get now."""
    return len({node.name for node in nodes_for(options, nodes) if not node.is_away})


def nodes_for(options: JobOptions, nodes: Iterable[NodeSnapshot]) -> list[NodeSnapshot]:
    """Nodes that jobs with these options may get, whatever their state: they have the GPUs and the memory that are
    asked for, and the features (`are_told`)."""
    return [node for node in _usable(options, (), nodes) if _fits(options, node)]


def are_told(options: JobOptions) -> bool:
    """True if sinfo tells which nodes jobs with these options may get: no reservation decides it, nor a constraint
    other than features joined by &."""
    constraint = options.constraint
    return options.reservation is None and (constraint is None or _FEATURES.fullmatch(constraint) is not None)


def _fits(options: JobOptions, node: NodeSnapshot) -> bool:
    kinds = {*_GPU_KINDS.findall(options.gres or "")}
    features = {*options.constraint.split("&")} if options.constraint and are_told(options) else set()
    has_memory = node.memory_mib is None or memory_mib(options.mem) <= node.memory_mib
    has_gpus = _gpus_of(options) <= node.gpus and (not node.gpu_kinds or kinds <= {*node.gpu_kinds})
    return has_memory and has_gpus and features <= {*node.features}


def _usable(options: JobOptions, exclude: Sequence[str], nodes: Iterable[NodeSnapshot]) -> list[NodeSnapshot]:
    partitions = options.partition.split(",") if options.partition else None
    avoided, wanted = set(expand_all((*options.exclude, *exclude))), set(expand_all(options.nodelist))
    return [
        node
        for node in nodes
        if (node.is_in_default_partition if partitions is None else node.partition in partitions)
        and node.name not in avoided
        and (not wanted or node.name in wanted)
    ]


def usable_nodes(request: JobRequest, nodes: Iterable[NodeSnapshot]) -> list[NodeSnapshot]:
    """Return the nodes that the job may use and that have the CPUs and GPUs that it requests, whatever their state."""
    return [node for node in _allowed(request, nodes) if _has_room(request, node)]


def _has_room(request: JobRequest, node: NodeSnapshot) -> bool:
    return cpus_requested(request) <= node.cpus and gpus_requested(request) <= node.gpus


def cpus_requested(request: JobRequest) -> int:
    """Return the CPUs requested on each node."""
    return request.tasks_per_node * (request.options.cpus_per_task or 1)


def gpus_requested(request: JobRequest) -> int:
    """Return the GPUs requested on each node, from `--gpus-per-node=4` or `--gres=gpu:a100:4`."""
    return _gpus_of(request.options)


def _gpus_of(options: JobOptions) -> int:
    if options.gpus_per_node is not None:
        return options.gpus_per_node
    return sum(int(count) for count in _GPUS.findall(options.gres or ""))


def memory_mib(mem: str | None) -> int:
    """Return the MiB requested on each node, from the 20G of `--mem=20G`; 0 for none, or for all that a node has."""
    match = re.fullmatch(r"([0-9]{1,12})([KMGT]?)", mem or "")
    return 0 if match is None else int(int(match[1]) * _MEM_MIB[match[2] or "M"])


# -- topology

_NO_NODES = ("", "(null)")


def parse_blocks(stdout: str) -> tuple[int, ...]:
    """Parse `scontrol show topology`: the number of nodes of each block. Switches and aggregated blocks are none."""
    return tuple(len(nodes) for _, nodes in _members(stdout, "BlockName"))


def parse_leaves(stdout: str) -> Mapping[str, str]:
    """Parse `scontrol show topology`: the leaf switch (Level=0), or else the block, of each node that has one."""
    leaves = _members(stdout, "SwitchName", "Level=0")
    found = {node: name for name, nodes in leaves for node in nodes}
    return found or {node: name for name, nodes in _members(stdout, "BlockName") for node in nodes}


def _members(stdout: str, kind: str, *words: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield name and nodes of each line of this kind that has these words."""
    for line in (f" {line.strip()}" for line in stdout.split("\n")):
        if line.startswith(f" {kind}=") and all(word in line.split() for word in words):
            yield field_of(line, kind), _names(field_of(line, "Nodes"))


def _names(text: str) -> tuple[str, ...]:
    try:
        return () if text in _NO_NODES else tuple(expand(text))
    except HostListError:
        return ()
