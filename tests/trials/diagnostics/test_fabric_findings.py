"""Judgement of a fabric check: which node explains the slow groups, and which shapes are slower than promised."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.hardware.links import Fabric, LinkDomain, Links
from trials.diagnostics.calibration import Collective, Measurements, bus_gb_per_s
from trials.diagnostics.fabric import Exchange, ExchangeTime, FabricTimes, GroupShape, exchanges_of
from trials.diagnostics.fabric_findings import judge, links_measurements, promised_gb_per_s

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


@pytest.mark.parametrize("num_nodes", [3, 4, 5, 8])
def test_a_slow_node_is_named_and_no_other(num_nodes):
    found = judge(times(num_nodes, slow_at(2)), cluster(num_nodes))
    assert (found.slow_names, found.one_of, found.unexplained) == (("n2",), (), ())
    assert found.sentences()[0].startswith("n2 is slow: it explains ")
    assert "30% of the others' bandwidth" in found.sentences()[0]


def test_two_slow_nodes_are_named_also_where_they_are_partners():
    assert set(judge(times(8, slow_at(2, 3)), cluster(8)).slow_names) == {"n2", "n3"}


def test_a_node_with_one_slow_adapter_is_named():
    def rate(exchange, ranks):
        return 0.4 if 9 in ranks and {rank // 4 for rank in ranks} != {2} else 1.0

    assert judge(times(4, rate), cluster(4)).slow_names == ("n2",)


def test_a_link_between_two_nodes_accuses_neither_of_them():
    def rate(exchange, ranks):
        return 0.3 if {rank // 4 for rank in ranks} == {1, 2} else 1.0

    found = judge(times(6, rate), cluster(6))
    assert found.slow == ()
    assert found.one_of + found.unexplained == (("n1", "n2"),)


def test_one_disturbed_collective_accuses_nobody():
    disturbed = Exchange(Collective.REDUCE_SCATTER, DATA.num_ranks, DATA.stride)

    def rate(exchange, ranks):
        return 0.2 if exchange == disturbed and ranks[0] == 0 else 1.0

    found = judge(times(4, rate), cluster(4))
    assert found.sentences() == []


def test_of_two_nodes_whose_groups_between_them_differ_it_is_one_or_the_other():
    def rate(exchange, ranks):
        return 0.3 if {rank // 4 for rank in ranks} == {0, 1} and 1 in ranks else 1.0

    found = judge(times(2, rate), cluster(2))
    assert found.slow == ()
    assert {*found.one_of, *found.unexplained} == {("n0", "n1")}


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


def test_without_known_links_groups_are_compared_with_each_other_alone():
    found = judge(times(4, slow_at(1)), cluster(4, None))
    assert (found.slow_names, found.slow_shapes) == (("n1",), ())


def test_on_one_node_it_is_the_rank_that_is_named():
    one_node = times(1, lambda exchange, ranks: 0.2 if 3 in ranks else 1.0)
    assert judge(one_node, cluster(1)).slow_names == ("rank 3",)


def test_links_are_measured_by_groups_without_the_slow_nodes():
    found = times(4, slow_at(2))
    clean = links_measurements(found, cluster(4), ["n2"])
    assert bus(clean, 8) == pytest.approx(22.5 * 4)
    assert bus(links_measurements(found, cluster(4), []), 8) == pytest.approx(22.5 * 4 * 0.3)
    assert bus(clean, 16) == pytest.approx(22.5 * 4 * 0.3)  # no group of all nodes is without it


def bus(found: Measurements, size: int) -> float:
    [time] = [
        time
        for time in found.groups
        if (time.num_ranks, time.num_bytes, time.kind) == (size, SIZE, Collective.ALL_REDUCE)
    ]
    return time.bus_gb_per_s
