"""Fabric check (`parlay doctor --fabric`, `launcher.fabric_check`): the exchanges that ranks time, and their results
(docs/fabric.md).

All groups of an exchange communicate at the same time, as those of a layout do, and each is timed by itself. Standard
library only: the compute side reads this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from search_spaces.decoding import Bound, JsonObject, decode_value, encode
from trials.diagnostics.calibration import (
    SMALL_BYTES,
    Collective,
    GroupTime,
    PairTime,
    block_sizes,
    bus_gb_per_s,
    collectives_of,
    pair_distances,
    pair_of,
)
from trials.trial import Outcome

MAX_SHAPES = 12
"""Group shapes of the search that are checked: those of most layouts. On a GPU each has a communicator of its own."""


_Ranks = Annotated[int, Bound("1 or more", lambda number: number >= 1)]


@dataclass(frozen=True)
class GroupShape:
    """Groups of `num_ranks` ranks, `stride` apart, and the collectives that layouts run in them."""

    num_ranks: _Ranks
    stride: _Ranks
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
    num_ranks: _Ranks
    stride: _Ranks
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


_Bytes = Annotated[int, Bound("from 1 to 2^50", lambda size: 0 < size <= 2**50)]
_Seconds = Annotated[float, Bound("from 1e-9 to 1e6", lambda seconds: 1e-9 <= seconds <= 1e6)]


@dataclass(frozen=True)
class ExchangeTime:
    """Seconds of each group of an exchange, in the order of `Exchange.groups`, on its slowest rank."""

    exchange: Exchange
    num_bytes: _Bytes
    seconds: tuple[_Seconds, ...]

    def gb_per_s(self, seconds: float) -> float:
        """Bus bandwidth at which a group of these seconds communicated, in GB/s (1e9 bytes)."""
        return bus_gb_per_s(self.exchange.kind, self.exchange.num_ranks, self.num_bytes, seconds)

    def group_time(self, seconds: float | None = None) -> GroupTime:
        """The time of a collective as calibrate has it: these seconds, or the slowest group's."""
        return GroupTime(self.exchange.kind, self.exchange.num_ranks, self.num_bytes, seconds or max(self.seconds))

    def pair_time(self, seconds: float | None = None) -> PairTime:
        """The time of a ping-pong as calibrate has it: these seconds, or the slowest pair's."""
        exchange = self.exchange
        return PairTime(exchange.stride, exchange.is_alone, self.num_bytes, seconds or max(self.seconds))


@dataclass(frozen=True)
class FabricTimes(JsonObject):
    """`fabric` of a check's outcome: the node of each rank, and the time of every exchange. `fingerprint` is as in an
    outcome."""

    SCHEMA = "parlay.fabric/1"

    nodes: tuple[str, ...]
    times: tuple[ExchangeTime, ...]
    fingerprint: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, outcome: Outcome, trainer: Mapping[str, Any], gpus_per_node: int, num_nodes: int) -> FabricTimes:
        """The times that this check measured on `num_nodes` nodes; `trainer` is its spec's section.

        ValueError for times that are not those of its shapes on these nodes.
        """
        if outcome.fabric is None:
            raise ValueError("it has no times")
        found = cls.from_json(outcome.fabric)
        found._require_all(exchanges_of(shapes_of(trainer), gpus_per_node, num_nodes), gpus_per_node, num_nodes)
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


def fabric_check_section(shapes: Sequence[GroupShape]) -> dict[str, Any]:
    """The spec's `trainer` section for a check of these shapes."""
    return {"kind": "fabric_check", "shapes": encode(shapes)}


def shapes_of(trainer: Mapping[str, Any]) -> list[GroupShape]:
    """The inverse of `fabric_check_section`."""
    return list(decode_value(tuple[GroupShape, ...], trainer["shapes"], "shapes"))


def exchanges_of(shapes: Sequence[GroupShape], gpus_per_node: int, num_nodes: int) -> list[Exchange]:
    """Everything that is timed, each once: the shapes of layouts, the pairs that tell nodes apart, and what calibrate
    measures of links."""
    found = [
        *(exchange for shape in shapes for exchange in _of_shape(shape)),
        *_telling_apart(gpus_per_node, num_nodes),
        *group_exchanges(gpus_per_node, num_nodes),
        *pair_exchanges(gpus_per_node, num_nodes),
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


def group_exchanges(gpus_per_node: int, num_nodes: int) -> Iterator[Exchange]:
    """Small and large collectives over groups of every size, from which the links follow."""
    for size in block_sizes(gpus_per_node, num_nodes):
        yield Exchange(Collective.ALL_REDUCE, size, 1, is_small=True)
        yield from (Exchange(kind, size, 1) for kind in collectives_of(size, gpus_per_node))


def pair_exchanges(gpus_per_node: int, num_nodes: int) -> Iterator[Exchange]:
    """Messages across the boundary of every block, from which the links follow: of one pair a node, small and large,
    and of all pairs."""
    for apart in pair_distances(gpus_per_node, num_nodes):
        yield Exchange(Collective.PING_PONG, 2, apart, is_small=True, is_alone=True)
        yield Exchange(Collective.PING_PONG, 2, apart, is_alone=True)
        yield Exchange(Collective.PING_PONG, 2, apart)
