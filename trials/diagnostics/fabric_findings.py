"""Judgement of a fabric check: slow groups, the nodes that explain them, and links slower than promised. Pure, standard
library only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, median_high

from search_spaces.hardware.cluster import Cluster
from search_spaces.hardware.links import Links
from trials.diagnostics.calibration import Collective, Measurements
from trials.diagnostics.fabric import Exchange, ExchangeTime, FabricTimes, GroupShape
from trials.files.text import plural

SLOW_SHARE = 0.7
"""Share of the bandwidth of the others, or of what the links promise, below which a group is slow."""
MIN_SLOW_GROUPS = 2
"""Slow groups of different partners or shapes that a node has to explain before it is named."""


@dataclass(frozen=True)
class SlowShape:
    """An exchange whose middle group reached `gb_per_s` where the links promise `promised_gb_per_s`."""

    exchange: Exchange
    gb_per_s: float
    promised_gb_per_s: float

    @property
    def sentence(self) -> str:
        share = self.gb_per_s / self.promised_gb_per_s
        promised = f"{share:.0%} of the {self.promised_gb_per_s:.3g} that the links promise"
        return f"{self.exchange.words}: {self.gb_per_s:.3g} GB/s, {promised}, in most groups"


@dataclass(frozen=True)
class SlowNode:
    """A node, or a rank where there is one node: the slow groups that it explains, and the middle of their shares of
    the others' bandwidth."""

    name: str
    num_groups: int
    share: float

    @property
    def sentence(self) -> str:
        reached = f"{plural(self.num_groups, 'slow group')}, which reach {self.share:.0%} of the others' bandwidth"
        return f"{self.name} is slow: it explains {reached}"


@dataclass(frozen=True)
class FabricFindings:
    """Findings about nodes, or ranks (`rank 3`) where there is one node.

    `slow` are those that explain several slow groups. Of each of `one_of` at least one is slow, and which one cannot be
    told. `unexplained` are the parties of single slow groups. `slow_shapes` are slower than promised in most groups,
    for which no single node is to blame.
    """

    slow: tuple[SlowNode, ...] = ()
    one_of: tuple[tuple[str, ...], ...] = ()
    unexplained: tuple[tuple[str, ...], ...] = ()
    slow_shapes: tuple[SlowShape, ...] = ()

    @property
    def slow_names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.slow)

    def sentences(self) -> list[str]:
        """A sentence for each finding."""
        return [
            *(node.sentence for node in self.slow),
            *(f"one of {_listed(names)} is slow: they are in the same slow groups" for names in self.one_of),
            *(f"a group of {_listed(names)} is slow, and no other group of one of them" for names in self.unexplained),
            *(shape.sentence for shape in self.slow_shapes),
        ]


@dataclass(frozen=True)
class _Evidence:
    """Groups of one shape between the same parties, by the slowest of them: its share of the others' bandwidth, and
    whether that was low in most of its collectives. So one disturbed measurement accuses nobody."""

    shape: tuple[int, int]
    parties: frozenset[str]
    is_slow: bool
    share: float


def judge(found: FabricTimes, cluster: Cluster) -> FabricFindings:
    """Findings on the ranks of `cluster`, whose links are what is promised."""
    several = len(set(found.nodes)) > 1
    names = found.nodes if several else tuple(f"rank {rank}" for rank in range(len(found.nodes)))
    slow, one_of, unexplained = _explain(_evidence(found, names, cluster.gpus_per_node))
    return FabricFindings(slow, one_of, unexplained, tuple(_slow_shapes(found, cluster)))


def speeds(found: FabricTimes, shapes: Sequence[GroupShape]) -> list[str]:
    """Bandwidth and latency of the groups of these shapes, a sentence for each collective."""
    latency_us = {
        (time.exchange.num_ranks, time.exchange.stride): 1e6 * median(time.seconds)
        for time in reversed(found.times)
        if time.exchange.is_small and not time.exchange.is_alone
    }
    told = []
    for time in found.times:
        exchange, rates = time.exchange, [time.gb_per_s(seconds) for seconds in time.seconds]
        shape = exchange.num_ranks, exchange.stride
        is_asked = any((known.num_ranks, known.stride) == shape and exchange.kind in known.kinds for known in shapes)
        if is_asked and not exchange.is_small and exchange.shift == 0:
            slowest = f", {min(rates):.3g} in the slowest of {len(rates)} groups" if len(rates) > 1 else ""
            told.append(f"{exchange.words}: {median(rates):.3g} GB/s{slowest}; {latency_us[shape]:.3g} us of latency")
    return told


def links_measurements(found: FabricTimes, cluster: Cluster, slow: Sequence[str]) -> Measurements:
    """The times as calibrate takes them, of groups without slow nodes where there are any."""
    groups, pairs = [], []
    for time in found.times:
        seconds = _clean_s(time, found, cluster.gpus_per_node, slow)
        exchange = time.exchange
        if seconds is None:
            continue
        if exchange.kind is Collective.PING_PONG:
            pairs.append(time.pair_time(seconds))
        elif exchange.stride == 1 and exchange.shift == 0:
            groups.append(time.group_time(seconds))
    return Measurements(groups=tuple(groups), pairs=tuple(pairs), fingerprint=found.fingerprint)


def promised_gb_per_s(links: Links, exchange: Exchange, gpus_per_node: int) -> float:
    """Bandwidth that the links promise each rank of an exchange.

    An all-to-all is bounded by messages between single ranks where it leaves the ring's links, and by what each rank
    sends over the fabric, as in the cost model.
    """
    ranks, stride = exchange.num_ranks, exchange.stride
    if exchange.kind in (Collective.RING_SHIFT, Collective.PING_PONG):
        return links.p2p_gb_per_s(ranks, stride, gpus_per_node)
    ring = links.collective_gb_per_s(ranks, stride, gpus_per_node, exchange.kind is not Collective.ALL_REDUCE)
    if exchange.kind is not Collective.ALL_TO_ALL:
        return ring
    inside = max(1, links.ranks_per_domain(gpus_per_node) // stride)
    if links.fabric is not None and ranks > inside:
        ring = min(ring, links.fabric.all_to_all_rate(gpus_per_node) * (ranks - 1) / (ranks - inside))
    return min(ring, links.p2p_gb_per_s(ranks, stride, gpus_per_node))


def _clean_s(time: ExchangeTime, found: FabricTimes, gpus_per_node: int, slow: Sequence[str]) -> float | None:
    """Seconds of the slowest group without a slow node, of all where each has one; None without groups."""
    groups = time.exchange.groups(gpus_per_node, len(found.nodes))
    known = list(zip(groups, time.seconds, strict=True))
    clean = [seconds for ranks, seconds in known if not {found.nodes[rank] for rank in ranks} & {*slow}]
    return max(clean or time.seconds, default=None)


def _evidence(found: FabricTimes, names: Sequence[str], gpus_per_node: int) -> list[_Evidence]:
    """Slow and good groups of large messages, compared with the others of their shape."""
    shares: dict[tuple[tuple[int, int], tuple[int, ...]], list[float]] = {}
    for kind_times in _by_shape(found.times):
        rates = [
            (ranks, time.gb_per_s(seconds))
            for time in kind_times
            for ranks, seconds in zip(time.exchange.groups(gpus_per_node, len(found.nodes)), time.seconds, strict=True)
        ]
        if len(rates) < 2:
            continue
        usual = _upper_quartile([rate for _, rate in rates])
        shape = kind_times[0].exchange.num_ranks, kind_times[0].exchange.stride
        for ranks, rate in rates:
            shares.setdefault((shape, ranks), []).append(rate / usual)
    merged: dict[tuple[tuple[int, int], frozenset[str]], _Evidence] = {}
    for (shape, ranks), seen in shares.items():
        parties, share = frozenset(names[rank] for rank in ranks), median_high(seen)
        known = merged.get((shape, parties))
        if known is None or share < known.share:
            merged[shape, parties] = _Evidence(shape, parties, share < SLOW_SHARE, share)
    return list(merged.values())


def _by_shape(times: Iterable[ExchangeTime]) -> list[list[ExchangeTime]]:
    """Large exchanges that are comparable: of one collective, size and stride, whatever their shift."""
    found: dict[tuple[Collective, int, int, bool], list[ExchangeTime]] = {}
    for time in times:
        e = time.exchange
        if not e.is_small:
            found.setdefault((e.kind, e.num_ranks, e.stride, e.is_alone), []).append(time)
    return list(found.values())


def _upper_quartile(rates: Sequence[float]) -> float:
    """Rate of the faster groups. A median would be a slow one's where two of three pairs have the slow node."""
    return sorted(rates)[3 * len(rates) // 4]


def _explain(
    evidence: Sequence[_Evidence],
) -> tuple[tuple[SlowNode, ...], tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]:
    """Fewest parties that explain the slow groups, those that cannot be told apart, and slow groups left over.

    The party of most slow groups goes first, if more of its groups are slow than good.
    """
    left = [e for e in evidence if e.is_slow]
    slow: list[SlowNode] = []
    one_of: list[tuple[str, ...]] = []
    while left:
        parties = sorted({party for e in left for party in e.parties})
        ranked = {p: (sum(p in e.parties for e in left), _slow_share(p, evidence)) for p in parties}
        guilty = {p: rank for p, rank in ranked.items() if rank[0] >= MIN_SLOW_GROUPS and rank[1] > 0.5}
        if not guilty:
            break
        first = max(guilty, key=lambda p: guilty[p])
        explained = [e for e in left if first in e.parties]
        alike = tuple(p for p in guilty if guilty[p] == guilty[first] and all(p in e.parties for e in explained))
        if len(alike) == 1:
            slow.append(SlowNode(first, len(explained), median(e.share for e in explained)))
        else:
            one_of.append(alike)
        left = [e for e in left if not e.parties & {*alike}]
    rest = tuple(sorted({tuple(sorted(e.parties)) for e in left}))
    return tuple(slow), tuple(one_of), rest


def _slow_share(party: str, evidence: Sequence[_Evidence]) -> float:
    """Share of slow groups among those of a party that say something about it: not of shapes that it is always in."""
    telling = {e.shape for e in evidence if party not in e.parties}
    mine = [e for e in evidence if party in e.parties and (e.is_slow or e.shape in telling)]
    return sum(e.is_slow for e in mine) / len(mine)


def _slow_shapes(found: FabricTimes, cluster: Cluster) -> Iterable[SlowShape]:
    """Exchanges of which the middle group is slower than the links promise; none where they are unknown."""
    links = cluster.links_of_job(cluster.num_nodes)
    for times in _by_shape(found.times) if links is not None else ():
        exchange = times[0].exchange
        rate = median(time.gb_per_s(seconds) for time in times for seconds in time.seconds)
        promised = promised_gb_per_s(links, exchange, cluster.gpus_per_node)  # type: ignore[arg-type]
        if rate < SLOW_SHARE * promised:
            yield SlowShape(exchange, rate, promised)


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence, the first few of many."""
    shown, more = names[:6], len(names) - 6
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
