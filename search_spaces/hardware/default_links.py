"""Links of the node that an accelerator usually comes in, assumed for clusters that do not describe their own.

Standard library only. docs/clusters.md has the source of each number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from search_spaces.hardware.links import Fabric, LinkDomain, Links, domains_within


@dataclass(frozen=True)
class _ReferenceNode:
    """A node as sold: its domains from inner to outer, its NICs with their GB/s, one direction, and the rack that its
    links reach, if any."""

    domains: tuple[LinkDomain, ...]
    nics: int
    gb_per_s: float
    rack: LinkDomain | None = None


def default_links(accelerator: str, gpus_per_node: int) -> Links | None:
    """Links of this accelerator's usual node with `gpus_per_node` ranks: NICs in proportion, and the inner domains that
    divide it. None where no usual node is known."""
    node = _REFERENCE_NODES.get(accelerator.partition("-")[0])
    if node is None:
        return None
    together = node.nics * node.gb_per_s * gpus_per_node / node.domains[-1].num_ranks
    domains = list(domains_within(node.domains, gpus_per_node))
    if domains:
        domains[-1] = replace(domains[-1], name="node")
    if node.rack is not None and node.rack.num_ranks % gpus_per_node == 0:
        domains.append(node.rack)
    return Links(tuple(domains), Fabric(together, NETWORK_HOP_US, p2p_gb_per_s=min(node.gb_per_s, together)))


# NCCL's own model of latency (src/graph/tuning.cc): a ring of low-latency messages takes 3.6 us and, for each of its
# 2 (n - 1) steps, 0.47 us over NVLink and 1 us over PCIe; a tree takes 5 us for each hop over the network.
NETWORK_HOP_US = 5.0
_NVLINK_US = {2: 4.5, 4: 6.4, 8: 10.2}
_PCIE_8_US = 17.6
_NVL72_US = 25.0


def _nvlink(name: str, num_ranks: int, gb_per_s: float, p2p_gb_per_s: float | None = None) -> LinkDomain:
    return LinkDomain(name, num_ranks, gb_per_s, _NVLINK_US[num_ranks], p2p_gb_per_s)


# NVLink as NCCL counts it (src/graph/topo.h): 20 GB/s for each of the links of V100 and A100, 20.6 for those of H100.
# A V100 has one link to its nearest neighbour, four in its quad, six in all; NCCL caps the A100's twelve at 235.
_DGX_1V = (_nvlink("pair", 2, 20), _nvlink("quad", 4, 80, 20), _nvlink("node", 8, 120, 20))
_DGX_H100 = _ReferenceNode((_nvlink("node", 8, 370),), nics=8, gb_per_s=50)

# 18 x 40.1 of NVLink 5, of which a ring reaches 680 in a node of eight and in a rack of 72.
_DGX_B200 = _ReferenceNode((_nvlink("node", 8, 680),), nics=8, gb_per_s=50)
_NVL72 = LinkDomain("nvl72", 72, 680, _NVL72_US)
_GB200_NVL72 = _ReferenceNode((_nvlink("node", 4, 680),), nics=4, gb_per_s=50, rack=_NVL72)

# Seven links of 64 GB/s to the seven others, of which 312.9 and 47.7 were measured; four ranks have three links each.
# Those of MI350X and MI355X have 76.5.
_MI300X_NODE = _ReferenceNode((_nvlink("quad", 4, 134, 47), _nvlink("node", 8, 312, 47)), nics=8, gb_per_s=50)
_MI350X_NODE = _ReferenceNode((_nvlink("quad", 4, 160, 56), _nvlink("node", 8, 373, 56)), nics=8, gb_per_s=50)

_REFERENCE_NODES: Mapping[str, _ReferenceNode] = {
    "v100": _ReferenceNode(_DGX_1V, nics=4, gb_per_s=12.5),
    # Cards on PCIe: NCCL counts 10 GB/s between the sockets of a Skylake host (src/graph/topo.h), 20 was measured
    # between A100s on PCIe 4 (NVIDIA/nccl-tests issue 178). One NIC of 100 or 200 Gb/s to eight cards is a guess.
    "t4": _ReferenceNode((LinkDomain("node", 8, 10, _PCIE_8_US),), nics=1, gb_per_s=12.5),
    "a40": _ReferenceNode((LinkDomain("node", 8, 20, _PCIE_8_US),), nics=1, gb_per_s=25),
    "a100": _ReferenceNode((_nvlink("node", 8, 235),), nics=8, gb_per_s=25),
    "h100": _DGX_H100,
    "h200": _DGX_H100,
    # Four GH200 with six of their 18 links to each other, as in JUPITER and Alps.
    "gh200": _ReferenceNode((_nvlink("node", 4, 370, 123),), nics=4, gb_per_s=25),
    "b200": _DGX_B200,
    "b300": replace(_DGX_B200, gb_per_s=100),
    "gb200": _GB200_NVL72,
    "gb300": replace(_GB200_NVL72, gb_per_s=100),
    # Infinity Fabric as RCCL counts it (src/graph/topo.h): 36 GB/s a link, four between the dies of a module. Three
    # links leave a die for other modules; that a ring over the node reaches their sum is an estimate. Slingshot: 4 x
    # 200 Gb/s.
    "mi250x": _ReferenceNode((_nvlink("die-pair", 2, 144), _nvlink("node", 8, 108, 36)), nics=4, gb_per_s=25),
    "mi300x": _MI300X_NODE,
    "mi325x": _MI300X_NODE,
    "mi350x": _MI350X_NODE,
    "mi355x": _MI350X_NODE,
}
"""By chip: the accelerator's name without the memory's size."""
