"""Accelerator and Cluster: the machine that a training runs on. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from search_spaces.errors import InputError
from search_spaces.hardware.default_links import default_links
from search_spaces.hardware.links import Links


@dataclass(frozen=True)
class Accelerator:
    """One device as a rank sees it. Unknown is None, never a guess: without a peak there is no utilisation.

    `memory_gib` is GiB of device memory as sold, `usable_memory_gib` the total that the driver reports, without ECC and
    its own share; `peak_flops` maps a precision, `fp8` among them, to dense FLOP/s, no sparsity. `memory_gb_per_s` is
    the data sheet's memory bandwidth, `matmul_fraction` the largest share of the 16-bit peak that a large matrix
    product reaches, `host_gb_per_s` the link to host memory, one direction, in GB/s (1e9 bytes).
    """

    name: str
    memory_gib: float | None
    peak_flops: tuple[tuple[str, float], ...]
    lacks_bf16: bool = False
    usable_memory_gib: float | None = None
    memory_gb_per_s: float | None = None
    matmul_fraction: float | None = None
    host_gb_per_s: float | None = None

    def peak_flops_for(self, precision: str) -> float | None:
        return dict(self.peak_flops).get(precision)

    @property
    def fp8_speedup(self) -> float:
        """Peak of 8-bit floats relative to bf16; 1 where one of them is unknown."""
        halves, eighths = self.peak_flops_for("bf16"), self.peak_flops_for("fp8")
        return 1.0 if halves is None or eighths is None else eighths / halves


_PCIE_3, _PCIE_4, _PCIE_5 = 15.75, 31.5, 63.0
"""GB/s of sixteen lanes, one direction, after encoding."""

_V100 = Accelerator(
    "v100-32gb",
    memory_gib=32,
    peak_flops=(("fp16", 125e12), ("fp32", 15.7e12)),
    lacks_bf16=True,
    usable_memory_gib=31.74,
    memory_gb_per_s=900,
    matmul_fraction=0.90,
    host_gb_per_s=_PCIE_3,
)
_A100 = Accelerator(
    "a100-80gb",
    memory_gib=80,
    peak_flops=(("fp16", 312e12), ("bf16", 312e12), ("fp32", 19.5e12)),
    usable_memory_gib=79.15,
    memory_gb_per_s=2039,
    matmul_fraction=0.869,
    host_gb_per_s=_PCIE_4,
)
_H100 = Accelerator(
    "h100-80gb",
    memory_gib=80,
    peak_flops=(("fp8", 1979e12), ("fp16", 989e12), ("bf16", 989e12), ("fp32", 67e12)),
    usable_memory_gib=79.15,
    memory_gb_per_s=3350,
    matmul_fraction=0.803,
    host_gb_per_s=_PCIE_5,
)

# Dense peaks without sparsity, FLOP/s, and memory bandwidths from the vendors' data sheets: NVIDIA V100 (SXM2), T4,
# A40, A100 SXM, H100 SXM, H200 SXM; AMD MI250X, of which a rank has one die of two. fp32 is the vector rate: torch uses
# TF32 only when asked. docs/clusters.md has the sources of the other numbers.
ACCELERATORS: dict[str, Accelerator] = {
    a.name: a
    for a in (
        replace(_V100, name="v100-16gb", memory_gib=16, usable_memory_gib=15.78),
        _V100,
        Accelerator(
            "t4-16gb",
            memory_gib=16,
            peak_flops=(("fp16", 65e12), ("fp32", 8.1e12)),
            lacks_bf16=True,
            usable_memory_gib=14.74,
            memory_gb_per_s=320,
            matmul_fraction=0.37,
            host_gb_per_s=_PCIE_3,
        ),
        Accelerator(
            "a40-48gb",
            memory_gib=48,
            peak_flops=(("fp16", 149.7e12), ("bf16", 149.7e12), ("fp32", 37.4e12)),
            usable_memory_gib=44.35,
            memory_gb_per_s=696,
            matmul_fraction=0.817,
            host_gb_per_s=_PCIE_4,
        ),
        replace(_A100, name="a100-40gb", memory_gib=40, usable_memory_gib=39.49, memory_gb_per_s=1555),
        _A100,
        _H100,
        replace(_H100, name="h200-141gb", memory_gib=141, usable_memory_gib=139.8, memory_gb_per_s=4800),
        Accelerator(
            "mi250x-gcd-64gb",
            memory_gib=64,
            peak_flops=(("fp16", 191.5e12), ("bf16", 191.5e12), ("fp32", 23.9e12)),
            usable_memory_gib=63.98,
            memory_gb_per_s=1638,
            matmul_fraction=0.767,
            host_gb_per_s=36,
        ),
        Accelerator("cpu", memory_gib=None, peak_flops=()),
    )
}


@dataclass(frozen=True)
class MeasuredSpeed:
    """Speed that each rank reached while all of them ran at once; None: not measured.

    `matmul_tflops` maps a precision to the TFLOP/s (1e12) of large matrix products, `memory_gb_per_s` is the traffic of
    a large copy, reads and writes, `host_gb_per_s` the link to host memory in its slower direction, in GB/s (1e9
    bytes). InputError for a value that is not positive.
    """

    matmul_tflops: tuple[tuple[str, float], ...] = ()
    memory_gb_per_s: float | None = None
    host_gb_per_s: float | None = None

    def __post_init__(self) -> None:
        for precision, tflops in self.matmul_tflops:
            _require_positive(f"matmul_tflops.{precision}", tflops, "TFLOP/s")
        for name in ("memory_gb_per_s", "host_gb_per_s"):
            if getattr(self, name) is not None:
                _require_positive(name, getattr(self, name), "GB/s")

    def matmul_flops(self, precision: str) -> float | None:
        """FLOP/s of large products; None where this precision was not measured."""
        tflops = dict(self.matmul_tflops).get(precision)
        return None if tflops is None else tflops * 1e12

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads."""
        return asdict(self) | {"matmul_tflops": dict(self.matmul_tflops)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MeasuredSpeed:
        return cls(**{**data, "matmul_tflops": tuple(data["matmul_tflops"].items())})


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
                raise InputError.of(
                    "cluster",
                    f"{name} is {value!r}",
                    key=f"cluster.{name}",
                    value=value,
                    rule="a whole number from 1 to 100000",
                )
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
        data["accelerator"]["peak_flops"] = dict(self.accelerator.peak_flops)
        data["links"] = data.pop("given_links")
        data["measured"] = None if self.measured is None else self.measured.to_json()
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cluster:
        """The inverse of `to_json`."""
        accelerator, links, measured = data["accelerator"], data["links"], data["measured"]
        return cls(
            Accelerator(**{**accelerator, "peak_flops": tuple(accelerator["peak_flops"].items())}),
            data["gpus_per_node"],
            data["num_nodes"],
            None if links is None else Links.from_json(links),
            None if measured is None else MeasuredSpeed.from_json(measured),
        )


def _require_positive(key: str, value: float, unit: str) -> None:
    if not 0 < value < math.inf:
        raise InputError.of("measured", f"{key} is {value!r}", key=key, value=value, rule=f"{unit}, more than 0")


def _require_fit(links: Links, gpus_per_node: int, num_nodes: int) -> None:
    """InputError for links that leave ranks of the cluster unconnected, or connect more than there are."""
    described = links.domains[-1].num_ranks if links.domains else 1
    if described != gpus_per_node:
        raise InputError.of(
            "links",
            f"the outermost domain has {described} ranks, but gpus_per_node is {gpus_per_node}",
            key="links.domains",
            value=described,
            rule="the last domain is a whole node; a node of one GPU has no domain",
            fix="add a last domain of gpus_per_node ranks",
        )
    if num_nodes > 1 and links.fabric is None:
        raise InputError.of(
            "links",
            f"has no fabric, but num_nodes is {num_nodes}",
            key="links.fabric",
            rule="links of more than one node include a fabric",
            fix="add fabric with nic_gb_per_s and latency_us",
        )
