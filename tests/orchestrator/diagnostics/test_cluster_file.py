"""From measurements to a cluster file: link domains, the fabric, and reading it back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.diagnostics.cluster_file import (
    CalibrationContext,
    calibrated_cluster,
    cluster_file,
    is_written_by_calibrate,
)
from search_spaces.hardware.cluster import ACCELERATORS, Cluster, MeasuredSpeed
from search_spaces.hardware.links import Fabric, LinkDomain, Links
from search_spaces.schema.cluster_sections import ClusterSection
from search_spaces.schema.validation import validate
from search_spaces.schema.yaml_document import parse_document
from trials.diagnostics.calibration import (
    SMALL_BYTES,
    Collective,
    GroupTime,
    Measurements,
    PairTime,
    Product,
    ProductRate,
    block_sizes,
    pair_distances,
)

A100, CPU = ACCELERATORS["a100-80gb"], ACCELERATORS["cpu"]
LARGE = 2**30
FINGERPRINT = {"torch": "2.13.0", "python": "3.11.7", "device": "A100", "hosts": ["n1", "n2"]}


def measured(
    cluster: Cluster, bus: dict[int, float], small_us: dict[int, float], alone: float = 20.0, together: float = 10.0
) -> Measurements:
    """Measurements of ranks whose all-reduces reach `bus` GB/s by size, and gathers 0.8 of it.

    All pairs at once reach `together` GB/s each; a single pair n ranks apart reaches n x `alone`, so that each differs.
    """
    groups, pairs = [], []
    for size in block_sizes(cluster.gpus_per_node, cluster.num_nodes):
        share = (size - 1) / size * LARGE / bus[size] / 1e9
        groups += [
            GroupTime(Collective.ALL_REDUCE, size, SMALL_BYTES, small_us[size] * 1e-6),
            GroupTime(Collective.ALL_REDUCE, size, LARGE, 2 * share),
            GroupTime(Collective.ALL_GATHER, size, LARGE, share / 0.8),
        ]
    for apart in pair_distances(cluster.gpus_per_node, cluster.num_nodes):
        pairs += [
            PairTime(apart, True, SMALL_BYTES, 7e-6),
            PairTime(apart, True, LARGE, LARGE / (apart * alone) / 1e9),
            PairTime(apart, False, LARGE, LARGE / together / 1e9),
        ]
    products = (
        ProductRate(Product("square-2048", 2048, 2048, 2048), "fp32", 17.2),
        ProductRate(Product("square-8192", 8192, 8192, 8192), "fp32", 18.51234),
        ProductRate(Product("head", 2048, 2048, 2048), "fp32", 19.9),
        ProductRate(Product("square-8192", 8192, 8192, 8192), "bf16", 251.0),
    )
    return Measurements(products, 1702.0, 25.0, 22.5, tuple(groups), tuple(pairs), FINGERPRINT, "2026-11-21T22:00:00Z")


NODES = Cluster(A100, 8, 4)
BUS = {2: 200.0, 4: 230.0, 8: 231.0, 16: 90.0, 32: 80.0}
SMALL_US = {2: 10.0, 4: 12.0, 8: 15.0, 16: 25.0, 32: 39.0}


def text_of(cluster: Cluster, found: Measurements) -> str:
    return cluster_file(calibrated_cluster(cluster, found), found, CalibrationContext("mine", "slurm", cluster))


def read(text: str) -> Cluster:
    return validate(ClusterSection, parse_document(text.encode(), "mine.yaml", Path())).cluster()


def test_what_was_measured_beside_other_work_says_so_in_its_file():
    found = measured(NODES, BUS, SMALL_US)
    cluster = calibrated_cluster(NODES, found)
    quiet, busy = (
        cluster_file(cluster, found, CalibrationContext("mine", "local", NODES, words))
        for words in (None, "it is busy")
    )
    assert [line for line in busy.splitlines() if line not in quiet.splitlines()] == ["# NOTE: it is busy"]
    assert read(busy) == read(quiet)


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("gpus_per_node", [1, 2, 6, 8])
def test_the_search_file_reads_what_was_written(gpus_per_node, num_nodes):
    cluster = Cluster(A100, gpus_per_node, num_nodes)
    sizes = block_sizes(gpus_per_node, num_nodes)
    found = measured(cluster, {size: 123.456789 / size for size in sizes}, {size: 1.23456 * size for size in sizes})
    calibrated = calibrated_cluster(cluster, found)
    again = read(text_of(cluster, found))
    assert again == cluster
    assert again.given_links == calibrated.given_links
    assert again.measured == calibrated.measured
    assert again.measured is not None


def test_a_domain_is_kept_where_its_bandwidth_is_notably_another():
    links = calibrated_cluster(NODES, measured(NODES, BUS, SMALL_US)).links
    assert [(d.name, d.num_ranks) for d in links.domains] == [("node", 8)]
    two_kinds = measured(NODES, BUS | {2: 400.0, 4: 240.0}, SMALL_US)
    links = calibrated_cluster(NODES, two_kinds).links
    assert [(d.name, d.num_ranks, d.bus_gb_per_s) for d in links.domains] == [("pair", 2, 400), ("node", 8, 231)]
    # The middle one is near its outer neighbour, the inner one near the middle one only.
    rising = calibrated_cluster(NODES, measured(NODES, BUS | {2: 180.0, 4: 205.0}, SMALL_US)).links
    assert [(d.name, d.bus_gb_per_s) for d in rising.domains] == [("pair", 180), ("node", 231)]


def test_a_domain_has_the_latency_of_its_own_and_the_pair_that_leaves_the_block_inside_it():
    pair, node = calibrated_cluster(NODES, measured(NODES, BUS | {2: 400.0}, SMALL_US)).links.domains
    assert (pair.latency_us, node.latency_us) == (10.0, 15.0)
    assert (pair.p2p_gb_per_s, node.p2p_gb_per_s) == (20.0, 80.0)
    assert (pair.gather_gb_per_s, node.gather_gb_per_s) == (320.0, 184.8)


def test_the_fabric_predicts_the_exchanges_it_was_measured_by():
    links = calibrated_cluster(NODES, measured(NODES, BUS, SMALL_US)).links
    assert links.fabric == Fabric(88.89, 6.0, ((2, 90.0), (4, 80.0)), 160.0, ((2, 72.0), (4, 64.0)))
    # All ranks of a node at once: 8 pairs with 10 GB/s each. A small all-reduce of all 32 ranks: 39 us.
    assert links.p2p_gb_per_s(2, 8, 8) == pytest.approx(10.0, rel=1e-3)
    assert links.latency_us(32, 1, 8) == pytest.approx(39.0, rel=1e-3)
    assert links.collective_gb_per_s(32, 1, 8) == 80.0
    assert links.collective_gb_per_s(32, 1, 8, gathers=True) == 64.0


def test_where_several_nodes_take_no_longer_than_one_a_hop_is_a_message():
    found = measured(NODES, BUS, SMALL_US | {32: 14.0})
    assert calibrated_cluster(NODES, found).links.fabric.latency_us == 7.0


def test_a_node_of_one_rank_has_no_domain_and_one_rank_alone_no_links():
    singles = Cluster(A100, 1, 2)
    links = calibrated_cluster(singles, measured(singles, {2: 20.0}, {2: 12.0})).links
    assert links.domains == ()
    assert links.fabric == Fabric(11.11, 6.0, ((2, 20.0),), 20.0, ((2, 16.0),))
    alone = Cluster(CPU, 1, 1)
    assert calibrated_cluster(alone, measured(alone, {}, {})).given_links is None
    assert "links" not in text_of(alone, measured(alone, {}, {}))


def test_products_are_rated_by_the_best_large_square_and_the_host_by_its_slower_direction():
    speed = calibrated_cluster(NODES, measured(NODES, BUS, SMALL_US)).measured
    assert speed == MeasuredSpeed((("fp32", 18.51), ("bf16", 251.0)), 1702.0, 22.5)


def test_what_was_not_measured_is_missing_and_not_nothing():
    found = replace(measured(NODES, BUS, SMALL_US), to_host_gb_per_s=None, from_host_gb_per_s=None)
    text = text_of(NODES, found)
    assert "host_gb_per_s" not in text
    assert "null" not in text
    assert read(text).measured == MeasuredSpeed((("fp32", 18.51), ("bf16", 251.0)), 1702.0)


def test_the_file_says_when_where_and_with_what_it_was_measured(tmp_path):
    text = text_of(NODES, measured(NODES, BUS, SMALL_US))
    for words in (
        "Measured 2026-11-21T22:00:00Z for the search mine, by its launcher slurm",
        "4 nodes x 8 a100-80gb: n1 n2",
        "torch 2.13.0",
        "19.9     head (2048 x 2048 x 2048)",
        "exchanges of up to 1024 MiB",
    ):
        assert words in text
    (tmp_path / "mine.yaml").write_text(text)
    assert is_written_by_calibrate(tmp_path / "mine.yaml")
    (tmp_path / "other.yaml").write_text("accelerator: cpu\n")
    assert not is_written_by_calibrate(tmp_path / "other.yaml")


def test_a_cluster_of_which_a_part_was_measured_keeps_its_size():
    found = measured(replace(NODES, num_nodes=2), BUS, SMALL_US)
    again = read(text_of(NODES, found))
    assert again.num_nodes == 4
    assert again.links.fabric.by_nodes == ((2, 90.0),)


RACKS = Links((LinkDomain("node", 4, 999, 9), LinkDomain("rack", 16, 999, 9)), Fabric(50, 5, p2p_gb_per_s=12))


@pytest.mark.parametrize(("num_nodes", "fastest"), [(2, 8), (4, 16), (8, 16)])
def test_link_domains_of_several_nodes_are_measured_as_such_and_the_fabric_beyond_them(num_nodes: int, fastest: int):
    cluster = Cluster(A100, 4, num_nodes, RACKS)
    bus = {2: 231.0, 4: 230.0, 8: 228.0, 16: 220.0, 32: 80.0}
    found = measured(cluster, bus, dict.fromkeys(bus, 20.0))
    links = calibrated_cluster(cluster, found).links
    node, rack = links.domains
    assert (node.num_ranks, rack.name, rack.num_ranks, rack.bus_gb_per_s) == (4, "rack", 16, bus[fastest])
    assert (rack.latency_us, rack.p2p_gb_per_s) == (20, 80)
    assert (links.fabric.nic_gb_per_s, links.fabric.p2p_gb_per_s) == (50, 12)
    assert links.fabric.by_nodes == (((8, 80.0),) if num_nodes == 8 else ())
    assert read(text_of(cluster, found)).links == links
