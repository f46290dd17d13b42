"""Output of `scontrol show topology` of several plugins."""

from __future__ import annotations

import pytest

from slurm.topology import parse_blocks, parse_leaves

BLOCKS = """\
BlockName=b1 BlockIndex=0 Nodes=n[1-3] BlockSize=4
BlockName=b2 BlockIndex=1 Nodes=n4 BlockSize=4
AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=8
"""
TREE = """\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[3-4]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2]
"""
"""Output of Slurm 22.05."""


@pytest.mark.parametrize(
    ("stdout", "blocks", "leaves"),
    [
        (BLOCKS, (3, 1), {"n1": "b1", "n2": "b1", "n3": "b1", "n4": "b2"}),
        (TREE, (), {"n1": "leaf1", "n2": "leaf1", "n3": "leaf2", "n4": "leaf2"}),
        ("No topology information available\n", (), {}),
    ],
)
def test_each_block_has_its_size_and_each_node_its_leaf_switch_or_its_block(stdout, blocks, leaves):
    assert parse_blocks(stdout) == blocks
    assert parse_leaves(stdout) == leaves


def test_no_nodes_are_none_and_a_broken_list_has_no_leaves():
    assert parse_blocks("BlockName=b1 BlockIndex=0 Nodes=(null)\n") == (0,)
    assert parse_leaves("BlockName=b1 BlockIndex=0 Nodes=n[1-") == {}
