"""Slurm's blocks against the link domains of a search."""

from __future__ import annotations

import pytest

from orchestrator.diagnostics.doctor.finding import Level
from orchestrator.diagnostics.doctor.topology import check_blocks
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from slurm.fake.client import FakeSlurm
from slurm.fake.cluster import FakeCluster
from slurm.fake.placement import FakeNode

GB200 = Cluster(ACCELERATORS["gb200-186gb"], 4, 36)
H100 = Cluster(ACCELERATORS["h100-80gb"], 8, 4)


@pytest.mark.parametrize(
    ("cluster", "blocks", "segment", "expected"),
    [
        (H100, (18,), None, []),
        (GB200, (18, 18), None, [(Level.OK, "2 of 18 nodes; link domains have 18")]),
        (GB200, (18, 20), None, [(Level.OK, "2 of 18 to 20 nodes; link domains have 18")]),
        (GB200, (16, 17), None, [(Level.WARNING, "the largest of 2 blocks has 17 nodes, but link domains have 18")]),
        (GB200, (), None, [(Level.WARNING, "it may refuse --segment, or spread jobs")]),
        (GB200, (), 0, [(Level.NOTE, "a job may lie in several")]),
    ],
)
def test_blocks_hold_the_link_domains_or_the_search_says_so(cluster, blocks, segment, expected):
    slurm = FakeSlurm(FakeCluster([FakeNode("n1")]))
    slurm.block_sizes = blocks
    found = list(check_blocks(slurm, cluster, segment))
    assert [finding.level for finding in found] == [level for level, _ in expected]
    assert all(words in finding.message for finding, (_, words) in zip(found, expected, strict=True))
