"""Calibration job (`parlay calibrate`): the measurements that ranks take, and their results (docs/calibrate.md).

Ranks communicate in equal groups, all groups of a kind at the same time, as those of a layout do. Standard library
only: the compute side reads this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from search_spaces.decoding import JsonObject
from search_spaces.model_shape import ModelShape
from trials.files.folders import read_as, write_json
from trials.trial import LowerStrEnum

ROUNDS = 5
"""Repetitions of a measurement, of which the median counts."""
SMALL_BYTES = 16
"""Message size for measuring latency."""


@dataclass(frozen=True)
class BenchmarkBudget:
    """Limits of measurements: sizes, and seconds for each. Products of more bytes are left out."""

    squares: tuple[int, ...]
    product_bytes: int
    copied_bytes: int
    exchanged_bytes: int
    seconds: float

    @property
    def probe_bytes(self) -> int:
        """Bytes of a first exchange, from which the time of a large one is estimated."""
        return self.exchanged_bytes // 64

    def bytes_in_time(self, probe_s: float, num_ranks: int) -> int:
        """Bytes that can be exchanged in one round's share of the time, fewer on a slow network, in equal parts for
        `num_ranks` ranks. `probe_s` is the time of `probe_bytes`."""
        share = min(1.0, self.seconds / ROUNDS / probe_s * self.probe_bytes / self.exchanged_bytes)
        part = 4 * num_ranks
        return max(1, int(share * self.exchanged_bytes) // part) * part


GPU_BUDGET = BenchmarkBudget((2048, 4096, 8192), 8 * 2**30, 2**30, 2**30, seconds=1.0)
CPU_BUDGET = BenchmarkBudget((256, 512, 1024), 2**30, 64 * 2**20, 16 * 2**20, seconds=0.5)


_SQUARE = "square-"


@dataclass(frozen=True)
class Product:
    """A matrix of `rows` x `inner` times one of `inner` x `columns`."""

    name: str
    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.inner * self.columns

    @property
    def is_square(self) -> bool:
        """True for one of `square_products`, not for a layer's that happens to be square."""
        return self.name.startswith(_SQUARE)

    @property
    def num_elements(self) -> int:
        """Elements of both factors and the product."""
        return self.rows * self.inner + self.inner * self.columns + self.rows * self.columns


def square_products(budget: BenchmarkBudget) -> list[Product]:
    """Large square products, by which machines are compared; ascending."""
    return [Product(f"{_SQUARE}{size}", size, size, size) for size in budget.squares]


def model_products(model: ModelShape) -> list[Product]:
    """Matrix products of a sequence's forward pass through a layer and the head, on one tensor-parallel rank."""
    tokens, hidden, ffn = model.seq_length, model.hidden_size, model.ffn_hidden_size
    return [
        Product("attention-in", tokens, hidden, model.query_size + 2 * model.key_value_size),
        Product("attention-out", tokens, model.query_size, hidden),
        Product("mlp-in", tokens, hidden, ffn * (2 if model.gated_mlp else 1)),
        Product("mlp-out", tokens, ffn, hidden),
        Product("head", tokens, hidden, model.vocab_size),
    ]


def block_sizes(gpus_per_node: int, num_nodes: int) -> list[int]:
    """Sizes of the groups that are measured, inner ones first: equal parts of a node, a node, 2, 4 ... nodes, all."""
    inside = [size for size in _doubled_up_to(gpus_per_node) if gpus_per_node % size == 0]
    return inside + [nodes * gpus_per_node for nodes in _doubled_up_to(num_nodes)]


def pair_distances(gpus_per_node: int, num_nodes: int) -> list[int]:
    """Rank distances of the pairs that are measured: neighbours, and the boundary of each block."""
    blocks = [1, *block_sizes(gpus_per_node, 1)]
    return blocks if num_nodes > 1 else blocks[:-1]


def pair_of(rank: int, apart: int, gpus_per_node: int, num_ranks: int, alone: bool) -> tuple[int, int] | None:
    """Sender and receiver of a rank's pair: in the same node, or in neighbouring ones for a distance of at least a
    node. `alone`: one pair a node. None for a rank without a pair."""
    crosses = apart >= gpus_per_node
    first, end = (
        (0, num_ranks) if crosses else (rank - rank % gpus_per_node, gpus_per_node + rank - rank % gpus_per_node)
    )
    sender = rank if (rank - first) // apart % 2 == 0 else rank - apart
    if sender + apart >= end or (alone and sender % gpus_per_node):
        return None
    return sender, sender + apart


def _doubled_up_to(most: int) -> list[int]:
    """2, 4, 8 ... and `most` itself; nothing for 1."""
    powers = [2**exponent for exponent in range(1, most.bit_length()) if 2**exponent < most]
    return [*powers, most] if most > 1 else []


class Collective(LowerStrEnum):
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    RING_SHIFT = "ring_shift"
    """Each rank sends to the next one of its group, the last to the first."""
    PING_PONG = "ping_pong"
    """A message between two ranks, one way at a time."""


def collectives_of(num_ranks: int, gpus_per_node: int) -> tuple[Collective, ...]:
    """Large collectives that are measured over groups of this size: between nodes all-to-alls, too."""
    between = (Collective.ALL_TO_ALL,) if num_ranks > gpus_per_node else ()
    return (Collective.ALL_REDUCE, Collective.ALL_GATHER, *between)


def bus_gb_per_s(kind: Collective, num_ranks: int, num_bytes: int, seconds: float) -> float:
    """Bus bandwidth as NCCL's tests define it, in GB/s (1e9 bytes)."""
    share = 1.0 if kind in (Collective.RING_SHIFT, Collective.PING_PONG) else (num_ranks - 1) / num_ranks
    passes = 2 if kind is Collective.ALL_REDUCE else 1
    return passes * share * num_bytes / seconds / 1e9


@dataclass(frozen=True)
class ProductRate:
    """Rate of each rank at a product, with all ranks at work."""

    product: Product
    precision: str
    tflops: float


@dataclass(frozen=True)
class GroupTime:
    """Seconds of a collective by all groups of `num_ranks` ranks at once. `num_bytes` are counted as in NCCL's tests:
    the reduced bytes, or the bytes present after a gather."""

    kind: Collective
    num_ranks: int
    num_bytes: int
    seconds: float

    @property
    def bus_gb_per_s(self) -> float:
        """Bus bandwidth as NCCL's tests define it, in GB/s (1e9 bytes)."""
        return bus_gb_per_s(self.kind, self.num_ranks, self.num_bytes, self.seconds)


@dataclass(frozen=True)
class PairTime:
    """Seconds of a message between ranks `apart` from each other: of one pair in each node (`alone`), or of all pairs
    at once."""

    apart: int
    alone: bool
    num_bytes: int
    seconds: float

    @property
    def gb_per_s(self) -> float:
        return self.num_bytes / self.seconds / 1e9


@dataclass(frozen=True)
class Measurements(JsonObject):
    """measurements.json. Values not measured are None or missing; `fingerprint` is as in an outcome."""

    SCHEMA = "parlay.measurements/1"

    products: tuple[ProductRate, ...] = ()
    memory_gb_per_s: float | None = None
    to_host_gb_per_s: float | None = None
    from_host_gb_per_s: float | None = None
    groups: tuple[GroupTime, ...] = ()
    pairs: tuple[PairTime, ...] = ()
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    ended_at: str | None = None

    def write(self, folder: Path) -> None:
        write_json(folder / "measurements.json", self.to_json())

    @classmethod
    def read(cls, folder: Path) -> Measurements | None:
        """The measurements in this folder; None without any yet."""
        return read_as(cls, folder / "measurements.json")


def calibration_section(precisions: Sequence[str]) -> dict[str, Any]:
    """The spec's `trainer` section for products in these precisions."""
    return {"kind": "calibrate", "precisions": list(precisions)}
