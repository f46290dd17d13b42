"""Findings about ranks: their job, its network by NCCL's log, what they do not share, and their interpreter."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.doctor.engine_packages import node_package_findings, package_findings
from orchestrator.diagnostics.doctor.finding import Finding, Severity
from orchestrator.diagnostics.doctor.nccl_log import NcclLog, merge_logs, parse_nccl_log
from orchestrator.diagnostics.doctor.node_probe import JobTimestamps, probe_cluster, probe_findings, submit_test
from orchestrator.diagnostics.doctor.ranks import (
    InterpreterInfo,
    check_ranks,
    interpreter_findings,
    probe_interpreter,
    probe_preload,
    selftest_finding,
    warm_start_findings,
)
from orchestrator.launchers.attempt_runner import AttemptRunner
from orchestrator.launchers.base import LaunchRequest
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.hardware.links import Bandwidth, Fabric, LinkDomain, Links
from tests.kit import TINY_SEARCH, loaded
from tests.orchestrator.scripted import ScriptedLauncher, one_job
from tests.trials.train.parity import needs_megatron, needs_torchtitan
from trials.attempt_result import LaunchStatus, Liveness
from trials.diagnostics.calibration import SMALL_BYTES, Collective, GroupTime
from trials.diagnostics.node_probe import NodeProbeReport, RankProbe
from trials.files.folders import SearchFolder

ROCE = """\
rank 3 says something of its own via NET/Socket/0
dgxh100-4:460770:460770 [0] NCCL INFO Bootstrap : Using enp220s0np0:10.1.128.136<0>
NCCL version 2.19.3+cuda12.3
dgxh100-4:460770:460842 [0] NCCL INFO NET/IB : Using [0]mlx5_10:1/RoCE [1]mlx5_11:1/RoCE [RO]; OOB eth0:10.1.128.136<0>
dgxh100-4:460770:460842 [0] NCCL INFO Using network IB
10-90-43-152:120890:121560 [0] NCCL INFO Channel 01 : 2[c7000] -> 0[87000] [receive] via NET/IB/5/GDRDMA
10-90-43-152:120890:121560 [0] NCCL INFO Channel 02/0 : 0[0] -> 8[0] [send] via NET/IB/0(0)/GDRDMA
dgxh100-4:460770:460842 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
dgxh100-4:460770:460842 [0] NCCL INFO Channel 01/0 : 0[0] -> 7[7] via P2P/IPC/read
"""
TCP = """\
LIUCC13-AC-01:106:120 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to lo
sh9-machine:3884994:3885025 [3] NCCL INFO Failed to open libibverbs.so[.1]
node0:919:1150 [0] NCCL INFO NET/IB : No device found.
node0:919:1150 [0] NCCL INFO NET/Socket : Using [0]eth0:10.45.223.193<0>
node0:919:1150 [0] NCCL INFO Using network Socket
node0:926:1151 [7] NCCL INFO Channel 03/0 : 15[7] -> 6[6] [send] via NET/Socket/3
node0:919:1150 [0] NCCL INFO Channel 01/0 : 8[0] -> 15[7] via P2P/IPC/read
"""
SLINGSHOT = """\
nid000019:51404:52019 [0] NCCL INFO NET/OFI Using aws-ofi-nccl 1.4.0
nid000019:51404:52019 [0] NCCL INFO NET/OFI Selected Provider is cxi
nid000019:51404:52019 [0] NCCL INFO Using network AWS Libfabric
nid000019:51404:52019 [0] NCCL INFO Channel 00/0 : 4[3000] -> 0[3000] [receive] via NET/AWS Libfabric/0/GDRDMA
nid000019:51404:52019 [0] NCCL INFO Channel 00 : 0[3000] -> 1[41000] via P2P/IPC
"""
OVER_TCP = SLINGSHOT.replace("is cxi", "is tcp;ofi_rxm").replace("/GDRDMA", "")
ONE_NODE = """\
c1:106:120 [0] NCCL INFO Using network Socket
c1:106:120 [0] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct
c1:106:121 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/direct pointer
"""


@pytest.mark.parametrize(
    ("text", "name", "in_node", "is_tcp"),
    [
        (ROCE, "NET/IB/GDRDMA", {"P2P/CUMEM", "P2P/IPC"}, False),
        (TCP, "NET/Socket", {"P2P/IPC"}, True),
        (SLINGSHOT, "NET/AWS Libfabric/GDRDMA (libfabric provider cxi)", {"P2P/IPC"}, False),
        (OVER_TCP, "NET/AWS Libfabric (libfabric provider tcp;ofi_rxm)", {"P2P/IPC"}, True),
        (ONE_NODE, "NET/Socket", {"SHM/direct", "P2P/direct"}, True),
        ("", "", set(), False),
    ],
)
def test_the_transport_is_named(text, name, in_node, is_tcp):
    found = parse_nccl_log(text)
    assert (found.name, found.in_node, found.is_tcp) == (name, in_node, is_tcp)


def test_a_channel_tells_more_than_what_was_chosen_first_and_all_ranks_logs_are_tcp_where_one_of_them_is():
    """The log also has the choice of another communicator, within one node."""
    found = parse_nccl_log(ONE_NODE + ROCE)
    assert (found.network, found.is_tcp) == ("Socket", False)
    assert found.version == "2.19.3+cuda12.3"
    found = merge_logs([parse_nccl_log(ROCE), NcclLog(), parse_nccl_log(TCP)])
    assert found.name == "NET/IB/GDRDMA, NET/Socket"
    assert found.is_tcp
    assert merge_logs([]) == NcclLog()


A100 = ACCELERATORS["a100-80gb"]
LINKS = Links((LinkDomain("node", 4, 200.0, 8.0),), Fabric(100.0, 5.0, (Bandwidth(2, 90.0),)))
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
    assert {finding.level for finding in findings.values()} == {Severity.OK}
    assert findings["transport"].message == "between nodes NET/IB/GDRDMA; in a node P2P/CUMEM, P2P/IPC"
    assert "8 ranks: 85 GB/s bus bandwidth, 94% of 90" in findings["bandwidth"].message
    assert "190 GB/s bus bandwidth, 95% of 200" in findings["bandwidth_in_node"].message
    assert findings["cores"].message == "each rank may run on 8 cores"


def test_a_silent_fall_back_to_tcp_is_an_error_unless_it_is_as_fast_as_the_links_or_nothing_is_known():
    findings = judged(probe(whole=2.0), parse_nccl_log(TCP))
    transport = findings["transport"]
    assert (transport.level, findings["bandwidth"].level) == (Severity.ERROR, Severity.ERROR)
    assert "NET/IB : No device found" in transport.message
    assert "the fabric carries 100 GB/s a node" in transport.message
    assert "NCCL_SOCKET_IFNAME" in (transport.fix or "")
    assert judged(probe(), parse_nccl_log(TCP))["transport"].level is Severity.NOTE
    unknown = replace(CLUSTER, accelerator=replace(A100, name="other"), given_links=None)
    assert judged(probe(), parse_nccl_log(TCP), unknown)["transport"].level is Severity.WARNING
    assert judged(probe(), NcclLog())["transport"].level is Severity.WARNING


@pytest.mark.parametrize(
    ("whole", "links", "level"),
    [
        (64.0, LINKS, Severity.OK),
        (60.0, LINKS, Severity.WARNING),
        (35.0, LINKS, Severity.ERROR),
        (10.0, None, Severity.WARNING),  # of what is only assumed nobody is certain
    ],
)
def test_bandwidth_is_held_against_the_links(whole, links, level):
    finding = judged(probe(whole), cluster=replace(CLUSTER, given_links=links))["bandwidth"]
    assert finding.level is level
    assert ("are not described" in finding.message) is (links is None)


@pytest.mark.parametrize(
    ("found", "name", "level", "words"),
    [
        (one_changed(probe(), 5, unseen=(0, 1)), "shared", Severity.ERROR, "n2 does not see files that n1 wrote"),
        (one_changed(probe(), 7, clock_s=NOW + 8), "clocks", Severity.WARNING, "nodes' clocks are 8 s apart"),
        (probe(clock_s=NOW + 100), "clocks", Severity.WARNING, "at least 90 s apart"),
        (one_changed(probe(), 1, gpu="GPU-0"), "gpus", Severity.ERROR, "ranks 0, 1 share one GPU of n1"),
        (probe(cores=(0,)), "cores", Severity.WARNING, "the 4 ranks of n1 share cores 0"),
        (one_changed(probe(), 6, torch="2.5.1"), "ranks_python", Severity.ERROR, "2.5.1"),
    ],
)
def test_what_ranks_do_not_share_or_should_not_is_found(found, name, level, words):
    finding = judged(found)[name]
    assert finding.level is level
    assert words in finding.message


def test_cpus_talk_by_gloo_and_are_judged_only_by_links_that_were_measured():
    plain = Cluster(ACCELERATORS["cpu"], 4, 2)
    findings = judged(probe(gpus=(), gpu=None), NcclLog(), plain)
    assert {finding.level for finding in findings.values()} == {Severity.OK}
    assert "gloo" in findings["transport"].message
    assert "gpus" not in findings
    assert judged(probe(10.0), NcclLog(), replace(plain, given_links=LINKS))["bandwidth"].level is Severity.ERROR


ENDED = LaunchStatus(Liveness.ENDED, started=True)
FAILED = LaunchStatus(Liveness.ENDED, started=True, failed=True, detail="rank 1 ended with 2")


def launcher_of(status: LaunchStatus, found: NodeProbeReport | None = None, log: str = "") -> ScriptedLauncher:
    """Launcher whose ranks leave a probe report."""

    def leave(request: LaunchRequest, number: int) -> None:
        request.folder.rank_log(0).write_text(log)
        if found is not None:
            found.write(request.folder.path)

    return one_job(status, leave)


def run(folder: Path, launcher: ScriptedLauncher, *changes: str) -> list[Finding]:
    (folder / "runs").mkdir()
    spec = loaded(folder, TINY_SEARCH, "launcher.kind=slurm", *changes)
    job = SearchFolder(folder / "runs" / "doctor-abc123")
    return list(submit_test(AttemptRunner(launcher), job, spec))


@pytest.mark.parametrize(("nodes", "tested"), [(1, 1), (2, 2), (16, 2)])
def test_two_whole_nodes_are_tested_where_there_are_two(nodes, tested):
    cluster = probe_cluster(Cluster(ACCELERATORS["a100-80gb"], 8, nodes))
    assert (cluster.num_nodes, cluster.gpus_per_node) == (tested, 8)


def test_the_job_runs_the_doctors_program_and_its_logs_are_read(tmp_path):
    launcher = launcher_of(ENDED, probe(2.0), log=TCP)
    changes = ("cluster={accelerator: a100-80gb, gpus_per_node: 4, num_nodes: 2}", "space={num_nodes: 2}")
    findings = {f.name: f for f in run(tmp_path, launcher, *changes, "global_batch_size=64", "baseline={}")}
    [request] = launcher.requests
    assert request.argv[1:3] == ("-m", "trials.train")
    assert (Path(request.code) / "trials/train/diagnostics/node_probe.py").exists()
    assert request.spec.num_gpus == 8
    assert findings["job"].message.startswith("8 ranks on n1, n2 responded")
    assert findings["transport"].level is Severity.ERROR


def test_ranks_that_find_no_spec_are_told_of_the_folder_they_do_not_share(tmp_path):
    [finding] = run(tmp_path, launcher_of(FAILED))
    assert finding.message == "the job ended without a report: rank 1 ended with 2"
    assert "does not share the work directory" in (finding.fix or "")


WELL = InterpreterInfo("3.11.7", "2.6.0+cu124", "0.19.8", ("NVIDIA A100-SXM4-80GB",) * 4)
PASSED = {
    "at": "2026-11-20T10:00:00Z",
    "passed": True,
    "failed": [],
    "fingerprint": {"torch": "2.6.0"},
}


def spec_of(folder: Path, *changes: str) -> SearchSpec:
    return loaded(folder, TINY_SEARCH, *changes)


def program(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def faults(findings) -> list[tuple[str, Severity]]:
    return [(f.name, f.level) for f in findings if f.level is not Severity.OK]


@pytest.mark.slow
def test_an_interpreter_tells_what_its_ranks_would_see(tmp_path, monkeypatch):
    """Torch on our path and in our folder is not theirs. The oldest Python knows no option but -c."""
    for place in ("on_our_path", "in_our_folder"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "torch.py").write_text("__version__ = '2.6'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "on_our_path"))
    monkeypatch.chdir(tmp_path / "in_our_folder")
    program(tmp_path / "python", f'[ "$1" = -c ] || exit 2\nexec {sys.executable} -S "$@"')
    found = probe_interpreter("../python")
    assert isinstance(found, InterpreterInfo)
    assert (found.python, found.torch) == (sys.version.split()[0], None)
    assert "No module named 'torch'" in (found.torch_error or "")


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/no/such/python", "not an executable"),
        ("/bin/true", "Python program"),
        ("echo []", "it answers without python, torch, gpus"),
    ],
)
def test_what_is_no_interpreter_is_an_error(tmp_path, python, words):
    if python.startswith("echo"):
        python = program(tmp_path / "python", python)
    fault = probe_interpreter(python)
    assert isinstance(fault, Finding)
    assert (fault.level, fault.name) == (Severity.ERROR, "ranks_python")
    assert words in fault.message
    assert "trainer.python" in (fault.fix or "")


@pytest.mark.parametrize(
    ("found", "changes", "expected"),
    [
        (WELL, (), []),
        (InterpreterInfo("3.11.7", torch_error="ImportError: libcudart"), (), [("torch", Severity.ERROR)]),
        (InterpreterInfo("3.11.7", "2.5.1"), (), [("torch", Severity.ERROR)]),
        (InterpreterInfo("3.11.7", "2.6.0"), ("space.engine=[deepspeed, torch]",), [("deepspeed", Severity.ERROR)]),
        (WELL, ("cluster.accelerator=a100-80gb",), []),
        (WELL, ("cluster.accelerator=a100-80gb", "cluster.gpus_per_node=8"), [("gpus", Severity.ERROR)]),
        (InterpreterInfo("3.11.7"), ("trainer={kind: megatron-lm, script: train.py}", "space.engine=megatron-lm"), []),
    ],
)
def test_what_the_ranks_would_miss_is_an_error(tmp_path, found, changes, expected):
    (tmp_path / "train.py").touch()
    assert faults(interpreter_findings(found, spec_of(tmp_path, "space.engine=torch", *changes))) == expected


@pytest.mark.parametrize(
    ("accelerator", "tests", "torch", "level", "words"),
    [
        ("a100-80gb", {}, None, Severity.WARNING, "unverified"),
        ("cpu", {}, None, Severity.NOTE, "no selftest"),
        ("cpu", {"cpu": PASSED}, "2.6.0", Severity.OK, "2026-11-20"),
        ("cpu", {"cpu": PASSED}, "2.7.1", Severity.WARNING, "with torch 2.6.0, ranks have torch 2.7.1 now"),
        ("cpu", {"cpu": PASSED | {"passed": False, "failed": ["hang"]}}, "2.6.0", Severity.WARNING, "failed: hang"),
    ],
)
def test_the_last_selftest_is_told_and_what_changed_since(accelerator, tests, torch, level, words):
    finding = selftest_finding(accelerator, tests, torch)
    assert (finding.name, finding.level) == ("selftest", level)
    assert words in finding.message


def test_of_other_machines_only_a_job_can_tell(tmp_path):
    spec = spec_of(tmp_path, "launcher.kind=slurm")

    alone = [(f.name, f.level) for f in check_ranks(spec, tmp_path, submits=False)]
    assert alone == [("ranks_python", Severity.NOTE), ("selftest", Severity.NOTE)]
    assert list(check_ranks(spec, tmp_path, submits=True)) == []


CORE, ENGINE = "megatron_core", "transformer_engine"
PACKAGES = {"megatron-core": "0.16.1", "transformer-engine": "2.9.0", "flash-attn": None, "apex": None}
GPU, FLASH = (
    "cluster.accelerator=a100-80gb",
    "space={attention_kernel: [math, flash], engine: megatron-core, precision: bf16}",
)


def engine_spec(folder: Path, *changes: str) -> SearchSpec:
    return spec_of(folder, "space.engine=megatron-core", "baseline={}", *changes)


@pytest.mark.bad_input(54)
@pytest.mark.parametrize(
    ("core", "engine", "changes", "expected"),
    [
        ("0.16.1", "1.0", (), [(CORE, Severity.OK)]),  # a CPU takes none of its layers
        (None, None, (), [(CORE, Severity.ERROR)]),
        ("0.15.3", None, (), [(CORE, Severity.ERROR)]),
        ("0.16.1", "2.10.0", (GPU,), [(CORE, Severity.OK), (ENGINE, Severity.OK)]),
        ("0.16.1", "2.12.0", (GPU,), [(CORE, Severity.OK), (ENGINE, Severity.WARNING)]),
        ("0.16.1", None, (GPU,), [(CORE, Severity.OK), (ENGINE, Severity.NOTE)]),
        ("0.16.1", None, (GPU, FLASH), [(ENGINE, Severity.ERROR), (CORE, Severity.OK)]),
    ],
)
def test_what_is_installed_is_compared_with_what_was_verified(tmp_path, core, engine, changes, expected):
    installed = {**PACKAGES, "megatron-core": core, "transformer-engine": engine}
    found = list(package_findings(installed, "/opt/python", engine_spec(tmp_path, *changes)))
    assert [(finding.name, finding.level) for finding in found] == expected
    assert all("megatron-core" in finding.message for finding in found)


@pytest.mark.bad_input(54)
def test_the_packages_of_the_nodes_are_compared_too(tmp_path):
    spec, well = engine_spec(tmp_path, GPU), probe(packages=PACKAGES)
    assert [finding.level for finding in node_package_findings(well.ranks, spec)] == [Severity.OK, Severity.OK]
    [old, _] = node_package_findings(probe(packages={**PACKAGES, "megatron-core": "0.15.3"}).ranks, spec)
    assert (old.level, "0.15.3 is installed, but engine megatron-core was verified with" in old.message) == (
        Severity.ERROR,
        True,
    )
    [differs] = node_package_findings(
        one_changed(well, 5, packages={**PACKAGES, "megatron-core": "0.16.2"}).ranks, spec
    )
    assert (differs.name, differs.level) == (CORE, Severity.ERROR)
    assert "n1 has megatron-core 0.16.1" in differs.message
    assert "n2 has megatron-core 0.16.2" in differs.message
    [lacks] = node_package_findings(one_changed(well, 5, packages=dict.fromkeys(PACKAGES)).ranks, spec)
    assert lacks.message.endswith("n2 has none of them")


def test_each_engine_has_a_finding_and_a_failed_check_its_reason(tmp_path: Path) -> None:
    spec = loaded(tmp_path, TINY_SEARCH, "space.engine=[torch, deepspeed]")
    reasons = {"torch/cpu": None, "deepspeed/cpu": "an import has started 1 threads: jemalloc_bg_thd"}
    bad, good = warm_start_findings(spec, lambda python, preload: reasons[preload])
    assert (good.level, good.message) == (Severity.OK, "ranks of engine torch can be forked after their imports")
    assert bad.level is Severity.NOTE
    assert bad.message.endswith("jemalloc_bg_thd")


@pytest.mark.processes
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "preload",
    [
        "torch/cpu",
        pytest.param("deepspeed/cpu", marks=pytest.mark.walks),
        pytest.param("torch/gpu", marks=pytest.mark.walks),
        pytest.param("megatron-core/gpu", marks=[needs_megatron, pytest.mark.walks]),
        pytest.param("torchtitan/cpu", marks=[needs_torchtitan, pytest.mark.walks]),
    ],
)
def test_engines_can_be_forked_here(monkeypatch: pytest.MonkeyPatch, preload: str) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # for a GPU: OpenBLAS starts a thread for each core
    assert probe_preload(sys.executable, preload) is None
