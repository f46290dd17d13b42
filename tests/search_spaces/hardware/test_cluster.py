from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster, MeasuredSpeed
from search_spaces.hardware.links import Bandwidth, Fabric, LinkDomain, Links
from search_spaces.hardware.memory_headroom import CONTEXT_GIB, MemoryHeadroom, rank_memory_gib
from search_spaces.schema.cluster_sections import ClusterSection
from search_spaces.schema.validation import validate
from search_spaces.schema.yaml_document import parse_document

A100S = Cluster(ACCELERATORS["a100-80gb"], gpus_per_node=8, num_nodes=4)
OWN = Links((LinkDomain("node", 8, 100, 9),), Fabric(50, 4, by_nodes=(Bandwidth(2, 40.0),)))
REACHED = MeasuredSpeed({"fp32": 18.5, "bf16": 260.0}, memory_gb_per_s=1700.0)


@pytest.mark.parametrize("name", ACCELERATORS)
def test_what_is_known_of_an_accelerator_is_in_the_range_of_such_devices(name: str):
    a = ACCELERATORS[name]
    if name == "cpu":
        # The host's own matter: nothing is known of it before it is measured.
        assert a == replace(a, memory_gib=None, peak_flops={}, memory_gb_per_s=None, host_gb_per_s=None)
        return
    assert 300 <= a.memory_gb_per_s <= 8000
    assert a.usable_memory_gib is None or 0.9 * a.memory_gib < a.usable_memory_gib < a.memory_gib
    assert 12 <= a.host_gb_per_s <= 450
    assert a.gemm_share is None or 0.3 <= a.gemm_share <= 0.8
    assert a.lacks_bf16 == (a.peak_flops_for("bf16") is None)
    assert a.peak_flops_for("fp8") in (None, pytest.approx(2 * a.peak_flops_for("fp16"), rel=0.01))
    assert (a.peak_flops_for("fp4") or math.inf) >= 2 * (a.peak_flops_for("fp8") or 0)
    assert a.peak_flops_for("fp32") < a.peak_flops_for("fp16")


def test_a_cluster_without_links_has_those_of_its_accelerators_usual_node_and_says_so():
    assert A100S.links_are_assumed
    assert A100S.links.domains[-1].num_ranks == 8
    own = replace(A100S, given_links=OWN)
    assert (own.links, own.links_are_assumed) == (OWN, False)
    host = Cluster(ACCELERATORS["cpu"], 4, 1)
    assert (host.links, host.links_are_assumed) == (None, False)


@pytest.mark.parametrize("name", [name for name in ACCELERATORS if name != "cpu"])
@pytest.mark.parametrize("gpus_per_node", [1, 2, 3, 4, 6, 8, 16])
def test_a_usual_node_is_assumed_in_every_size(name: str, gpus_per_node: int):
    links = Cluster(ACCELERATORS[name], gpus_per_node, 2).links
    node = links.for_job(1, gpus_per_node)
    assert (node.domains[-1].num_ranks if node.domains else 1) == gpus_per_node
    assert Cluster(ACCELERATORS[name], gpus_per_node, 2, links).links == links
    whole = Cluster(ACCELERATORS[name], 8, 2).links
    assert links.fabric.nic_gb_per_s == pytest.approx(whole.fabric.nic_gb_per_s * gpus_per_node / 8)


@pytest.mark.parametrize("links", [None, OWN])
def test_a_cluster_written_down_is_read_back_the_same(links: Links | None):
    cluster = replace(A100S, given_links=links)
    read = Cluster.from_json(json.loads(json.dumps(cluster.to_json())))
    assert (read, read.given_links) == (A100S, links), "links are what is known of a machine, not which one it is"
    assert hash(read) == hash(A100S)


def test_what_was_measured_is_written_down_and_read_back_and_makes_no_other_machine():
    cluster = replace(A100S, measured=REACHED)
    read = Cluster.from_json(json.loads(json.dumps(cluster.to_json())))
    assert (read, read.measured) == (A100S, REACHED)
    host = Cluster(ACCELERATORS["cpu"], 4, 1)
    assert not host.speed_is_known
    assert not replace(host, measured=MeasuredSpeed(memory_gb_per_s=8.0)).speed_is_known
    assert replace(host, measured=MeasuredSpeed({"fp32": 0.05})).speed_is_known
    assert A100S.speed_is_known


@pytest.mark.parametrize(
    "wrong", [{"matmul_tflops": {"fp32": 0.0}}, {"memory_gb_per_s": -1.0}, {"host_gb_per_s": float("inf")}]
)
def test_a_measured_speed_is_more_than_nothing(wrong: dict):
    with pytest.raises(InputError, match="more than 0"):
        MeasuredSpeed(**wrong)


HEAD = "accelerator: a100-80gb\ngpus_per_node: 8\nnum_nodes: 2\nlinks:\n"
NODE = "  domains: [{name: node, num_ranks: 8, bus_gb_per_s: 100, latency_us: 9}]\n"
FABRIC = "  fabric: {nic_gb_per_s: 50, latency_us: 4, by_nodes: [{num_nodes: 2, bus_gb_per_s: 40}]}\n"
RACK = NODE.replace("}]", "}, {name: rack, num_ranks: 24, bus_gb_per_s: 90, latency_us: 12}]")
WHOLE_NODES = "the last domain is a whole node, or several; a node of one GPU needs none"
MEASURED = "measured: {matmul_tflops: {bf16: 260}, memory_gb_per_s: 1700}\n"


def test_a_cluster_file_describes_its_links_also_of_several_nodes_and_says_what_ranks_reached():
    cluster = _cluster_in("schema: parlay.cluster/1\n" + HEAD + NODE + FABRIC + MEASURED)
    assert (cluster.links, cluster.links_are_assumed) == (OWN, False)
    assert cluster.measured == MeasuredSpeed({"bf16": 260.0}, 1700.0)
    cluster = _cluster_in(HEAD + RACK)
    assert (cluster.domain_nodes, cluster.nodes_per_domain(2)) == (3, 2)
    with pytest.raises(InputError, match="has no fabric, but num_nodes is 4"):
        replace(cluster, num_nodes=4)


@pytest.mark.parametrize(
    ("yaml", "key", "line", "rule"),
    [
        (HEAD + NODE + FABRIC + MEASURED.replace("260", "0"), "measured.matmul_tflops.bf16", 7, "more than 0"),
        (HEAD + NODE + FABRIC + MEASURED.replace("1700", ".nan"), "measured.memory_gb_per_s", 7, "a finite number"),
        (HEAD + NODE + FABRIC + MEASURED.replace("bf16", "fp8"), "measured.matmul_tflops.fp8", 7, "near keys: fp32"),
        ("schema: parlay.cluster/2\n" + HEAD + NODE + FABRIC, "schema", 1, "one of parlay.cluster/1"),
        (HEAD + NODE, "links.fabric", 4, "links of more nodes than the last domain has include a fabric"),
        (HEAD + FABRIC, "links.domains", 4, WHOLE_NODES),
        (HEAD + NODE.replace("num_ranks: 8", "num_ranks: 4") + FABRIC, "links.domains", 5, WHOLE_NODES),
        (HEAD + RACK.replace("num_ranks: 8", "num_ranks: 12") + FABRIC, "links.domains[0].num_ranks", 5, "whole nodes"),
        (HEAD + NODE + FABRIC.replace("2", "1"), "links.fabric.by_nodes[0].num_nodes", 6, "at least 2"),
    ],
)
def test_links_that_cannot_be_are_refused_by_key_line_and_rule(yaml: str, key: str, line: int, rule: str):
    with pytest.raises(InputError) as caught:
        _cluster_in(yaml)
    problem = caught.value.problems[0]
    assert (problem.key, problem.line) == (key, line)
    assert rule in (problem.rule or "")


@pytest.mark.parametrize(
    ("num_nodes", "together"), [(1, 1), (2, 2), (12, 12), (16, 16), (18, 18), (19, 1), (20, 10), (24, 12), (36, 18)]
)
def test_a_job_fills_equal_parts_of_link_domains(num_nodes: int, together: int):
    gb200 = Cluster(ACCELERATORS["gb200-186gb"], 4, 36)
    assert gb200.nodes_per_domain(num_nodes) == together
    assert gb200.links_of_job(num_nodes).domains[-1].num_ranks == 4 * together
    assert Cluster(ACCELERATORS["h100-80gb"], 8, 36).nodes_per_domain(num_nodes) == 1


def _cluster_in(yaml: str) -> Cluster:
    return validate(ClusterSection, parse_document(yaml.encode(), "cluster.yaml", Path())).cluster()


A100, CPU = ACCELERATORS["a100-40gb"], ACCELERATORS["cpu"]
HEADROOM = MemoryHeadroom(capacity_gib=10.0, min_free_gib=4.0)


@pytest.mark.parametrize(
    ("accelerator", "limit_gib", "memory_gib"),
    [(A100, None, 39.49 - CONTEXT_GIB), (A100, 20.0, 20.0), (A100, 100.0, 39.49 - CONTEXT_GIB), (CPU, 2.0, 2.0)],
)
def test_a_rank_may_take_what_the_device_has_beside_its_context_or_its_limit(accelerator, limit_gib, memory_gib):
    assert rank_memory_gib(accelerator, limit_gib) == pytest.approx(memory_gib)


def test_a_cpu_without_a_limit_has_a_memory_that_nobody_knows():
    assert rank_memory_gib(CPU, None) is None
    assert MemoryHeadroom.of(CPU, None, 1.0) is None


@pytest.mark.parametrize(
    ("peak_gib", "is_satisfied"), [(5.9, True), (6.0, True), (6.1, False), (11.0, False), (None, False)]
)
def test_a_peak_keeps_it_that_is_known_and_leaves_enough(peak_gib, is_satisfied):
    assert HEADROOM.is_satisfied(peak_gib) is is_satisfied


def test_it_is_found_in_what_a_search_wrote_down():
    spec = {"cluster": Cluster(A100, 8, 1).to_json(), "constraints": {"min_free_memory_gib": 4.0}, "measure": {}}
    assert MemoryHeadroom.of_search(spec) == MemoryHeadroom.of(A100, None, 4.0)
    limited = spec | {"measure": {"memory_limit_gib": 10.0}}
    assert MemoryHeadroom.of_search(limited) == HEADROOM
    for without in ({}, {"constraints": None}, {"constraints": {"max_nodes": 2}}):
        assert MemoryHeadroom.of_search(without) is None
