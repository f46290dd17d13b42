"""Groups of ranks against the link domains of the cluster. numpy."""

from __future__ import annotations

import numpy as np

from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.mesh import RankMesh
from search_spaces.layouts.table import LayoutTable


def leaves_domain(layouts: LayoutTable, dim: str, cluster: Cluster) -> np.ndarray:
    """Mask of the layouts whose groups along a dimension leave the outermost link domain: a node, or several."""
    nodes, rows = np.unique(layouts["num_nodes"], return_inverse=True)
    ranks = [cluster.nodes_per_domain(count) * cluster.gpus_per_node for count in nodes.tolist()]
    return layouts.per_mesh(RankMesh.crosses_nodes, dim, np.array(ranks, dtype=int)[rows])
