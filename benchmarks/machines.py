"""Machines of the measured tables and of papers, with their links."""

from __future__ import annotations

from dataclasses import replace

from search_spaces.errors import InputError
from search_spaces.hardware.cluster import Cluster
from search_spaces.hardware.links import Fabric, LinkDomain, Links
from search_spaces.schema.cluster_sections import ClusterSection
from search_spaces.schema.presets import CLUSTERS, preset
from search_spaces.schema.validation import validate
from search_spaces.tables.measured_table import Observation


def links_of(cluster_name: str) -> Links | None:
    """Links of the preset cluster of this name; None without one."""
    try:
        return validate(ClusterSection, preset(CLUSTERS, cluster_name)).cluster().links
    except InputError:
        return None


# vTrain's A100 nodes have four HDR200 adapters, half of a DGX's (its tables say so).
_VTRAIN = Links((LinkDomain("node", 8, 235, 10.2),), Fabric(nic_gb_per_s=100, latency_us=5, p2p_gb_per_s=25))

# Machine of each source's rows. A row that names its cluster needs none.
_BY_SOURCE = {"ultrascale-playbook": links_of("playbook-h100"), "vtrain": _VTRAIN}


def with_links(row: Observation) -> Cluster:
    """Cluster of a row with the links of the machine it was measured on.

    A part of a node, and an unknown machine, have the accelerator's default links.
    """
    links = _BY_SOURCE.get(row.source) if row.cluster_name is None else links_of(row.cluster_name)
    return linked(row.cluster, links)


def linked(cluster: Cluster, links: Links | None) -> Cluster:
    """Cluster with these links where they are of nodes with the same size."""
    is_whole_node = links is not None and links.domains[-1].num_ranks == cluster.gpus_per_node
    return replace(cluster, given_links=links) if is_whole_node else cluster
