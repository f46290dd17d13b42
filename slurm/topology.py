"""Blocks of topology/block as scontrol shows them. Pure."""

from __future__ import annotations

from slurm.field_parsers import field_of
from slurm.hostlist import expand


def parse_blocks(stdout: str) -> tuple[int, ...]:
    """Parse `scontrol show topology`: the nodes of each block. Switches and aggregated blocks are none."""
    blocks = (f" {line.strip()}" for line in stdout.split("\n") if line.strip().startswith("BlockName="))
    return tuple(len(expand(field_of(line, "Nodes"))) for line in blocks)
