"""Exchanges of a fabric check, and its judgement: slow nodes, and shapes slower than promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.hardware.links import Fabric, LinkDomain, Links
from trials.diagnostics.calibration import Collective, bus_gb_per_s
from trials.diagnostics.fabric import (
    Exchange,
    ExchangeTime,
    FabricTimes,
    GroupShape,
    exchanges_of,
)
from trials.diagnostics.fabric_findings import judge, promised_gb_per_s

LINKS = Links((LinkDomain("node", 4, 200.0, 10.0),), Fabric(100.0, 5.0))
DATA = GroupShape(4, 4, (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER))
"""Data-parallel ranks of four nodes."""
SIZE = 2**30


def times(num_nodes: int, rate: Callable[[Exchange, tuple[int, ...]], float], gpus_per_node: int = 4) -> FabricTimes:
    """Times of a check in which a group reaches `rate` of what the links promise; nodes are n0, n1 ..."""
    world = gpus_per_node * num_nodes
    found = []
    for exchange in exchanges_of([DATA] if world >= DATA.block else [], gpus_per_node, num_nodes):
        promised = promised_gb_per_s(LINKS, exchange, gpus_per_node)
        groups = exchange.groups(gpus_per_node, world)
        size = 16 if exchange.is_small else SIZE
        one_s = bus_gb_per_s(exchange.kind, exchange.num_ranks, size, 1.0)
        found.append(ExchangeTime(exchange, size, tuple(one_s / promised / rate(exchange, g) for g in groups)))
    return FabricTimes(tuple(f"n{rank // gpus_per_node}" for rank in range(world)), tuple(found))


def slow_at(*nodes: int, share: float = 0.3) -> Callable[[Exchange, tuple[int, ...]], float]:
    return lambda exchange, ranks: share if {rank // 4 for rank in ranks} & {*nodes} else 1.0


def cluster(num_nodes: int, links: Links | None = LINKS) -> Cluster:
    return Cluster(ACCELERATORS["a100-80gb" if links else "cpu"], 4, num_nodes, given_links=links)


def among(*nodes: int) -> Callable[[tuple[int, ...]], bool]:
    return lambda ranks: {rank // 4 for rank in ranks} == {*nodes}


@pytest.mark.parametrize(
    ("num_nodes", "rate", "slow"),
    [
        *((number, slow_at(2), {"n2"}) for number in (3, 4, 8)),
        (8, slow_at(2, 3), {"n2", "n3"}),  # partners
        # One slow adapter:
        (4, lambda exchange, ranks: 0.4 if 9 in ranks and not among(2)(ranks) else 1.0, {"n2"}),
    ],
)
def test_slow_nodes_are_named_and_no_other(num_nodes, rate, slow):
    found = judge(times(num_nodes, rate), cluster(num_nodes))
    assert ({*found.slow_names}, found.one_of, found.unexplained) == (slow, (), ())
    if num_nodes == 3:
        assert found.sentences()[0].startswith("n2 is slow: it explains ")
        assert "30% of the others' bandwidth" in found.sentences()[0]


@pytest.mark.parametrize(
    ("num_nodes", "rate", "names"),
    [
        (6, lambda exchange, ranks: 0.3 if among(1, 2)(ranks) else 1.0, ("n1", "n2")),
        (2, lambda exchange, ranks: 0.3 if among(0, 1)(ranks) and 1 in ranks else 1.0, ("n0", "n1")),
    ],
    ids=["link", "some-groups"],
)
def test_what_is_slow_between_two_nodes_accuses_neither_of_them(num_nodes, rate, names):
    found = judge(times(num_nodes, rate), cluster(num_nodes))
    assert found.slow == ()
    assert {*found.one_of, *found.unexplained} == {names}


def test_one_disturbed_collective_accuses_nobody():
    disturbed = Exchange(Collective.REDUCE_SCATTER, DATA.num_ranks, DATA.stride)
    rates = times(4, lambda exchange, ranks: 0.2 if exchange == disturbed and ranks[0] == 0 else 1.0)
    assert judge(rates, cluster(4)).sentences() == []


def test_all_groups_slower_than_promised_are_nobodys_fault_and_their_shape_is_told():
    def rate(exchange, ranks):
        return 0.5 if (exchange.num_ranks, exchange.stride) == (4, 4) else 1.0

    found = judge(times(4, rate), cluster(4))
    assert (found.slow, found.one_of, found.unexplained) == ((), (), ())
    assert {shape.exchange.words for shape in found.slow_shapes} == {
        "all-reduce over 4 ranks 4 apart",
        "reduce-scatter over 4 ranks 4 apart",
    }
    assert "all-reduce over 4 ranks 4 apart: 11.2 GB/s, 50% of the 22.5 that the links promise" in found.sentences()[0]


@pytest.mark.parametrize(
    ("fabric", "promised"), [({}, 22.5), ({"kind": "efa"}, 8.75), ({"all_to_all_gb_per_s": 5.0}, 5.0)]
)
def test_an_all_to_all_is_promised_what_its_fabric_lets_out_of_a_node(fabric, promised):
    """Of 15 other ranks 12 are on other nodes, and a rank has a fourth of 100 GB/s."""
    links = replace(LINKS, fabric=replace(LINKS.fabric, **fabric))
    exchange = Exchange(Collective.ALL_TO_ALL, 16, 1)
    assert promised_gb_per_s(links, exchange, 4) == pytest.approx(promised * 15 / 12)


def test_without_known_links_groups_are_compared_with_each_other_and_on_one_node_ranks():
    found = judge(times(4, slow_at(1)), cluster(4, None))
    assert (found.slow_names, found.slow_shapes) == (("n1",), ())
    one_node = times(1, lambda exchange, ranks: 0.2 if 3 in ranks else 1.0)
    assert judge(one_node, cluster(1)).slow_names == ("rank 3",)


REDUCE = Collective.ALL_REDUCE


@pytest.mark.parametrize(
    ("exchange", "world", "groups"),
    [
        (Exchange(REDUCE, 2, 2), 8, [(0, 2), (1, 3), (4, 6), (5, 7)]),
        (Exchange(REDUCE, 4, 1), 6, [(0, 1, 2, 3)]),
        (Exchange(REDUCE, 2, 2, shift=2), 8, [(2, 4), (3, 5), (6, 0), (7, 1)]),
        (Exchange(REDUCE, 2, 1, shift=2), 3, [(2, 0)]),
        (Exchange(Collective.PING_PONG, 2, 2, is_alone=True), 8, [(0, 2), (4, 6)]),
    ],
)
def test_the_groups_of_an_exchange(exchange, world, groups):
    assert exchange.groups(gpus_per_node=2, world_size=world) == groups


@pytest.mark.parametrize("num_nodes", [3, 4, 5, 8, 9])
def test_each_node_is_by_itself_and_with_two_others(num_nodes):
    partners: dict[int, set[int]] = {node: set() for node in range(num_nodes)}
    for exchange in exchanges_of([], 4, num_nodes):
        if exchange.kind is REDUCE and exchange.num_ranks == 2 and exchange.stride == 4:
            for first, second in exchange.groups(4, 4 * num_nodes):
                partners[first // 4].add(second // 4)
                partners[second // 4].add(first // 4)
    assert all(len(others) >= 2 for others in partners.values())
    assert Exchange(REDUCE, 4, 1) in exchanges_of([], 4, num_nodes)
