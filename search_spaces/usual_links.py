"""The links of the node an accelerator usually sits in: what is assumed of a cluster that does not describe its own.

Standard library only. docs/clusters.md says where each number is from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from search_spaces.links import Fabric, LinkDomain, Links


@dataclass(frozen=True)
class _UsualNode:
    """A node as it is sold: its domains from inner to outer, and what its NICs carry together, in GB/s one way."""

    domains: tuple[LinkDomain, ...]
    nic_gb_per_s: float

    def resized(self, gpus_per_node: int) -> Links:
        """The same with so many ranks: NICs in proportion, and of the inner domains those that divide the node."""
        share = gpus_per_node / self.domains[-1].num_ranks
        return Links(self._domains_for(gpus_per_node), Fabric(self.nic_gb_per_s * share, NETWORK_HOP_US))

    def _domains_for(self, gpus_per_node: int) -> tuple[LinkDomain, ...]:
        if gpus_per_node == 1:
            return ()
        inner = [d for d in self.domains if d.num_ranks < gpus_per_node and gpus_per_node % d.num_ranks == 0]
        around = next((d for d in self.domains if d.num_ranks >= gpus_per_node), self.domains[-1])
        return (*inner, replace(around, name="node", num_ranks=gpus_per_node))


def usual_links(accelerator: str, gpus_per_node: int) -> Links | None:
    """The links of this accelerator's usual node, with so many ranks; None for one that has no usual node."""
    node = _USUAL_NODES.get(accelerator)
    return None if node is None else node.resized(gpus_per_node)


# NCCL's own model of latency (NVIDIA/nccl, src/graph/tuning.cc): a ring of low-latency messages takes 3.6 us and, for
# each of its 2 (n - 1) steps, 0.47 us over NVLink and 1 us over PCIe; a tree 5 us for each hop of the network.
NETWORK_HOP_US = 5.0
_NVLINK_US = {2: 4.5, 4: 6.4, 8: 10.2}
_PCIE_US = {8: 17.6}

_DGX_1V = _UsualNode((LinkDomain("quad", 4, 85, _NVLINK_US[4]), LinkDomain("node", 8, 130, _NVLINK_US[8])), 50)
_DGX_A100 = _UsualNode((LinkDomain("node", 8, 235, _NVLINK_US[8]),), 200)
_DGX_H100 = _UsualNode((LinkDomain("node", 8, 436, _NVLINK_US[8]),), 400)

_USUAL_NODES = {
    "v100-16gb": _DGX_1V,
    "v100-32gb": _DGX_1V,
    "t4-16gb": _UsualNode((LinkDomain("node", 8, 6, _PCIE_US[8]),), 12.5),
    "a40-48gb": _UsualNode((LinkDomain("node", 8, 20, _PCIE_US[8]),), 25),
    "a100-40gb": _DGX_A100,
    "a100-80gb": _DGX_A100,
    "h100-80gb": _DGX_H100,
    "h200-141gb": _DGX_H100,
    "mi250x-gcd-64gb": _UsualNode(
        (LinkDomain("die-pair", 2, 140, _NVLINK_US[2]), LinkDomain("node", 8, 75, _NVLINK_US[8])), 100
    ),
}
