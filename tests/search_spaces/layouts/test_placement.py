"""Groups of ranks against link domains, by brute force."""

from __future__ import annotations

from itertools import product

import pytest

from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.hardware.links import Fabric, LinkDomain, Links
from search_spaces.layouts.layout import CHOICES, DEGREES, Layout
from search_spaces.layouts.placement import leaves_domain
from search_spaces.layouts.table import LayoutTable

RACKS = Links((LinkDomain("node", 2, 90, 6), LinkDomain("rack", 8, 90, 9)), Fabric(20, 5))


@pytest.mark.parametrize("links", [RACKS, None])
def test_a_group_leaves_its_domain_where_its_ranks_are_in_two(links: Links | None):
    cluster = Cluster(ACCELERATORS["cpu"], 2, 12, links)
    layouts = [
        Layout(num_nodes=nodes, rank_order=order, **dict(zip(DEGREES.values(), sizes, strict=True)))
        for nodes in (1, 2, 3, 4, 6, 8, 12)
        for order in CHOICES["rank_order"]
        for sizes in product((1, 2, 3, 4, 8), repeat=3)
        if sizes[0] * sizes[1] * sizes[2] == 2 * nodes
    ]
    together = (
        dict.fromkeys((1, 2, 3, 4, 6, 8, 12), 1) if links is None else {1: 1, 2: 2, 3: 3, 4: 4, 6: 3, 8: 4, 12: 4}
    )
    for dim in DEGREES:
        expected = [
            any(len({rank // (2 * together[each.num_nodes]) for rank in group}) > 1 for group in each.mesh.groups(dim))
            for each in layouts
        ]
        assert leaves_domain(LayoutTable.of(layouts), dim, cluster).tolist() == expected
    assert leaves_domain(LayoutTable.of(layouts[:0]), "tp", cluster).tolist() == []
