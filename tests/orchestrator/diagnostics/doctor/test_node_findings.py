"""Findings from a node probe, among them an unused fabric."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.diagnostics.doctor.finding import Finding, Level
from orchestrator.diagnostics.doctor.nccl_log import NcclLog, parse_nccl_log
from orchestrator.diagnostics.doctor.node_findings import JobTimestamps, probe_findings
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.hardware.links import Fabric, LinkDomain, Links
from tests.orchestrator.diagnostics.doctor.test_nccl_log import ROCE, TCP
from trials.diagnostics.calibration import SMALL_BYTES, Collective, GroupTime
from trials.diagnostics.node_probe import NodeProbeReport, RankProbe

A100 = ACCELERATORS["a100-80gb"]
LINKS = Links((LinkDomain("node", 4, 200.0, 8.0),), Fabric(100.0, 5.0, ((2, 90.0),)))
CLUSTER = Cluster(A100, 4, 2, LINKS)
NOW = 1_800_000_000.0
MOMENTS = JobTimestamps(NOW - 60, NOW + 10)
INFINIBAND = parse_nccl_log(ROCE)


def reduced(num_ranks: int, bus_gb_per_s: float, num_bytes: int = 2**30) -> GroupTime:
    seconds = 2 * (num_ranks - 1) / num_ranks * num_bytes / bus_gb_per_s / 1e9
    return GroupTime(Collective.ALL_REDUCE, num_ranks, num_bytes, seconds)


def probe(whole: float = 85.0, in_node: float = 190.0, **changes) -> NodeProbeReport:
    ranks = tuple(
        RankProbe(
            rank=rank,
            node=f"n{1 + rank // 4}",
            host=f"n{1 + rank // 4}",
            python="3.11.7",
            executable="/opt/python",
            torch="2.6.0",
            cuda="12.4",
            gpus=("NVIDIA A100-SXM4-80GB",) * 4,
            gpu=f"GPU-{rank}",
            cores=tuple(range(rank % 4 * 8, rank % 4 * 8 + 8)),
            clock_s=NOW,
        )
        for rank in range(8)
    )
    gather = GroupTime(Collective.ALL_GATHER, 8, 2**30, 1.0)
    groups = (reduced(4, in_node), reduced(8, 0.001, SMALL_BYTES), reduced(8, whole), gather)
    return NodeProbeReport(tuple(replace(rank, **changes) for rank in ranks), groups)


def one_changed(found: NodeProbeReport, rank: int, **changes) -> NodeProbeReport:
    return replace(found, ranks=tuple(replace(r, **changes) if r.rank == rank else r for r in found.ranks))


def judged(found: NodeProbeReport, nccl: NcclLog = INFINIBAND, cluster: Cluster = CLUSTER) -> dict[str, Finding]:
    return {finding.name: finding for finding in probe_findings(found, cluster, nccl, MOMENTS)}


def test_a_healthy_job_names_its_transport_and_what_it_reaches():
    findings = judged(probe())
    assert {finding.level for finding in findings.values()} == {Level.OK}
    assert findings["transport"].message == "between nodes NET/IB/GDRDMA; in a node P2P/CUMEM, P2P/IPC"
    assert "8 ranks: 85 GB/s bus bandwidth, 94% of 90" in findings["bandwidth"].message
    assert "190 GB/s bus bandwidth, 95% of 200" in findings["bandwidth_in_node"].message
    assert findings["cores"].message == "each rank may run on 8 cores"


def test_a_silent_fall_back_to_tcp_is_an_error_with_its_reasons_and_what_to_check():
    findings = judged(probe(whole=2.0), parse_nccl_log(TCP))
    transport = findings["transport"]
    assert transport.level is Level.ERROR
    assert transport.message.startswith("between nodes TCP (NET/Socket); in a node P2P/IPC; NCCL says: ")
    assert "NET/IB : No device found" in transport.message
    assert "the fabric carries 100 GB/s a node" in transport.message
    assert "aws-ofi-nccl" in (transport.fix or "")
    assert "NCCL_SOCKET_IFNAME" in (transport.fix or "")
    assert findings["bandwidth"].level is Level.ERROR


def test_tcp_that_is_as_fast_as_the_links_is_a_note():
    assert judged(probe(), parse_nccl_log(TCP))["transport"].level is Level.NOTE


def test_tcp_where_no_fabric_is_known_is_a_warning_and_a_log_without_words_too():
    unknown = replace(CLUSTER, accelerator=replace(A100, name="other"), given_links=None)
    assert judged(probe(), parse_nccl_log(TCP), unknown)["transport"].level is Level.WARNING
    assert judged(probe(), NcclLog())["transport"].level is Level.WARNING


@pytest.mark.parametrize(
    ("whole", "links", "level"),
    [
        (64.0, LINKS, Level.OK),
        (60.0, LINKS, Level.WARNING),
        (35.0, LINKS, Level.ERROR),
        (10.0, None, Level.WARNING),  # of what is only assumed nobody is certain
    ],
)
def test_bandwidth_is_held_against_the_links(whole, links, level):
    finding = judged(probe(whole), cluster=replace(CLUSTER, given_links=links))["bandwidth"]
    assert finding.level is level
    assert ("are not described" in finding.message) is (links is None)


def test_a_folder_that_a_node_does_not_see_is_an_error():
    finding = judged(one_changed(probe(), 5, unseen=(0, 1)))["shared"]
    assert finding.level is Level.ERROR
    assert finding.message.startswith("n2 does not see files that n1 wrote")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (one_changed(probe(), 7, clock_s=NOW + 8), "nodes' clocks are 8 s apart"),
        (probe(clock_s=NOW + 100), "and this machine's are at least 90 s apart"),
        (probe(clock_s=NOW - 100), "and this machine's are at least 40 s apart"),
    ],
)
def test_clocks_that_disagree_are_a_warning(found, words):
    finding = judged(found)["clocks"]
    assert finding.level is Level.WARNING
    assert words in finding.message


def test_two_ranks_on_one_gpu_are_an_error():
    finding = judged(one_changed(probe(), 1, gpu="GPU-0"))["gpus"]
    assert finding.level is Level.ERROR
    assert finding.message.startswith("ranks 0, 1 share one GPU of n1 (GPU-0)")
    assert judged(one_changed(probe(), 4, gpu="GPU-0"))["gpus"].level is Level.OK  # of another node


def test_ranks_that_are_all_bound_to_one_core_are_a_warning():
    finding = judged(probe(cores=(0,)))["cores"]
    assert finding.level is Level.WARNING
    assert "the 4 ranks of n1 share cores 0" in finding.message


def test_nodes_with_different_software_are_an_error():
    finding = judged(one_changed(probe(), 6, torch="2.5.1"))["ranks_python"]
    assert finding.level is Level.ERROR
    assert "2.6.0" in finding.message
    assert "2.5.1" in finding.message


def test_cpus_talk_by_gloo_and_are_judged_only_by_links_that_were_measured():
    plain = Cluster(ACCELERATORS["cpu"], 4, 2)
    findings = judged(probe(gpus=(), gpu=None), NcclLog(), plain)
    assert {finding.level for finding in findings.values()} == {Level.OK}
    assert "gloo" in findings["transport"].message
    assert "gpus" not in findings
    assert judged(probe(10.0), NcclLog(), replace(plain, given_links=LINKS))["bandwidth"].level is Level.ERROR


def test_a_world_of_one_rank_exchanges_nothing():
    alone = replace(probe(), ranks=probe().ranks[:1], groups=())
    findings = judged(alone, NcclLog(), Cluster(A100, 1, 1))
    assert not {"bandwidth", "transport"} & set(findings)
