"""Accelerator and Cluster: the machine that a training runs on. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from search_spaces.declared import declared, require_declared
from search_spaces.decoding import decode
from search_spaces.errors import InputError
from search_spaces.hardware.default_links import default_links
from search_spaces.hardware.links import Links


@dataclass(frozen=True)
class Accelerator:
    """One device as a rank sees it. Unknown is None, never a guess: without a peak there is no utilisation.

    `memory_gib` is GiB of device memory as sold, `usable_memory_gib` the total that the driver reports, without ECC and
    its own share; `peak_flops` maps a precision, `fp8` among them, to dense FLOP/s, no sparsity. `memory_gb_per_s` is
    the data sheet's memory bandwidth, `gemm_share` the share of the 16-bit peak that the GEMMs of a training
    reach, `host_gb_per_s` the link to host memory, one direction, in GB/s (1e9 bytes).
    """

    name: str
    memory_gib: float | None
    peak_flops: Mapping[str, float] = field(hash=False)
    usable_memory_gib: float | None = None
    memory_gb_per_s: float | None = None
    gemm_share: float | None = None
    host_gb_per_s: float | None = None

    def peak_flops_for(self, precision: str) -> float | None:
        return self.peak_flops.get(precision)

    @property
    def lacks_bf16(self) -> bool:
        return "fp16" in self.peak_flops and "bf16" not in self.peak_flops


HOPPER = ("h100", "h200", "gh200")
BLACKWELL = ("b200", "b300", "gb200", "gb300")
"""Chips of a generation."""


def chip_of(accelerator: str) -> str:
    """The accelerator's name without the memory's size: `h100`."""
    return accelerator.partition("-")[0]


_PCIE_3, _PCIE_4, _PCIE_5 = 15.75, 31.5, 63.0
"""GB/s of sixteen lanes, one direction, after encoding."""

# Dense peaks without sparsity, FLOP/s, and memory bandwidths from the vendors' data sheets: NVIDIA V100 (SXM2), T4,
# A40, A100 SXM, H100 SXM, H200 SXM; AMD MI250X, of which a rank has one die of two; those of newer ones by way of
# stas00/ml-engineering. fp32 is the vector rate: torch uses TF32 only when asked. fp8 is that of mxfp8, too, and fp4
# that of nvfp4 and mxfp4. docs/clusters.md has the sources of the other numbers.
_V100 = {"fp16": 125e12, "fp32": 15.7e12}
_T4 = {"fp16": 65e12, "fp32": 8.1e12}
_A40 = {"fp16": 149.7e12, "bf16": 149.7e12, "fp32": 37.4e12}
_A100 = {"fp16": 312e12, "bf16": 312e12, "fp32": 19.5e12}
_H100 = {"fp8": 1979e12, "fp16": 989e12, "bf16": 989e12, "fp32": 67e12}
_B200 = {"fp4": 9000e12, "fp8": 4500e12, "fp16": 2250e12, "bf16": 2250e12, "fp32": 80e12}
_GB200 = {"fp4": 10_000e12, "fp8": 5000e12, "fp16": 2500e12, "bf16": 2500e12, "fp32": 80e12}
_MI250X = {"fp16": 191.5e12, "bf16": 191.5e12, "fp32": 23.9e12}
_MI300X = {"fp8": 2614.9e12, "fp16": 1307.4e12, "bf16": 1307.4e12, "fp32": 163.4e12}
_MI350X = {"fp4": 9228e12, "fp8": 4614e12, "fp16": 2306.9e12, "bf16": 2306.9e12, "fp32": 144.2e12}
_MI355X = {"fp4": 10_066e12, "fp8": 5033e12, "fp16": 2516.6e12, "bf16": 2516.6e12, "fp32": 157.3e12}

_DEVICES = (
    Accelerator("v100-16gb", 16, _V100, 15.78, 900, 0.74, _PCIE_3),
    Accelerator("v100-32gb", 32, _V100, 31.74, 900, 0.74, _PCIE_3),
    Accelerator("t4-16gb", 16, _T4, 14.74, 320, 0.3, _PCIE_3),
    Accelerator("a40-48gb", 48, _A40, 44.35, 696, 0.67, _PCIE_4),
    Accelerator("a100-40gb", 40, _A100, 39.49, 1555, 0.72, _PCIE_4),
    Accelerator("a100-80gb", 80, _A100, 79.15, 2039, 0.72, _PCIE_4),
    Accelerator("h100-80gb", 80, _H100, 79.15, 3350, 0.57, _PCIE_5),
    Accelerator("h200-141gb", 141, _H100, 139.8, 4800, 0.57, _PCIE_5),
    Accelerator("gh200-96gb", 96, _H100, None, 4000, 0.6, host_gb_per_s=450),
    Accelerator("b200-180gb", 180, _B200, 178.35, 8000, 0.485, _PCIE_5),
    Accelerator("b300-288gb", 288, {**_B200, "fp4": 13_500e12}, 267.69, 8000, 0.485, _PCIE_5),
    Accelerator("gb200-186gb", 186, _GB200, 184.31, 8000, 0.52, host_gb_per_s=225),
    Accelerator("gb300-288gb", 288, {**_GB200, "fp4": 15_000e12}, 276.50, 8000, None, host_gb_per_s=225),
    Accelerator("mi250x-gcd-64gb", 64, _MI250X, 63.98, 1638, 0.63, host_gb_per_s=36),
    Accelerator("mi300x-192gb", 192, _MI300X, 191.98, 5300, 0.42, _PCIE_5),
    Accelerator("mi325x-256gb", 256, _MI300X, 255.98, 6000, 0.49, _PCIE_5),
    Accelerator("mi350x-288gb", 288, _MI350X, 287.98, 8000, None, _PCIE_5),
    Accelerator("mi355x-288gb", 288, _MI355X, 287.98, 8000, 0.51, _PCIE_5),
    Accelerator("cpu", None, {}),
)
ACCELERATORS: dict[str, Accelerator] = {device.name: device for device in _DEVICES}


@dataclass(frozen=True)
class MeasuredSpeed:
    """Speed that each rank reached while all of them ran at once; `parlay calibrate` writes it (docs/calibrate.md)."""

    matmul_tflops: Mapping[str, float] = declared(
        "GEMMs of a training.",
        dict,
        gt=0,
        of_keys="TFLOP/s (1e12) of a training's GEMMs, by precision.",
        keys={"fp32": "fp32 products, without TF32.", "bf16": "bf16 products.", "fp16": "fp16 products."},
    )
    memory_gb_per_s: float | None = declared("Memory traffic of a large copy, reads and writes.", None, gt=0)
    host_gb_per_s: float | None = declared("Between device and host memory, the slower direction.", None, gt=0)

    def __post_init__(self) -> None:
        require_declared(self, "measured")


_MOST_GPUS = 1_000_000


@dataclass(frozen=True)
class Cluster:
    """`num_nodes` equal nodes with `gpus_per_node` accelerators each; on CPU a "gpu" is a rank.

    `given_links` are the links that the user described, `measured` the speed that the ranks reached. Both are knowledge
    of the machine, not its identity: clusters that differ only in them are equal.
    """

    accelerator: Accelerator = declared("Accelerator of a rank, for example h100-80gb; cpu for plain processes.")
    gpus_per_node: int = declared("Accelerators per node; on cpu, ranks per node.", ge=1, le=100_000)
    num_nodes: int = declared("Nodes the search may use.", ge=1, le=100_000)
    given_links: Links | None = declared(
        "Bandwidths and latencies. Default: the links of the accelerator's usual node, if any.",
        None,
        compare=False,
        alias="links",
    )
    measured: MeasuredSpeed | None = declared(
        "Measured speed of a rank. Default: the accelerator's data sheet, if any.", None, compare=False
    )

    def __post_init__(self) -> None:
        require_declared(self, "cluster", "cluster.")
        if self.num_gpus > _MOST_GPUS:
            numbers = f"num_nodes {self.num_nodes} x gpus_per_node {self.gpus_per_node} = {self.num_gpus} accelerators"
            rule, fix = (
                f"at most {_MOST_GPUS} accelerators in total",
                "set num_nodes to the nodes that the search may use",
            )
            raise InputError.of("bounds", numbers, rule=rule, fix=fix, key="num_nodes", value=self.num_nodes)
        if self.given_links is not None:
            _require_fit(self.given_links, self.gpus_per_node, self.num_nodes)

    @property
    def num_gpus(self) -> int:
        """World size: nodes x accelerators per node."""
        return self.num_nodes * self.gpus_per_node

    @property
    def links(self) -> Links | None:
        """The described links, else those of the accelerator's usual node; None where neither is known."""
        return self.given_links or default_links(self.accelerator.name, self.gpus_per_node)

    def links_of_job(self, num_nodes: int) -> Links | None:
        """Links seen by an n-node job."""
        return None if self.links is None else self.links.for_job(num_nodes, self.gpus_per_node)

    @property
    def domain_nodes(self) -> int:
        """Nodes of the outermost link domain: 1 where it ends at the node."""
        return 1 if self.links is None else self.links.ranks_per_domain(self.gpus_per_node) // self.gpus_per_node

    def nodes_per_domain(self, num_nodes: int) -> int:
        """Nodes of a job on `num_nodes` that share its outermost link domain: 1 where domains end at the node."""
        links = self.links_of_job(num_nodes)
        return 1 if links is None else links.ranks_per_domain(self.gpus_per_node) // self.gpus_per_node

    @property
    def links_are_assumed(self) -> bool:
        """True if `links` are those of the accelerator's usual node, not described."""
        return self.given_links is None and self.links is not None

    @property
    def speed_is_known(self) -> bool:
        """True if a rank's compute speed is known from the data sheet or a measurement."""
        return bool(self.accelerator.peak_flops) or (self.measured is not None and bool(self.measured.matmul_tflops))

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads."""
        data = asdict(self)
        return {"links": data.pop("given_links"), **data}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cluster:
        """The inverse of `to_json`. ValueError for anything else."""
        if not isinstance(data, Mapping):
            raise ValueError(f"a cluster is {data!r:.80}, not an object")
        return decode(cls, {("given_links" if name == "links" else name): value for name, value in data.items()})


def _require_fit(links: Links, gpus_per_node: int, num_nodes: int) -> None:
    """InputError for links that leave ranks of a node unconnected, cut nodes, or lack the fabric that they need."""
    described = links.domains[-1].num_ranks if links.domains else 1
    if described % gpus_per_node:
        raise InputError.of(
            "links",
            f"the outermost domain has {described} ranks, but gpus_per_node is {gpus_per_node}",
            key="links.domains",
            value=described,
            rule="the last domain is a whole node, or several; a node of one GPU needs none",
            fix="add a last domain of gpus_per_node ranks, or of gpus_per_node x the nodes that it connects",
        )
    for index, domain in enumerate(links.domains):
        if domain.num_ranks % gpus_per_node and gpus_per_node % domain.num_ranks:
            raise InputError.of(
                "links",
                f"{domain.name} has {domain.num_ranks} ranks, but gpus_per_node is {gpus_per_node}",
                key=f"links.domains[{index}].num_ranks",
                value=domain.num_ranks,
                rule="a domain divides a node, or consists of whole nodes",
                fix="count the ranks of whole nodes",
            )
    if num_nodes * gpus_per_node > described and links.fabric is None:
        raise InputError.of(
            "links",
            f"has no fabric, but num_nodes is {num_nodes}",
            key="links.fabric",
            rule="links of more nodes than the last domain has include a fabric",
            fix="add fabric with nic_gb_per_s and latency_us",
        )
