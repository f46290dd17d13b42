"""Bandwidths and latencies between ranks: nested domains, and the fabric between nodes. Standard library only.

Bandwidths are bus bandwidths as nccl-tests print them: a ring of n ranks moves 2 (n - 1) / n times the bytes of an
all-reduce, and (n - 1) / n times those of an all-gather or a reduce-scatter, at this speed, in GB/s (1e9 bytes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from search_spaces.declared import declared, require_declared
from search_spaces.errors import InputError

NIC_EFFICIENCY = 0.9
"""Share of the NICs' rate that whole nodes reach, where it was not measured.

The Playbook's H100 nodes reach 362 of 400 GB/s between two of them, and Calculon's A100 system takes 0.9 as well.
"""


@dataclass(frozen=True)
class FabricKind:
    """All-to-alls and token dispatchers over a kind of fabric, where they were not measured: the share of the NICs'
    rate that an all-to-all reaches, and the time of a dispatcher's exchange beyond its bytes."""

    all_to_all_share: float
    dispatch_us: float


FABRIC_KINDS = {"infiniband": FabricKind(NIC_EFFICIENCY, 0.0), "efa": FabricKind(0.35, 1500.0)}
"""RoCE and Slingshot count as InfiniBand. EFA: steps of DeepSeek-V3 and Kimi-K2 on 128 and 256 B300
(awslabs/awsome-distributed-ai, 3.test_cases/megatron/megatron-bridge, RESULTS.md): micro-batches of one and of four
sequences with all-to-alls and with DeepEP, whose messages a proxy on the host sends."""


_MOST = 100_000
"""Ranks or nodes that are described together, at most."""
_GATHER = "Bus bandwidth of an all-gather or a reduce-scatter. Default: bus_gb_per_s."


class _Rated:
    """What was measured with all-reduces, and maybe with all-gathers."""

    bus_gb_per_s: float
    gather_gb_per_s: float | None

    def rate(self, gathers: bool) -> float:
        """Bus bandwidth of an all-reduce, or with `gathers` of an all-gather or a reduce-scatter."""
        return (gathers and self.gather_gb_per_s) or self.bus_gb_per_s


@dataclass(frozen=True)
class LinkDomain(_Rated):
    """Ranks connected by one kind of link.

    The dies of a module, a node, the nodes of a rack. With direct links between devices, several rings add up to more
    than two ranks reach with each other.
    """

    name: str = declared("Name of the domain, for example die-pair, node, nvl72.", min_length=1, max_length=40)
    num_ranks: int = declared("Number of consecutive ranks in the domain.", ge=2, le=_MOST)
    bus_gb_per_s: float = declared(
        "Bus bandwidth of an all-reduce over all of them, per rank, as nccl-tests prints it.", gt=0
    )
    latency_us: float = declared("Time of an all-reduce of a few bytes.", ge=0)
    p2p_gb_per_s: float | None = declared(
        "Highest bandwidth between two of its ranks. Default: bus_gb_per_s.", None, gt=0
    )
    gather_gb_per_s: float | None = declared(_GATHER, None, gt=0)

    def __post_init__(self) -> None:
        require_declared(self, "links")


@dataclass(frozen=True)
class Bandwidth(_Rated):
    """Bandwidth that a number of nodes reach together."""

    num_nodes: int = declared("Number of whole nodes.", ge=2, le=_MOST)
    bus_gb_per_s: float = declared("Bus bandwidth of an all-reduce over all their ranks, per rank.", gt=0)
    gather_gb_per_s: float | None = declared(_GATHER, None, gt=0)

    def __post_init__(self) -> None:
        require_declared(self, "links")


@dataclass(frozen=True)
class Fabric:
    """Network between the nodes."""

    nic_gb_per_s: float = declared("Bandwidth of all NICs of a node together, one direction.", gt=0)
    latency_us: float = declared("Time of one small message between nodes.", ge=0)
    by_nodes: tuple[Bandwidth, ...] = declared(
        "Measured bandwidth by number of nodes, in rising order. Default:"
        f" {NIC_EFFICIENCY} of nic_gb_per_s, for any number.",
        (),
    )
    p2p_gb_per_s: float | None = declared(
        "Highest bandwidth of one pair of ranks between nodes. Default: that of the NICs.", None, gt=0
    )
    kind: str = declared(
        "Kind of network; RoCE and Slingshot count as InfiniBand.", "infiniband", words=tuple(FABRIC_KINDS)
    )
    all_to_all_gb_per_s: float | None = declared(
        "What each rank sends to other nodes in an all-to-all over all ranks. Default: the share of the NICs that the"
        " kind of network usually reaches.",
        None,
        gt=0,
    )

    def __post_init__(self) -> None:
        require_declared(self, "links")
        counts = [point.num_nodes for point in self.by_nodes]
        if counts != sorted({*counts}):
            rule = "each number of nodes once, in rising order"
            raise InputError.of("links", f"by_nodes is of {counts} nodes", key="by_nodes", value=counts, rule=rule)

    def all_to_all_rate(self, gpus_per_node: int) -> float:
        """GB/s that each rank sends to other nodes in an all-to-all."""
        share = FABRIC_KINDS[self.kind].all_to_all_share
        return self.all_to_all_gb_per_s or share * self.nic_gb_per_s / gpus_per_node

    def bus_gb_per_s(self, num_nodes: int, gathers: bool = False) -> float:
        """Bus bandwidth per rank of an all-reduce, or an all-gather, over all ranks of `num_nodes` nodes.

        A power law between measured numbers of nodes, constant beyond them.
        """
        if not self.by_nodes:
            return self.nic_gb_per_s * NIC_EFFICIENCY
        measured = [(point.num_nodes, point.rate(gathers)) for point in self.by_nodes]
        for (fewer, fast), (more, slow) in pairwise(measured):
            if fewer <= num_nodes <= more:
                share = math.log(num_nodes / fewer) / math.log(more / fewer)
                return fast * (slow / fast) ** share
        nearest = measured[0] if num_nodes < measured[0][0] else measured[-1]
        return nearest[1]


@dataclass(frozen=True)
class Links:
    """Bandwidths and latencies between ranks; docs/clusters.md says how to measure them.

    Ranks are numbered node by node. A group is given by its number of ranks and the `stride` between them; the world is
    full of such groups, and all of them communicate at the same time.
    """

    domains: tuple[LinkDomain, ...] = declared(
        "From inner to outer, each a multiple of the one before, the last one a node or several.", in_file=()
    )
    fabric: Fabric | None = declared(
        "Network between the nodes; required with more nodes than the last domain has.", None
    )

    def __post_init__(self) -> None:
        for index, (inner, outer) in enumerate(pairwise(self.domains), start=1):
            if outer.num_ranks % inner.num_ranks or outer.num_ranks == inner.num_ranks:
                raise InputError.of(
                    "links",
                    f"{outer.name} has {outer.num_ranks} ranks, but {inner.name} inside it has {inner.num_ranks}",
                    key=f"domains[{index}].num_ranks",
                    value=outer.num_ranks,
                    rule="domains go from inner to outer, each a multiple of the one before",
                )

    def ranks_per_domain(self, gpus_per_node: int) -> int:
        """Ranks of the outermost domain; of a node where it is not described."""
        return self.domains[-1].num_ranks if self.domains else gpus_per_node

    def for_job(self, num_nodes: int, gpus_per_node: int) -> Links:
        """Links seen by an n-node job; the outermost domain may have several nodes.

        A job fills equal parts of domains, as large as possible: 24 nodes are two parts of 12 where a domain has 16.
        """
        nodes = self.ranks_per_domain(gpus_per_node) // gpus_per_node
        if nodes <= 1:
            return self
        together = max(part for part in range(1, min(nodes, num_nodes) + 1) if num_nodes % part == 0)
        return replace(self, domains=domains_within(self.domains, together * gpus_per_node))

    def collective_gb_per_s(self, num_ranks: int, stride: int, gpus_per_node: int, gathers: bool = False) -> float:
        """Bus bandwidth per rank of a ring over `num_ranks` ranks with this `stride`; inf for one rank.

        For an all-reduce, or with `gathers` for an all-gather or reduce-scatter.
        """
        if num_ranks == 1:
            return math.inf
        domain = self._domain_around(num_ranks * stride)
        if domain is not None:
            together = domain.rate(gathers) / self._groups_per_link(domain, stride, gpus_per_node)
            return together if num_ranks > 2 else min(together, domain.p2p_gb_per_s or math.inf)
        # Large groups are slowed by the length of their rings, so the curve is looked up by the number of ranks.
        as_many_nodes = max(2, -(-num_ranks // gpus_per_node))
        fabric, block = self._fabric_for(num_ranks, stride), self.ranks_per_domain(gpus_per_node)
        rings, inside = min(stride, block), self._inside_gb_per_s(gathers)
        if block == gpus_per_node:
            return min(fabric.bus_gb_per_s(as_many_nodes, gathers), inside) / rings
        # Rings of whole domains are as fast as the links inside, so what they reach is not shared; the NICs are.
        reached = fabric.bus_gb_per_s(as_many_nodes, gathers) if fabric.by_nodes else math.inf
        return min(fabric.nic_gb_per_s * NIC_EFFICIENCY * (block // gpus_per_node) / rings, reached, inside)

    def p2p_gb_per_s(self, num_ranks: int, stride: int, gpus_per_node: int) -> float:
        """Bandwidth of each rank that sends to the next of its group, over the group's slowest crossing."""
        if num_ranks == 1:
            return math.inf
        domain = self._domain_around(num_ranks * stride)
        if domain is not None:
            together = domain.bus_gb_per_s / self._groups_per_link(domain, stride, gpus_per_node)
            return min(together, domain.p2p_gb_per_s or math.inf)
        fabric = self._fabric_for(num_ranks, stride)
        share = fabric.nic_gb_per_s * NIC_EFFICIENCY / min(stride, gpus_per_node)
        return min(share, self._inside_gb_per_s(), fabric.p2p_gb_per_s or math.inf)

    def latency_us(self, num_ranks: int, stride: int, gpus_per_node: int) -> float:
        """Latency of a collective with a tiny message; 0 for one rank.

        Beyond a domain it is the domain's latency plus that of a tree up and down over the domains, as in NCCL.
        """
        if num_ranks == 1:
            return 0.0
        domain = self._domain_around(num_ranks * stride)
        if domain is not None:
            return domain.latency_us
        fabric, block = self._fabric_for(num_ranks, stride), self.ranks_per_domain(gpus_per_node)
        # A group that does not fit into one block spans at least two.
        blocks = num_ranks if stride >= block else max(2, -(-num_ranks * stride // block))
        hops = 2 * math.ceil(math.log2(blocks))
        inside = self.domains[-1].latency_us if self.domains and stride < block else 0.0
        return inside + hops * fabric.latency_us

    def to_json(self) -> dict[str, Any]:
        """Plain data that `decode` reads."""
        return asdict(self)

    def _domain_around(self, span: int) -> LinkDomain | None:
        """The innermost domain that contains every block of `span` ranks; None where blocks leave the outermost."""
        return next((domain for domain in self.domains if domain.num_ranks % span == 0), None)

    def _groups_per_link(self, domain: LinkDomain, stride: int, gpus_per_node: int) -> int:
        """Groups that share the links out of the next inner domain. Out of a whole node each rank has its own."""
        inside = (d.num_ranks for d in self.domains if d.num_ranks < min(domain.num_ranks, gpus_per_node))
        return min(stride, max(inside, default=1))

    def _inside_gb_per_s(self, gathers: bool = False) -> float:
        return self.domains[-1].rate(gathers) if self.domains else math.inf

    def _fabric_for(self, num_ranks: int, stride: int) -> Fabric:
        if self.fabric is None:
            raise ValueError(f"{num_ranks} ranks {stride} apart leave the last domain, but no fabric is described")
        return self.fabric


def domains_within(domains: Sequence[LinkDomain], ranks: int) -> tuple[LinkDomain, ...]:
    """The domains of a block of ranks: those that divide it, and the one around it, cut or grown to its size."""
    if ranks == 1:
        return ()
    inner = [domain for domain in domains if domain.num_ranks < ranks and ranks % domain.num_ranks == 0]
    around = next((domain for domain in domains if domain.num_ranks >= ranks), domains[-1])
    return (*inner, replace(around, num_ranks=ranks))
