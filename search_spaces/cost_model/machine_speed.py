"""MachineSpeed: speeds of a cluster that the terms of a step's time need. Pure; numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from search_spaces.hardware.cluster import Accelerator, Cluster, MeasuredSpeed
from search_spaces.hardware.links import Fabric, LinkDomain, Links
from search_spaces.layouts.table import LayoutTable, combinations_of


@dataclass(frozen=True)
class MachineSpeed:
    """Speeds of a cluster that the terms need, in bytes, FLOPs and seconds."""

    accelerator: Accelerator
    links: Links
    gpus_per_node: int
    gemm_flops: tuple[tuple[str, float], ...]
    measured_precisions: tuple[str, ...]
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
            _gemm_flops(a, measured),
            tuple(measured.matmul_tflops),
            (measured.memory_gb_per_s or a.memory_gb_per_s or HOST_GB_PER_S) * 1e9,
            (measured.host_gb_per_s or a.host_gb_per_s or HOST_GB_PER_S) * 1e9,
        )

    @property
    def is_gpu(self) -> bool:
        """True if a host launches kernels on a device; a CPU computes them itself."""
        return bool(self.accelerator.peak_flops)

    @property
    def ranks_per_domain(self) -> int:
        return self.links.ranks_per_domain(self.gpus_per_node)

    def bus_bytes_per_s(self, ranks: np.ndarray, stride: np.ndarray, gathers: np.ndarray | bool = True) -> np.ndarray:
        """Bus bandwidth of an all-gather or a reduce-scatter, or where `gathers` is false of an all-reduce."""
        kinds = np.broadcast_to(gathers, ranks.shape).astype(int)
        return 1e9 * self._per_group(self.links.collective_gb_per_s, ranks, stride, kinds)

    def pair_bytes_per_s(self, ranks: np.ndarray, stride: np.ndarray) -> np.ndarray:
        """Bandwidth of a rank that sends to the next of its group."""
        return 1e9 * self._per_group(self.links.p2p_gb_per_s, ranks, stride)

    def latency_s(self, ranks: np.ndarray, stride: np.ndarray) -> np.ndarray:
        return 1e-6 * self._per_group(self.links.latency_us, ranks, stride)

    def _per_group(
        self, what: Callable[..., float], ranks: np.ndarray, stride: np.ndarray, *others: np.ndarray
    ) -> np.ndarray:
        """A column of `what(ranks, stride, gpus_per_node, *others)` for groups of these sizes and strides."""
        firsts, of_row = combinations_of((ranks, stride, *others), len(ranks))
        of_each = zip(*(column[firsts].tolist() for column in (ranks, stride, *others)), strict=True)
        return np.array([what(*group[:2], self.gpus_per_node, *group[2:]) for group in of_each], dtype=float)[of_row]

    def flops(self, layouts: LayoutTable) -> np.ndarray:
        """FLOP/s of a training's GEMMs in each layout's precision."""
        precisions, rates = zip(*self.gemm_flops, strict=True)
        return np.select([layouts.equals("precision", precision) for precision in precisions], rates)


def _gemm_flops(accelerator: Accelerator, measured: MeasuredSpeed) -> tuple[tuple[str, float], ...]:
    """FLOP/s of GEMMs by precision: measured, else from the data sheet, else those of fp32."""
    share = accelerator.gemm_share or TYPICAL_GEMM_SHARE
    full_peak, half_peak = (accelerator.peak_flops_for(precision) for precision in ("fp32", "fp16"))
    reached = {precision: 1e12 * tflops for precision, tflops in measured.matmul_tflops.items()}
    full = reached.get("fp32") or (full_peak or HOST_FLOPS) * share
    half = full if half_peak is None else half_peak * share
    return ("fp32", full), *((precision, reached.get(precision, half)) for precision in ("bf16", "fp16"))


TYPICAL_GEMM_SHARE = 0.6
"""Share of the peak of an accelerator without a known one: those known reach 0.42 to 0.74."""
HOST_FLOPS = 50e9
HOST_GB_PER_S = 10.0
HOST_LINK_GB_PER_S, HOST_LINK_US = 2.0, 100.0
"""A rank on a CPU, by order of magnitude only; its trials correct it."""


def _host_links(ranks: int) -> Links:
    """Links between processes of one machine, and between machines of an ordinary network."""
    node = (LinkDomain("node", ranks, HOST_LINK_GB_PER_S, HOST_LINK_US),) if ranks > 1 else ()
    return Links(node, Fabric(HOST_LINK_GB_PER_S, HOST_LINK_US))
