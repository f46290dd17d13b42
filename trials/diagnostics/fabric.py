"""Fabric check (`parlay doctor --fabric`, `launcher.fabric_check`): the exchanges that ranks time, and their results
(docs/fabric.md).

All groups of an exchange communicate at the same time, as those of a layout do, and each is timed by itself. Standard
library only: the compute side reads this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trials.diagnostics.calibration import (
    SMALL_BYTES,
    Collective,
    block_sizes,
    bus_gb_per_s,
    collectives_of,
    pair_distances,
    pair_of,
)
from trials.files.folders import read_json, write_json
from trials.json_types import (
    FieldTypes,
    is_finite_number,
    is_flag,
    is_integer,
    is_list_of,
    is_object,
    is_text,
    require_types,
)
from trials.trial import require_schema

FABRIC_SCHEMA = "parlay.fabric/1"
MAX_SHAPES = 12
"""Group shapes of the search that are checked: those of most layouts. On a GPU each has a communicator of its own."""


@dataclass(frozen=True)
class GroupShape:
    """Groups of `num_ranks` ranks, `stride` apart, and the collectives that layouts run in them."""

    num_ranks: int
    stride: int
    kinds: tuple[Collective, ...]

    @property
    def block(self) -> int:
        """Consecutive ranks that the groups fill."""
        return self.num_ranks * self.stride


@dataclass(frozen=True)
class Exchange:
    """One measurement: a collective by all groups of `num_ranks` ranks, `stride` apart, with a small or a large
    message.

    The first group begins at rank `shift`, and the last may reach over the end to the first ranks. A ping-pong
    (`num_ranks` 2) is between a rank and the one `stride` after it, of one pair in each node if it `is_alone`.
    """

    kind: Collective
    num_ranks: int
    stride: int
    shift: int = 0
    is_small: bool = False
    is_alone: bool = False

    def groups(self, gpus_per_node: int, world_size: int) -> list[tuple[int, ...]]:
        """Ranks of each group; leftover ranks are in none."""
        if self.kind is Collective.PING_PONG:
            pairs = (pair_of(r, self.stride, gpus_per_node, world_size, self.is_alone) for r in range(world_size))
            return sorted({pair for pair in pairs if pair is not None})
        block = self.num_ranks * self.stride
        firsts = [first + offset for first in range(0, world_size - block + 1, block) for offset in range(self.stride)]
        members = range(0, block, self.stride)
        return [tuple((self.shift + first + rank) % world_size for rank in members) for first in firsts]

    @property
    def small_bytes(self) -> int:
        """Bytes of the small message; a large one has more."""
        is_whole = self.kind in (Collective.ALL_REDUCE, Collective.PING_PONG)
        return SMALL_BYTES if is_whole else SMALL_BYTES * self.num_ranks

    @property
    def words(self) -> str:
        """The exchange in a sentence: `all-reduce over 8 ranks 4 apart`."""
        apart = "" if self.stride == 1 else f" {self.stride} apart"
        return f"{self.kind.replace('_', '-')} over {self.num_ranks} ranks{apart}"


@dataclass(frozen=True)
class ExchangeTime:
    """Seconds of each group of an exchange, in the order of `Exchange.groups`, on its slowest rank."""

    exchange: Exchange
    num_bytes: int
    seconds: tuple[float, ...]

    def gb_per_s(self, seconds: float) -> float:
        """Bus bandwidth at which a group of these seconds communicated, in GB/s (1e9 bytes)."""
        return bus_gb_per_s(self.exchange.kind, self.exchange.num_ranks, self.num_bytes, seconds)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ExchangeTime:
        """The inverse of `asdict`; ValueError for anything else."""
        require_types(data, _TIME_TYPES, "the time's")
        require_types(data["exchange"], _EXCHANGE_TYPES, "the exchange's")
        exchange = Exchange(**data["exchange"] | {"kind": Collective(data["exchange"]["kind"])})
        if exchange.num_ranks < 1 or exchange.stride < 1 or not 0 < data["num_bytes"] <= _MOST_BYTES:
            raise ValueError("an exchange whose ranks, stride or bytes are out of bounds")
        if not all(_LEAST_S <= seconds <= _MOST_S for seconds in data["seconds"]):
            raise ValueError(f"an exchange whose seconds are not from {_LEAST_S:g} to {_MOST_S:g}")
        return cls(exchange, data["num_bytes"], tuple(data["seconds"]))


_MOST_BYTES = 2**50
_LEAST_S, _MOST_S = 1e-9, 1e6

_TIME_TYPES: FieldTypes = {
    "an object": (("exchange",), is_object),
    "a whole number": (("num_bytes",), is_integer),
    "a list of numbers": (("seconds",), is_list_of(is_finite_number)),
}
_EXCHANGE_TYPES: FieldTypes = {
    "text": (("kind",), is_text),
    "a whole number": (("num_ranks", "stride", "shift"), is_integer),
    "true or false": (("is_small", "is_alone"), is_flag),
}


@dataclass(frozen=True)
class FabricTimes:
    """fabric.json: the node of each rank, and the time of every exchange. `fingerprint` is as in an outcome."""

    nodes: tuple[str, ...]
    times: tuple[ExchangeTime, ...]
    fingerprint: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"schema": FABRIC_SCHEMA} | asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FabricTimes:
        """The inverse of `to_json`; ValueError for another schema, or for fields that are missing or have other
        types."""
        require_schema(data, FABRIC_SCHEMA)
        require_types(data, _FABRIC_TYPES, "fabric.json's")
        try:
            times = tuple(map(ExchangeTime.from_json, data["times"]))
            return cls(tuple(data["nodes"]), times, data["fingerprint"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"times with missing or unknown fields: {error}") from error

    def write(self, folder: Path) -> None:
        write_json(folder / "fabric.json", self.to_json())

    @classmethod
    def read(cls, folder: Path, shapes: Sequence[GroupShape], gpus_per_node: int, num_nodes: int) -> FabricTimes | None:
        """The times in this folder; None without any yet.

        ValueError for a file that is not the times of a check of these shapes on `num_nodes` nodes.
        """
        path = folder / "fabric.json"
        if (data := read_json(path)) is None:
            return None
        try:
            found = cls.from_json(data)
            found._require_all(exchanges_of(shapes, gpus_per_node, num_nodes), gpus_per_node, num_nodes)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        return found

    def _require_all(self, exchanges: Sequence[Exchange], gpus_per_node: int, num_nodes: int) -> None:
        world_size = num_nodes * gpus_per_node
        if len(self.nodes) != world_size:
            raise ValueError(f"{len(self.nodes)} ranks were checked, not {world_size}")
        if [time.exchange for time in self.times] != list(exchanges):
            raise ValueError(f"the exchanges are not the {len(exchanges)} of the check")
        for time in self.times:
            if time.exchange.is_small != (time.num_bytes == time.exchange.small_bytes):
                raise ValueError(f"{time.exchange.words}: a message of {time.num_bytes} bytes")
            num_groups = len(time.exchange.groups(gpus_per_node, world_size))
            if len(time.seconds) != num_groups:
                raise ValueError(f"{time.exchange.words}: {len(time.seconds)} times of {num_groups} groups")


_FABRIC_TYPES: FieldTypes = {
    "a list of texts": (("nodes",), is_list_of(is_text)),
    "a list of objects": (("times",), is_list_of(is_object)),
    "an object": (("fingerprint",), is_object),
}


def trainer_of(shapes: Sequence[GroupShape]) -> dict[str, Any]:
    """The spec's `trainer` section for a check of these shapes."""
    return {"kind": "fabric_check", "shapes": [asdict(shape) for shape in shapes]}


def shapes_of(trainer: Mapping[str, Any]) -> list[GroupShape]:
    """The inverse of `trainer_of`."""
    return [GroupShape(s["num_ranks"], s["stride"], tuple(map(Collective, s["kinds"]))) for s in trainer["shapes"]]


def exchanges_of(shapes: Sequence[GroupShape], gpus_per_node: int, num_nodes: int) -> list[Exchange]:
    """Everything that is timed, each once: the shapes of layouts, the pairs that tell nodes apart, and what calibrate
    measures of links."""
    found = [
        *(exchange for shape in shapes for exchange in _of_shape(shape)),
        *_telling_apart(gpus_per_node, num_nodes),
        *_of_links(gpus_per_node, num_nodes),
    ]
    return list(dict.fromkeys(found))


def _of_shape(shape: GroupShape) -> Iterator[Exchange]:
    """A large message of each collective, and a small one of the first."""
    yield Exchange(shape.kinds[0], shape.num_ranks, shape.stride, is_small=True)
    yield from (Exchange(kind, shape.num_ranks, shape.stride) for kind in shape.kinds)


def _telling_apart(gpus_per_node: int, num_nodes: int) -> Iterator[Exchange]:
    """Each node by itself, and with at least two others in turn, so that a slow one can be told from its partners.

    On one node the same with ranks. An odd number needs three turns, since one is left over in each.
    """
    unit, count = (gpus_per_node, num_nodes) if num_nodes > 1 else (1, gpus_per_node)
    if unit > 1:
        yield Exchange(Collective.ALL_REDUCE, unit, 1)
    turns = 1 if count == 2 else 2 + count % 2
    if count > 1:
        yield from (Exchange(Collective.ALL_REDUCE, 2, unit, shift=turn * unit) for turn in range(turns))


def _of_links(gpus_per_node: int, num_nodes: int) -> Iterator[Exchange]:
    """Exchanges from which the links follow, as in calibrate."""
    for size in block_sizes(gpus_per_node, num_nodes):
        yield Exchange(Collective.ALL_REDUCE, size, 1, is_small=True)
        yield from (Exchange(kind, size, 1) for kind in collectives_of(size, gpus_per_node))
    for apart in pair_distances(gpus_per_node, num_nodes):
        yield Exchange(Collective.PING_PONG, 2, apart, is_small=True, is_alone=True)
        yield Exchange(Collective.PING_PONG, 2, apart, is_alone=True)
        yield Exchange(Collective.PING_PONG, 2, apart)
