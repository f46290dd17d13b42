"""Accelerator and Cluster: the machine that a training runs on. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

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
    lacks_bf16: bool = False
    usable_memory_gib: float | None = None
    memory_gb_per_s: float | None = None
    gemm_share: float | None = None
    host_gb_per_s: float | None = None

    def peak_flops_for(self, precision: str) -> float | None:
        return self.peak_flops.get(precision)


HOPPER = ("h100", "h200", "gh200")
BLACKWELL = ("b200", "b300", "gb200", "gb300")
"""Chips of a generation."""


def chip_of(accelerator: str) -> str:
    """The accelerator's name without the memory's size: `h100`."""
    return accelerator.partition("-")[0]


_PCIE_3, _PCIE_4, _PCIE_5 = 15.75, 31.5, 63.0
"""GB/s of sixteen lanes, one direction, after encoding."""

_V100 = Accelerator(
    "v100-32gb",
    memory_gib=32,
    peak_flops={"fp16": 125e12, "fp32": 15.7e12},
    lacks_bf16=True,
    usable_memory_gib=31.74,
    memory_gb_per_s=900,
    gemm_share=0.74,
    host_gb_per_s=_PCIE_3,
)
_A100 = Accelerator(
    "a100-80gb",
    memory_gib=80,
    peak_flops={"fp16": 312e12, "bf16": 312e12, "fp32": 19.5e12},
    usable_memory_gib=79.15,
    memory_gb_per_s=2039,
    gemm_share=0.72,
    host_gb_per_s=_PCIE_4,
)
_H100 = Accelerator(
    "h100-80gb",
    memory_gib=80,
    peak_flops={"fp8": 1979e12, "fp16": 989e12, "bf16": 989e12, "fp32": 67e12},
    usable_memory_gib=79.15,
    memory_gb_per_s=3350,
    gemm_share=0.57,
    host_gb_per_s=_PCIE_5,
)
_B200 = Accelerator(
    "b200-180gb",
    memory_gib=180,
    peak_flops={"fp4": 9000e12, "fp8": 4500e12, "fp16": 2250e12, "bf16": 2250e12, "fp32": 80e12},
    usable_memory_gib=178.35,
    memory_gb_per_s=8000,
    gemm_share=0.485,
    host_gb_per_s=_PCIE_5,
)
_GB200 = Accelerator(
    "gb200-186gb",
    memory_gib=186,
    peak_flops={"fp4": 10_000e12, "fp8": 5000e12, "fp16": 2500e12, "bf16": 2500e12, "fp32": 80e12},
    usable_memory_gib=184.31,
    memory_gb_per_s=8000,
    gemm_share=0.52,
    host_gb_per_s=225,
)
_MI300X = Accelerator(
    "mi300x-192gb",
    memory_gib=192,
    peak_flops={"fp8": 2614.9e12, "fp16": 1307.4e12, "bf16": 1307.4e12, "fp32": 163.4e12},
    usable_memory_gib=191.98,
    memory_gb_per_s=5300,
    gemm_share=0.42,
    host_gb_per_s=_PCIE_5,
)
_MI355X = Accelerator(
    "mi355x-288gb",
    memory_gib=288,
    peak_flops={"fp4": 10_066e12, "fp8": 5033e12, "fp16": 2516.6e12, "bf16": 2516.6e12, "fp32": 157.3e12},
    usable_memory_gib=287.98,
    memory_gb_per_s=8000,
    gemm_share=0.51,
    host_gb_per_s=_PCIE_5,
)

# Dense peaks without sparsity, FLOP/s, and memory bandwidths from the vendors' data sheets: NVIDIA V100 (SXM2), T4,
# A40, A100 SXM, H100 SXM, H200 SXM; AMD MI250X, of which a rank has one die of two; those of newer ones by way of
# stas00/ml-engineering. fp32 is the vector rate: torch uses
# TF32 only when asked. fp8 is that of mxfp8, too, and fp4 that of nvfp4 and mxfp4. docs/clusters.md has the sources of
# the other numbers.
ACCELERATORS: dict[str, Accelerator] = {
    a.name: a
    for a in (
        replace(_V100, name="v100-16gb", memory_gib=16, usable_memory_gib=15.78),
        _V100,
        Accelerator(
            "t4-16gb",
            memory_gib=16,
            peak_flops={"fp16": 65e12, "fp32": 8.1e12},
            lacks_bf16=True,
            usable_memory_gib=14.74,
            memory_gb_per_s=320,
            gemm_share=0.3,
            host_gb_per_s=_PCIE_3,
        ),
        Accelerator(
            "a40-48gb",
            memory_gib=48,
            peak_flops={"fp16": 149.7e12, "bf16": 149.7e12, "fp32": 37.4e12},
            usable_memory_gib=44.35,
            memory_gb_per_s=696,
            gemm_share=0.67,
            host_gb_per_s=_PCIE_4,
        ),
        replace(_A100, name="a100-40gb", memory_gib=40, usable_memory_gib=39.49, memory_gb_per_s=1555),
        _A100,
        _H100,
        replace(_H100, name="h200-141gb", memory_gib=141, usable_memory_gib=139.8, memory_gb_per_s=4800),
        replace(
            _H100,
            name="gh200-96gb",
            memory_gib=96,
            usable_memory_gib=None,
            memory_gb_per_s=4000,
            gemm_share=0.6,
            host_gb_per_s=450,
        ),
        _B200,
        replace(
            _B200,
            name="b300-288gb",
            memory_gib=288,
            peak_flops={**_B200.peak_flops, "fp4": 13_500e12},
            usable_memory_gib=267.69,
            gemm_share=0.485,
        ),
        _GB200,
        replace(
            _GB200,
            name="gb300-288gb",
            memory_gib=288,
            peak_flops={**_GB200.peak_flops, "fp4": 15_000e12},
            usable_memory_gib=276.50,
            gemm_share=None,
        ),
        Accelerator(
            "mi250x-gcd-64gb",
            memory_gib=64,
            peak_flops={"fp16": 191.5e12, "bf16": 191.5e12, "fp32": 23.9e12},
            usable_memory_gib=63.98,
            memory_gb_per_s=1638,
            gemm_share=0.63,
            host_gb_per_s=36,
        ),
        _MI300X,
        replace(
            _MI300X,
            name="mi325x-256gb",
            memory_gib=256,
            usable_memory_gib=255.98,
            memory_gb_per_s=6000,
            gemm_share=0.49,
        ),
        replace(
            _MI355X,
            name="mi350x-288gb",
            peak_flops={"fp4": 9228e12, "fp8": 4614e12, "fp16": 2306.9e12, "bf16": 2306.9e12, "fp32": 144.2e12},
            gemm_share=None,
        ),
        _MI355X,
        Accelerator("cpu", memory_gib=None, peak_flops={}),
    )
}


@dataclass(frozen=True)
class MeasuredSpeed:
    """Speed that each rank reached while all of them ran at once; None: not measured.

    `matmul_tflops` maps a precision to the TFLOP/s (1e12) of a training's GEMMs, `memory_gb_per_s` is the traffic of
    a large copy, reads and writes, `host_gb_per_s` the link to host memory in its slower direction, in GB/s (1e9
    bytes). InputError for a value that is not positive.
    """

    matmul_tflops: Mapping[str, float] = field(default_factory=dict)
    memory_gb_per_s: float | None = None
    host_gb_per_s: float | None = None

    def __post_init__(self) -> None:
        rates = {f"matmul_tflops.{precision}": tflops for precision, tflops in self.matmul_tflops.items()}
        rates |= {name: getattr(self, name) for name in ("memory_gb_per_s", "host_gb_per_s")}
        for key, value in rates.items():
            if value is not None and not 0 < value < math.inf:
                rule = f"{'TFLOP/s' if key.startswith('matmul') else 'GB/s'}, more than 0"
                raise InputError.of("measured", f"{key} is {value!r}", key=key, value=value, rule=rule)


@dataclass(frozen=True)
class Cluster:
    """`num_nodes` equal nodes with `gpus_per_node` accelerators each; on CPU a "gpu" is a rank.

    `given_links` are the links that the user described, `measured` the speed that the ranks reached. Both are knowledge
    of the machine, not its identity: clusters that differ only in them are equal.
    """

    accelerator: Accelerator
    gpus_per_node: int
    num_nodes: int
    given_links: Links | None = field(default=None, compare=False)
    measured: MeasuredSpeed | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("gpus_per_node", "num_nodes"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 100_000:
                rule, key = "a whole number from 1 to 100000", f"cluster.{name}"
                raise InputError.of("cluster", f"{name} is {value!r}", key=key, value=value, rule=rule)
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
        """The links of a job on so many of the nodes."""
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
