"""Groups of an exchange, and the exchanges of a check."""

from __future__ import annotations

import pytest

from trials.diagnostics.calibration import Collective
from trials.diagnostics.fabric import (
    Exchange,
    ExchangeTime,
    FabricTimes,
    GroupShape,
    exchanges_of,
    shapes_of,
    trainer_of,
)

REDUCE = Collective.ALL_REDUCE


@pytest.mark.parametrize(
    ("exchange", "world", "groups"),
    [
        (Exchange(REDUCE, 2, 1), 4, [(0, 1), (2, 3)]),
        (Exchange(REDUCE, 2, 2), 4, [(0, 2), (1, 3)]),
        (Exchange(REDUCE, 2, 2), 8, [(0, 2), (1, 3), (4, 6), (5, 7)]),
        (Exchange(REDUCE, 4, 1), 6, [(0, 1, 2, 3)]),
        (Exchange(REDUCE, 2, 2, shift=2), 8, [(2, 4), (3, 5), (6, 0), (7, 1)]),
        (Exchange(REDUCE, 2, 1, shift=2), 3, [(2, 0)]),
        (Exchange(Collective.PING_PONG, 2, 2), 8, [(0, 2), (1, 3), (4, 6), (5, 7)]),
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


def test_each_exchange_is_timed_once_whatever_asks_for_it():
    shape = GroupShape(4, 1, (REDUCE, Collective.ALL_GATHER))
    assert exchanges_of([shape], 4, 2)[:3] == [
        Exchange(REDUCE, 4, 1, is_small=True),
        Exchange(REDUCE, 4, 1),
        Exchange(Collective.ALL_GATHER, 4, 1),
    ]
    assert sorted(map(str, exchanges_of([shape], 4, 2))) == sorted(map(str, exchanges_of([], 4, 2)))


def test_shapes_and_times_are_read_back():
    shapes = [GroupShape(8, 4, (Collective.RING_SHIFT, REDUCE))]
    assert shapes_of(trainer_of(shapes)) == shapes
    found = FabricTimes(("n1", "n2"), (ExchangeTime(Exchange(REDUCE, 2, 1), 64, (0.5,)),), {"torch": "2.13.0"})
    assert FabricTimes.from_json(found.to_json()) == found


def test_bandwidths_are_counted_as_by_nccls_tests():
    def rate(kind, ranks):
        return ExchangeTime(Exchange(kind, ranks, 1), 10**9, (1.0,)).gb_per_s(1.0)

    assert (rate(REDUCE, 4), rate(Collective.ALL_TO_ALL, 4), rate(Collective.RING_SHIFT, 4)) == (1.5, 0.75, 1.0)
