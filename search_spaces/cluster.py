"""Accelerator and Cluster: the machine a layout is laid over. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.errors import InputError


@dataclass(frozen=True)
class Accelerator:
    """One device as a rank sees it. Unknown is None, never a guess: without a peak there is no utilisation.

    `memory_gib` is GiB of device memory; `peak_flops` maps a precision to dense FLOP/s, no sparsity.
    """

    name: str
    memory_gib: float | None
    peak_flops: tuple[tuple[str, float], ...]
    lacks_bf16: bool = False

    def peak_flops_for(self, precision: str) -> float | None:
        return dict(self.peak_flops).get(precision)


def _accelerator(name: str, memory_gib: float | None, half: float | None, single: float | None, bf16: bool = True):
    peaks = [("fp16", half), ("bf16", half if bf16 else None), ("fp32", single)]
    known = tuple((precision, flops) for precision, flops in peaks if flops is not None)
    return Accelerator(name, memory_gib, known, lacks_bf16=not bf16)


# Dense peaks without sparsity, FLOP/s, from the vendors' data sheets: NVIDIA V100 (SXM2), T4, A40, A100, H100 SXM,
# H200 SXM; AMD MI250X, whose 383 TFLOP/s are two dies. fp32 is the vector rate: torch uses TF32 only when asked.
ACCELERATORS: dict[str, Accelerator] = {
    a.name: a
    for a in (
        _accelerator("v100-16gb", 16, 125e12, 15.7e12, bf16=False),
        _accelerator("v100-32gb", 32, 125e12, 15.7e12, bf16=False),
        _accelerator("t4-16gb", 16, 65e12, 8.1e12, bf16=False),
        _accelerator("a40-48gb", 48, 149.7e12, 37.4e12),
        _accelerator("a100-40gb", 40, 312e12, 19.5e12),
        _accelerator("a100-80gb", 80, 312e12, 19.5e12),
        _accelerator("h100-80gb", 80, 989e12, 67e12),
        _accelerator("h200-141gb", 141, 989e12, 67e12),
        _accelerator("mi250x-gcd-64gb", 64, 191.5e12, 23.9e12),
        _accelerator("cpu", None, None, None),
    )
}


@dataclass(frozen=True)
class Cluster:
    """`num_nodes` equal nodes with `gpus_per_node` accelerators each; on CPU a "gpu" is a rank."""

    accelerator: Accelerator
    gpus_per_node: int
    num_nodes: int

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

    @property
    def num_gpus(self) -> int:
        """World size: nodes x accelerators per node."""
        return self.num_nodes * self.gpus_per_node
