"""MachineSpeed: speeds of a cluster that the terms of a step's time need. Pure; numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from search_spaces.hardware.cluster import Accelerator, Cluster, MeasuredSpeed
from search_spaces.hardware.links import Fabric, LinkDomain, Links
from search_spaces.layouts.table import LayoutTable

OVERLAPPED = 0.5
"""Exposed share of communication that overlaps computation."""


@dataclass(frozen=True)
class MachineSpeed:
    """Speeds of a cluster that the terms need, in bytes, FLOPs and seconds."""

    accelerator: Accelerator
    links: Links
    gpus_per_node: int
    matmul_flops: tuple[tuple[str, float], ...]
    memory_bytes_per_s: float
    host_bytes_per_s: float

    @classmethod
    def of(cls, cluster: Cluster, num_nodes: int) -> MachineSpeed:
        """The machine as a job on so many of its nodes sees it."""
        a, measured = cluster.accelerator, cluster.measured or MeasuredSpeed()
        return cls(
            a,
            cluster.links_of_job(num_nodes) or _host_links(cluster.gpus_per_node),
            cluster.gpus_per_node,
            _matmul_flops(a, measured),
            (measured.memory_gb_per_s or a.memory_gb_per_s or HOST_GB_PER_S) * 1e9,
            (measured.host_gb_per_s or a.host_gb_per_s or HOST_GB_PER_S) * 1e9,
        )

    def per_group(self, what: Callable[[int, int], float], ranks: np.ndarray, stride: np.ndarray) -> np.ndarray:
        """A column of `what(ranks, stride)` for groups of these sizes and strides."""
        widest = int(stride.max(initial=0)) + 1
        groups, rows = np.unique(ranks * widest + stride, return_inverse=True)
        return np.array([what(*divmod(group, widest)) for group in groups.tolist()], dtype=float)[rows]

    def bus_bytes_per_s(self, ranks: np.ndarray, stride: np.ndarray, gathers: np.ndarray) -> np.ndarray:
        """Bus bandwidth of an all-reduce, or where `gathers` is true of an all-gather or a reduce-scatter."""
        reduced, gathered = (
            self.per_group(
                lambda count, apart: self.links.collective_gb_per_s(count, apart, self.gpus_per_node, kind),  # noqa: B023
                ranks,
                stride,
            )
            for kind in (False, True)
        )
        return 1e9 * np.where(gathers, gathered, reduced)

    def latency_s(self, ranks: np.ndarray, stride: np.ndarray) -> np.ndarray:
        return 1e-6 * self.per_group(
            lambda count, apart: self.links.latency_us(count, apart, self.gpus_per_node), ranks, stride
        )

    def flops(self, layouts: LayoutTable) -> np.ndarray:
        precisions, rates = zip(*self.matmul_flops, strict=True)
        return np.select([layouts.equals("precision", precision) for precision in precisions], rates)


def _matmul_flops(accelerator: Accelerator, measured: MeasuredSpeed) -> tuple[tuple[str, float], ...]:
    """FLOP/s of large products by precision: measured, else from the data sheet, else those of fp32."""
    fraction = products_share(accelerator)
    full_peak = accelerator.peak_flops_for("fp32")
    half_peak = accelerator.peak_flops_for("fp16")
    full = measured.matmul_flops("fp32") or (full_peak or HOST_FLOPS) * fraction
    half = full if half_peak is None else half_peak * fraction
    halves = ((precision, measured.matmul_flops(precision) or half) for precision in ("bf16", "fp16"))
    return ("fp32", full), *halves


def products_share(accelerator: Accelerator) -> float:
    """Share of the peak that large products reach in a training."""
    return (accelerator.matmul_fraction or TYPICAL_MATMUL_FRACTION) / _TRAINING_SLOWDOWN.get(accelerator.name, 1)


TYPICAL_MATMUL_FRACTION = 0.8
"""Share of the peak where the accelerator was not measured: measured ones reach 0.77 to 0.87."""
_TRAINING_SLOWDOWN = {"h100-80gb": 1.15, "h200-141gb": 1.15}
"""Accelerators whose products are slower in training than matmul benchmarks suggest: whole steps are published at 40 to
47 % of the peak on H100 (NVIDIA/Megatron-LM, README), 50 to 56 % on A100 (arXiv 2205.05198, table 5). 1.15 is fitted to
the Playbook's steps on one node."""
HOST_FLOPS = 50e9
HOST_GB_PER_S = 10.0
HOST_LINK_GB_PER_S, HOST_LINK_US = 2.0, 100.0
"""A rank on a CPU, by order of magnitude only; its trials correct it."""


def _host_links(ranks: int) -> Links:
    """Links between processes of one machine, and between machines of an ordinary network."""
    node = (LinkDomain("node", ranks, HOST_LINK_GB_PER_S, HOST_LINK_US),) if ranks > 1 else ()
    return Links(node, Fabric(HOST_LINK_GB_PER_S, HOST_LINK_US))
