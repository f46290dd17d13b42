"""Links of the node that an accelerator usually comes in, assumed for clusters that do not describe their own.

Standard library only. docs/clusters.md has the source of each number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from search_spaces.hardware.links import Fabric, LinkDomain, Links


@dataclass(frozen=True)
class _ReferenceNode:
    """A node as sold: its domains from inner to outer, its NICs with their GB/s, one direction, and the rack that its
    links reach, if any."""

    domains: tuple[LinkDomain, ...]
    nics: int
    gb_per_s: float
    rack: LinkDomain | None = None

    def resized(self, gpus_per_node: int) -> Links:
        """The node with another number of ranks: NICs in proportion, and the inner domains that divide the node."""
        together = self.nics * self.gb_per_s * gpus_per_node / self.domains[-1].num_ranks
        fabric = Fabric(together, NETWORK_HOP_US, p2p_gb_per_s=min(self.gb_per_s, together))
        is_in_rack = self.rack is not None and self.rack.num_ranks % gpus_per_node == 0
        rack = (self.rack,) if self.rack is not None and is_in_rack else ()
        return Links((*self._domains_for(gpus_per_node), *rack), fabric)

    def _domains_for(self, gpus_per_node: int) -> tuple[LinkDomain, ...]:
        if gpus_per_node == 1:
            return ()
        inner = [d for d in self.domains if d.num_ranks < gpus_per_node and gpus_per_node % d.num_ranks == 0]
        around = next((d for d in self.domains if d.num_ranks >= gpus_per_node), self.domains[-1])
        return (*inner, replace(around, name="node", num_ranks=gpus_per_node))


def default_links(accelerator: str, gpus_per_node: int) -> Links | None:
    """Links of this accelerator's usual node with `gpus_per_node` ranks; None where no usual node is known."""
    node = _REFERENCE_NODES.get(accelerator.partition("-")[0])
    return None if node is None else node.resized(gpus_per_node)


# NCCL's own model of latency (src/graph/tuning.cc): a ring of low-latency messages takes 3.6 us and, for each of its
# 2 (n - 1) steps, 0.47 us over NVLink and 1 us over PCIe; a tree takes 5 us for each hop over the network.
NETWORK_HOP_US = 5.0
_NVLINK_US = {2: 4.5, 4: 6.4, 8: 10.2}
_PCIE_8_US = 17.6
_NVL72_US = 25.0

# NVLink as NCCL counts it (src/graph/topo.h): 20 GB/s for each of the links of V100 and A100, 20.6 for those of H100.
# A V100 has one link to its nearest neighbour, four in its quad, six in all; NCCL caps the A100's twelve at 235.
_DGX_1V = _ReferenceNode(
    (
        LinkDomain("pair", 2, 20, _NVLINK_US[2]),
        LinkDomain("quad", 4, 80, _NVLINK_US[4], p2p_gb_per_s=20),
        LinkDomain("node", 8, 120, _NVLINK_US[8], p2p_gb_per_s=20),
    ),
    nics=4,
    gb_per_s=12.5,
)
_DGX_A100 = _ReferenceNode((LinkDomain("node", 8, 235, _NVLINK_US[8]),), nics=8, gb_per_s=25)
_DGX_H100 = _ReferenceNode((LinkDomain("node", 8, 370, _NVLINK_US[8]),), nics=8, gb_per_s=50)

# 18 x 40.1 of NVLink 5, of which a ring reaches 680 in a node of eight and in a rack of 72.
_DGX_B200 = _ReferenceNode((LinkDomain("node", 8, 680, _NVLINK_US[8]),), nics=8, gb_per_s=50)
_DGX_B300 = replace(_DGX_B200, gb_per_s=100)
_GB200_NVL72 = _ReferenceNode(
    (LinkDomain("node", 4, 680, _NVLINK_US[4]),),
    nics=4,
    gb_per_s=50,
    rack=LinkDomain("nvl72", 72, 680, _NVL72_US),
)
_GB300_NVL72 = replace(_GB200_NVL72, gb_per_s=100)

# Four GH200 with six of their 18 links to each other, as in JUPITER and Alps.
_GH200_QUAD = _ReferenceNode(
    (LinkDomain("node", 4, 370, _NVLINK_US[4], p2p_gb_per_s=123),),
    nics=4,
    gb_per_s=25,
)

# Seven links of 64 GB/s to the seven others, of which 312.9 and 47.7 were measured; four ranks have three links each.
# Those of MI350X and MI355X have 76.5.
_MI300X_NODE = _ReferenceNode(
    (
        LinkDomain("quad", 4, 134, _NVLINK_US[4], p2p_gb_per_s=47),
        LinkDomain("node", 8, 312, _NVLINK_US[8], p2p_gb_per_s=47),
    ),
    nics=8,
    gb_per_s=50,
)
_MI350X_NODE = _ReferenceNode(
    (
        LinkDomain("quad", 4, 160, _NVLINK_US[4], p2p_gb_per_s=56),
        LinkDomain("node", 8, 373, _NVLINK_US[8], p2p_gb_per_s=56),
    ),
    nics=8,
    gb_per_s=50,
)

# Cards on PCIe: NCCL counts 10 GB/s between the sockets of a Skylake host (src/graph/topo.h), 20 was measured between
# A100s on PCIe 4 (NVIDIA/nccl-tests issue 178). One NIC of 100 or 200 Gb/s to eight cards is a guess.
_T4_HOST = _ReferenceNode((LinkDomain("node", 8, 10, _PCIE_8_US),), nics=1, gb_per_s=12.5)
_A40_HOST = _ReferenceNode((LinkDomain("node", 8, 20, _PCIE_8_US),), nics=1, gb_per_s=25)

# Infinity Fabric as RCCL counts it (src/graph/topo.h): 36 GB/s a link, four between the dies of a module. Three links
# leave a die for other modules; that a ring over the node reaches their sum is an estimate. Slingshot: 4 x 200 Gb/s.
_MI250X_NODE = _ReferenceNode(
    (
        LinkDomain("die-pair", 2, 144, _NVLINK_US[2]),
        LinkDomain("node", 8, 108, _NVLINK_US[8], p2p_gb_per_s=36),
    ),
    nics=4,
    gb_per_s=25,
)

_REFERENCE_NODES = {
    "v100": _DGX_1V,
    "t4": _T4_HOST,
    "a40": _A40_HOST,
    "a100": _DGX_A100,
    **dict.fromkeys(("h100", "h200"), _DGX_H100),
    "gh200": _GH200_QUAD,
    "b200": _DGX_B200,
    "b300": _DGX_B300,
    "gb200": _GB200_NVL72,
    "gb300": _GB300_NVL72,
    "mi250x": _MI250X_NODE,
    **dict.fromkeys(("mi300x", "mi325x"), _MI300X_NODE),
    **dict.fromkeys(("mi350x", "mi355x"), _MI350X_NODE),
}
"""By chip: the accelerator's name without the memory's size."""
