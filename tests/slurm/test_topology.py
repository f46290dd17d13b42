"""Output of `scontrol show topology` of several plugins."""

from __future__ import annotations

import pytest

from slurm.topology import parse_blocks, parse_leaves


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
        ("BlockName=b1 BlockIndex=0 Nodes=(null)\n", (0,)),
        ("", ()),
    ],
)
def test_blocks_are_read_and_nothing_else(stdout: str, blocks: tuple[int, ...]):
    assert parse_blocks(stdout) == blocks


TREE = """\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[3-4]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2]
"""
"""Output of Slurm 22.05."""


@pytest.mark.parametrize(
    ("stdout", "leaves"),
    [
        (TREE, {"n1": "leaf1", "n2": "leaf1", "n3": "leaf2", "n4": "leaf2"}),
        ("BlockName=b1 Nodes=n[1-2] BlockSize=2\nBlockName=b2 Nodes=n3\n", {"n1": "b1", "n2": "b1", "n3": "b2"}),
        ("BlockName=b1 BlockIndex=0 Nodes=n[1-", {}),
        ("", {}),
    ],
)
def test_each_node_has_its_leaf_switch_or_its_block(stdout, leaves):
    assert parse_leaves(stdout) == leaves
