"""Blocks of topology/block as scontrol shows them. Pure."""

from __future__ import annotations

from slurm.field_parsers import field_of
from slurm.hostlist import expand


def parse_blocks(stdout: str) -> tuple[int, ...]:
    """Parse `scontrol show topology`: the number of nodes of each block. Switches and aggregated blocks are none."""
    blocks = (f" {line.strip()}" for line in stdout.split("\n") if line.strip().startswith("BlockName="))
    nodes = (field_of(line, "Nodes") for line in blocks)
    return tuple(0 if each in ("", "(null)") else len(expand(each)) for each in nodes)
