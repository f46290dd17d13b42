"""Topology as scontrol shows it: blocks of topology/block, leaf switches of topology/tree. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurm.field_parsers import field_of
from slurm.hostlist import HostListError, expand

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
            yield field_of(line, kind), _nodes(field_of(line, "Nodes"))


def _nodes(text: str) -> tuple[str, ...]:
    try:
        return () if text in _NO_NODES else tuple(expand(text))
    except HostListError:
        return ()
