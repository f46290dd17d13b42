from __future__ import annotations

import math

import pytest

from search_spaces.decoding import decode
from search_spaces.errors import InputError
from search_spaces.hardware.links import NIC_EFFICIENCY, Bandwidth, Fabric, LinkDomain, Links

# Numbers that are easy to tell apart: modules of two dies, four of them in a node, one NIC a module.
PAIR = LinkDomain("die-pair", 2, 120, latency_us=4)
NODE = LinkDomain("node", 8, 80, latency_us=10)
FABRIC = Fabric(nic_gb_per_s=100, latency_us=5, by_nodes=(Bandwidth(2, 64), Bandwidth(8, 16)), p2p_gb_per_s=7)
LINKS = Links((PAIR, NODE), FABRIC)
SWITCHED = Links((LinkDomain("node", 8, 240, latency_us=10),), Fabric(nic_gb_per_s=200, latency_us=5))


# Nodes of four, four of them in a rack whose links reach every rank; 20 GB/s of NICs a node.
RACKS = Links((LinkDomain("node", 4, 100, 6), LinkDomain("rack", 16, 90, 9)), Fabric(20, 5, p2p_gb_per_s=5))
WIDE = Links(SWITCHED.domains, Fabric(nic_gb_per_s=4000, latency_us=5))
OVER_NICS = 200 * NIC_EFFICIENCY
OF_A_RACK = 20 * NIC_EFFICIENCY


@pytest.mark.parametrize(
    ("links", "num_ranks", "stride", "bandwidth"),
    [
        (LINKS, 2, 1, 120),  # the dies of a module
        (LINKS, 4, 1, 80),  # half a node, one ring through each module
        (LINKS, 4, 2, 40),  # one die of each module: its sibling's ring takes the same way out
        (LINKS, 16, 1, 64),  # two whole nodes
        (LINKS, 8, 2, 32),  # four ranks of each node, two rings through its NICs
        (LINKS, 8, 8, 8),  # the same over eight nodes: a ring of eight ranks, not of eight nodes
        # Behind one switch every rank has its own way.
        *((SWITCHED, ranks, stride, 240) for ranks, stride in ((2, 1), (4, 1), (4, 2), (2, 4), (8, 1))),
        # A group that does not fit the nodes evenly is as slow as those that span two.
        *((SWITCHED, ranks, stride, OVER_NICS / stride) for ranks, stride in ((3, 1), (6, 1), (3, 2), (12, 1))),
        (WIDE, 16, 1, 240),  # two whole nodes are no faster than one
        (WIDE, 2, 8, 30),
        (RACKS, 8, 1, 90),  # two nodes of a rack
        (RACKS, 4, 4, 90),  # one rank of each node: each has links of its own
        (RACKS, 32, 1, 4 * OF_A_RACK),  # two racks: the NICs of all nodes of a rack
        (RACKS, 2, 16, OF_A_RACK / 4),  # sixteen do
    ],
)
def test_groups_that_talk_at_once_share_the_way_out_of_module_node_and_rack(links, num_ranks, stride, bandwidth):
    per_node = 4 if links is RACKS else 8
    assert links.collective_gb_per_s(num_ranks, stride, gpus_per_node=per_node) == pytest.approx(bandwidth)


def test_where_links_lead_from_device_to_device_a_ring_is_faster_than_two_of_its_ranks():
    mesh = Links((LinkDomain("quad", 4, 80, 6, p2p_gb_per_s=20),))
    assert mesh.collective_gb_per_s(4, 1, gpus_per_node=4) == 80
    assert mesh.collective_gb_per_s(2, 1, gpus_per_node=4) == mesh.collective_gb_per_s(2, 2, gpus_per_node=4) == 20
    assert mesh.p2p_gb_per_s(4, 1, gpus_per_node=4) == 20


def test_one_rank_alone_waits_for_nobody_and_nodes_of_one_gpu_have_a_fabric_alone():
    alone = Links(())
    assert alone.collective_gb_per_s(1, 8, gpus_per_node=1) == alone.p2p_gb_per_s(1, 8, gpus_per_node=1) == math.inf
    assert alone.latency_us(1, 8, gpus_per_node=1) == 0
    links = Links((), Fabric(nic_gb_per_s=10, latency_us=5))
    assert links.collective_gb_per_s(4, 2, gpus_per_node=1) == pytest.approx(10 * NIC_EFFICIENCY)
    assert links.latency_us(4, 2, gpus_per_node=1) == 20
    fabric = Fabric(nic_gb_per_s=100, latency_us=5)
    assert fabric.bus_gb_per_s(2) == fabric.bus_gb_per_s(512) == 100 * NIC_EFFICIENCY


@pytest.mark.parametrize(
    ("num_nodes", "bandwidth"), [(2, 64), (4, 32), (8, 16), (3, 64 * 1.5**-1), (6, 64 / 3), (64, 16)]
)
def test_between_measured_numbers_of_nodes_it_is_a_power_law_and_beyond_them_constant(num_nodes: int, bandwidth: float):
    assert FABRIC.bus_gb_per_s(num_nodes) == pytest.approx(bandwidth)


def test_gathers_are_as_fast_as_an_all_reduce_but_where_somebody_measured_less():
    assert LINKS.collective_gb_per_s(16, 1, gpus_per_node=8, gathers=True) == 64
    node = LinkDomain("node", 8, 80, latency_us=10, gather_gb_per_s=50)
    measured = Links((PAIR, node), Fabric(100, 5, by_nodes=(Bandwidth(2, 64, 32), Bandwidth(8, 16, 8))))
    assert measured.collective_gb_per_s(8, 1, gpus_per_node=8, gathers=True) == 50
    assert measured.collective_gb_per_s(4, 2, gpus_per_node=8, gathers=True) == 25
    assert measured.collective_gb_per_s(16, 1, gpus_per_node=8, gathers=True) == 32
    assert measured.collective_gb_per_s(32, 1, gpus_per_node=8, gathers=True) == pytest.approx(16)
    assert measured.collective_gb_per_s(16, 1, gpus_per_node=8) == 64
    assert decode(Links, measured.to_json()) == measured


@pytest.mark.parametrize(
    ("num_ranks", "stride", "latency_us"),
    [(2, 1, 4), (4, 1, 10), (4, 2, 10), (16, 1, 10 + 2 * 5), (64, 1, 10 + 6 * 5), (5, 8, 6 * 5), (8, 4, 10 + 4 * 5)],
)
def test_latency_across_nodes_is_a_nodes_and_a_tree_over_the_nodes(num_ranks: int, stride: int, latency_us: float):
    assert LINKS.latency_us(num_ranks, stride, gpus_per_node=8) == latency_us


@pytest.mark.parametrize(
    ("links", "num_ranks", "stride", "bandwidth"),
    [
        (LINKS, 2, 1, 120),
        (LINKS, 4, 2, 40),
        (LINKS, 2, 8, 7),  # eight pairs at once could have 11.25, one pair reaches 7
        (LINKS, 8, 2, 7),  # the stage that crosses to the next node is the slowest
        (SWITCHED, 2, 8, OVER_NICS / 8),  # pairs that cross at once share the NICs where nothing else bounds them
    ],
)
def test_a_pipeline_is_as_slow_as_its_slowest_crossing(links, num_ranks, stride, bandwidth):
    assert links.p2p_gb_per_s(num_ranks, stride, gpus_per_node=8) == pytest.approx(bandwidth)


def test_domains_that_do_not_nest_are_refused():
    with pytest.raises(InputError) as caught:
        Links((LinkDomain("triple", 3, 10, 1), NODE))
    problem = caught.value.problems[0]
    assert (problem.key, problem.value) == ("domains[1].num_ranks", 8)
    for inner_to_outer in ((NODE, PAIR), (NODE, NODE)):
        with pytest.raises(InputError, match="each a multiple of the one before"):
            Links(inner_to_outer)


@pytest.mark.parametrize("first", [4, 2])
def test_numbers_of_nodes_rise(first: int):
    with pytest.raises(InputError, match="each number of nodes once, in rising order"):
        Fabric(nic_gb_per_s=10, latency_us=1, by_nodes=(Bandwidth(first, 10.0), Bandwidth(2, 20.0)))


@pytest.mark.parametrize("bandwidth", [0, -1, math.inf, math.nan])
def test_a_bandwidth_is_positive_and_finite(bandwidth: float):
    with pytest.raises(InputError, match="more than 0"):
        LinkDomain("node", 8, bandwidth, 1)
    with pytest.raises(InputError, match="more than 0"):
        Bandwidth(2, bandwidth)


def test_links_written_down_are_read_back_the_same():
    assert decode(Links, LINKS.to_json()) == LINKS
    assert decode(Links, Links(()).to_json()) == Links(())


def test_messages_latencies_and_measured_curves_know_the_domain_of_several_nodes():
    assert RACKS.p2p_gb_per_s(4, 4, gpus_per_node=4) == 90
    assert RACKS.p2p_gb_per_s(2, 16, gpus_per_node=4) == pytest.approx(20 * NIC_EFFICIENCY / 4)
    assert RACKS.latency_us(16, 1, gpus_per_node=4) == 9
    assert RACKS.latency_us(32, 1, gpus_per_node=4) == 9 + 2 * 5
    assert RACKS.latency_us(4, 16, gpus_per_node=4) == 4 * 5
    measured = Links(RACKS.domains, Fabric(20, 5, by_nodes=(Bandwidth(2, 88.0), Bandwidth(8, 50.0))))
    assert measured.collective_gb_per_s(32, 1, gpus_per_node=4) == pytest.approx(50)
    assert measured.collective_gb_per_s(8, 4, gpus_per_node=4) == pytest.approx(20 * NIC_EFFICIENCY)


def test_a_job_has_the_domains_that_divide_its_part_of_the_outermost():
    three = Links((LinkDomain("pair", 2, 120, 4), LinkDomain("shelf", 6, 110, 5), LinkDomain("rack", 24, 90, 9)))
    assert [d.num_ranks for d in three.for_job(12, gpus_per_node=2).domains] == [2, 6, 24]
    assert [d.num_ranks for d in three.for_job(4, gpus_per_node=2).domains] == [2, 8]
    assert [d.num_ranks for d in three.for_job(1, gpus_per_node=2).domains] == [2]
    assert three.for_job(1, gpus_per_node=1).domains == ()
    assert LINKS.for_job(3, gpus_per_node=8) == LINKS
