"""Groups of ranks against the link domains of the cluster. numpy."""

from __future__ import annotations

import numpy as np

from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.groups import RankGroups, rank_groups
from search_spaces.layouts.layout import CHOICES
from search_spaces.layouts.table import LayoutTable


def table_groups(layouts: LayoutTable, name: str) -> RankGroups:
    """Groups of this name of each layout."""
    orders = sorted(layouts.values("rank_order")) or CHOICES["rank_order"]
    has_order = [layouts.equals("rank_order", order) for order in orders]
    groups = [rank_groups(name, layouts, order) for order in orders]
    ranks, strides = ([each.ranks for each in groups], [each.stride for each in groups])
    return RankGroups(np.select(has_order, ranks), np.select(has_order, strides))


def leaves_domain(layouts: LayoutTable, name: str, cluster: Cluster) -> np.ndarray:
    """Mask of the layouts whose groups of this name leave the outermost link domain: a node, or several."""
    nodes, rows = np.unique(layouts["num_nodes"], return_inverse=True)
    ranks = [cluster.nodes_per_domain(count) * cluster.gpus_per_node for count in nodes.tolist()]
    return table_groups(layouts, name).leave(np.array(ranks, dtype=int)[rows])
