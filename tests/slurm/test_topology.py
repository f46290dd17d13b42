"""Output of `scontrol show topology` of several plugins."""

from __future__ import annotations

import pytest

from slurm.topology import parse_blocks


@pytest.mark.parametrize(
    ("stdout", "blocks"),
    [
        ("BlockName=b1 BlockIndex=0 Nodes=n[01-18]\nBlockName=b2 BlockIndex=1 Nodes=n[19-35]\n", (18, 17)),
        (
            "BlockName=b1 BlockIndex=0 Nodes=n[1-4] BlockSize=4\nBlockName=b2 BlockIndex=1 Nodes=n[5-8] BlockSize=4\n"
            "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-8] BlockSize=8\n",
            (4, 4),
        ),
        ("SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-4]\n", ()),
        ("No topology information available\n", ()),
        ("BlockName=b1 BlockIndex=0\n", (0,)),
        ("", ()),
    ],
)
def test_blocks_are_read_and_nothing_else(stdout: str, blocks: tuple[int, ...]):
    assert parse_blocks(stdout) == blocks
