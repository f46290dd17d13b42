"""Findings about a simulated Slurm: its commands and settings, a search's jobs against its limits, its blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.diagnostics.doctor.finding import Finding, Severity
from orchestrator.diagnostics.doctor.job_limits import check_jobs
from orchestrator.diagnostics.doctor.slurm import COMMANDS, check_blocks, check_slurm, unreachable_finding
from orchestrator.planning.candidates import candidates_of
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from slurm.association_limits import Association, AssociationLimits, Qos
from slurm.interface import SlurmUnreachable
from slurm.partitions import PartitionSnapshot
from tests.fake_slurm.client import FakeSlurm
from tests.fake_slurm.cluster import FAKE_SETTINGS, FakeCluster
from tests.fake_slurm.placement import FakeNode
from tests.kit import MINIMAL, loaded


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm(FakeCluster([FakeNode("n1")]))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Environment with Slurm's commands on PATH."""
    for command in COMMANDS:
        (tmp_path / command).write_text("#!/bin/sh\n")
        (tmp_path / command).chmod(0o755)
    return {"PATH": str(tmp_path)}


def found(slurm: FakeSlurm, environ: dict[str, str], wanted_s: float | None = None) -> dict[str, Finding]:
    return {finding.name: finding for finding in check_slurm(slurm, environ, wanted_s)}


def test_a_slurm_without_fault(slurm, environ):
    slurm.cluster.settings = replace(FAKE_SETTINGS, enforces_limits=True)
    findings = found(slurm, environ)
    assert set(findings) == {"commands", "controller", "min_job_age", "partition_limits", "accounting"}
    assert {finding.level for finding in findings.values()} == {Severity.OK}
    assert "22.05.8" in findings["controller"].message


def test_commands_that_are_not_there_are_named_and_nothing_is_asked(slurm, environ, tmp_path):
    (tmp_path / "squeue").unlink()
    slurm.cluster.controller_down(3600.0)
    findings = found(slurm, environ)
    assert [(f.name, f.level) for f in findings.values()] == [("commands", Severity.ERROR)]
    assert findings["commands"].message.startswith("squeue is not on PATH")
    assert "slurm-sandbox start" in (findings["commands"].fix or "")


def test_a_configuration_that_is_not_there_is_reported_before_a_controller_that_does_not_answer(slurm, environ):
    slurm.cluster.controller_down(3600.0)
    findings = found(slurm, environ)
    assert [(f.name, f.level) for f in findings.values()] == [("commands", Severity.OK), ("controller", Severity.ERROR)]
    assert "Unable to contact slurm controller" in findings["controller"].message
    findings = found(slurm, environ | {"SLURM_CONF": "/no/such/slurm.conf"})
    assert findings["configuration"].level is Severity.ERROR
    assert "controller" not in findings


def test_munge_is_told_from_a_controller_that_is_away():
    words = (
        'sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory'
    )
    finding = unreachable_finding(SlurmUnreachable(words))
    assert (finding.name, finding.level) == ("munge", Severity.ERROR)
    assert "munged" in (finding.fix or "")


@pytest.mark.parametrize(
    ("age_s", "accounting", "wanted_s", "level"),
    [
        (300.0, False, None, Severity.OK),
        (59.0, False, None, Severity.WARNING),
        (59.0, True, None, Severity.NOTE),
        (300.0, False, 200.0, Severity.WARNING),
    ],
)
def test_a_controller_that_forgets_a_job_before_it_is_asked_again(slurm, environ, age_s, accounting, wanted_s, level):
    slurm.cluster.settings = replace(FAKE_SETTINGS, min_job_age_s=age_s, has_accounting=accounting)
    assert found(slurm, environ, wanted_s)["min_job_age"].level is level


def test_an_old_version_and_what_is_not_enforced_accounted_or_answered_are_said(slurm, environ):
    slurm.cluster.accounting.go_down(slurm.cluster.time + 3600.0, 0.0)
    assert found(slurm, environ)["accounting"].level is Severity.WARNING
    slurm.cluster.settings = replace(FAKE_SETTINGS, version="19.05.5", has_accounting=False)
    levels = {name: finding.level for name, finding in found(slurm, environ).items()}
    assert {name: level for name, level in levels.items() if level is not Severity.OK} == {
        "version": Severity.WARNING,
        "partition_limits": Severity.NOTE,
        "accounting": Severity.NOTE,
    }


SEARCH = {
    "cluster": {"accelerator": "a100-80gb", "gpus_per_node": 4, "num_nodes": 4},
    "global_batch_size": 64,
    "space": {"num_nodes": [1, 2, 4]},
    "measure": {"time_limit": "2h"},
    "launcher": {"kind": "slurm"},
}
MAIN = PartitionSnapshot("main", is_default=True, num_nodes=4)


@pytest.fixture
def four_nodes() -> FakeSlurm:
    """Four nodes in one partition."""
    nodes = [FakeNode(f"n{i}", cpus=8, memory_mib=64_000, gpu_kinds=("a100",)) for i in range(1, 5)]
    return FakeSlurm(FakeCluster(nodes, partitions=("main",)))


def examined(four_nodes: FakeSlurm, folder: Path, *changes: str) -> list[Finding]:
    spec = loaded(folder, MINIMAL, *changes, **SEARCH)
    return list(check_jobs(four_nodes, spec, candidates_of(spec)))


def faults(four_nodes: FakeSlurm, folder: Path, *changes: str) -> list[tuple[str, Severity]]:
    return [(f.name, f.level) for f in examined(four_nodes, folder, *changes) if f.level is not Severity.OK]


def test_a_search_that_the_cluster_takes(tmp_path, four_nodes):
    four_nodes.limits = AssociationLimits((Association("acc", qos=("normal",)),), (Qos("normal"),))
    findings = examined(four_nodes, tmp_path)
    assert {f.level for f in findings} == {Severity.OK}
    assert [f.name for f in findings] == [
        *("partition", "account", "accelerator", "nodes_up", "sbatch", "nodes_up", "sbatch", "parallel_trials")
    ]
    assert four_nodes.cluster.jobs() == []


@pytest.mark.parametrize(
    ("changes", "whole_nodes", "levels"),
    [
        ([], False, []),
        (["launcher.slurm.gpus_per_node=2"], False, [Severity.WARNING]),
        (["launcher.slurm.gpus_per_node=2", "launcher.slurm.cpus_per_task=2"], False, []),
        (["launcher.slurm.gpus_per_node=2", "launcher.slurm.exclusive=user"], False, [Severity.WARNING]),
        (["launcher.slurm.gpus_per_node=2", "launcher.slurm.exclusive=true"], False, []),
        (["launcher.slurm.gpus_per_node=2"], True, []),
    ],
)
def test_trials_that_may_share_a_node_are_warned_of(tmp_path, four_nodes, changes, whole_nodes, levels):
    four_nodes.partition_limits["main"] = replace(MAIN, has_whole_nodes=whole_nodes)
    found = [f for f in examined(four_nodes, tmp_path, *changes) if f.name == "exclusive"]
    assert [f.level for f in found] == levels
    assert all("(n[1-4])" in f.message and "shared_node" in (f.fix or "") for f in found)


@pytest.mark.bad_input(22)
@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        ("launcher.slurm.partition=nosuch", "partition", "there is no partition nosuch"),
        ("launcher.slurm.cpus_per_task=3", "cpus", "12 CPUs per node requested, the nodes have 8"),
        ("launcher.slurm.gpus_per_node=8", "gpus", "8 GPUs per node requested, the nodes have 4"),
        ("cluster.accelerator=h100-80gb", "accelerator", "is h100-80gb, the nodes' GPUs are a100"),
    ],
)
def test_what_the_nodes_have_not_is_reported_with_both_numbers(tmp_path, four_nodes, change, name, words):
    found = [f for f in examined(four_nodes, tmp_path, change) if f.level is Severity.ERROR and f.name == name]
    assert found
    assert words in found[0].message
    assert found[0].fix


def test_nodes_that_are_away_are_a_warning_until_no_trial_can_start(tmp_path, four_nodes):
    four_nodes.cluster.drain_node("n1")
    [largest] = [f for f in examined(four_nodes, tmp_path) if f.name == "nodes_up" and f.level is not Severity.OK]
    assert largest.level is Severity.WARNING
    assert "n1 of the 4 nodes that could run it: drained" in largest.message
    for name in ("n2", "n3", "n4"):
        four_nodes.cluster.drain_node(name)
    found = [f.level for f in examined(four_nodes, tmp_path) if f.name == "nodes_up"]
    assert found == [Severity.ERROR, Severity.WARNING]


ONE_ACCOUNT = Association("acc", qos=("normal", "fast"), max_jobs=4, max_submit=8)
QOS = (Qos("normal"), Qos("fast", max_wall_s=3600.0, max_nodes=2), Qos("big"))
LIMITED = Association("acc", qos=("long",), default_qos="long", max_jobs=1, max_submit=1, max_wall_s=3600.0)
HOUR, DAY = 3600.0, 86400.0
TIME, NODES, TRIALS = ("time_limit", Severity.ERROR), ("nodes", Severity.ERROR), ("parallel_trials", Severity.WARNING)
TWO = "search.parallel_trials=2"


def of(*qos: Qos, default: str | None = None) -> AssociationLimits:
    """Limits of an account that may use these QOS."""
    return AssociationLimits((Association("acc", qos=tuple(q.name for q in qos), default_qos=default),), qos)


@pytest.mark.parametrize(
    ("partition", "limits", "changes", "expected"),
    [
        ({"allowed_groups": ("no-such-group",)}, None, (), [("partition", Severity.ERROR)]),
        ({"allowed_accounts": ("b",)}, None, ("launcher.slurm.account=a",), [("partition", Severity.ERROR)]),
        ({"is_default": False}, None, (), [("partition", Severity.ERROR)]),
        ({}, AssociationLimits((ONE_ACCOUNT,), QOS), (), []),
        (
            {},
            AssociationLimits((ONE_ACCOUNT,), QOS),
            ("launcher.slurm.account=other",),
            [("account", Severity.WARNING)],
        ),
        ({}, AssociationLimits((ONE_ACCOUNT,), QOS), ("launcher.slurm.qos=fast",), [TIME, NODES]),
        ({}, AssociationLimits((ONE_ACCOUNT,), QOS), ("launcher.slurm.qos=nosuch",), [("qos", Severity.ERROR)]),
        (
            {},
            AssociationLimits((ONE_ACCOUNT,), QOS),
            ("search.parallel_trials=5",),
            [("parallel_trials", Severity.NOTE)],
        ),
        ({}, AssociationLimits((ONE_ACCOUNT,), QOS), ("search.parallel_trials=9",), [TRIALS]),
        ({}, of(Qos("fast", max_wall_s=HOUR, max_submit=1), default="fast"), (TWO,), [TIME, TRIALS]),
        # Slurm applies the account's limits only where the QOS sets none (resource_limits.html, "Hierarchy").
        ({}, AssociationLimits((LIMITED,), (Qos("long", max_wall_s=DAY, max_jobs=8, max_submit=8),)), (TWO,), []),
        ({}, AssociationLimits((LIMITED,), (Qos("long"),)), (TWO,), [TIME, TRIALS]),
        ({}, of(Qos("few", max_gpus=8), default="few"), (), [("gpus", Severity.ERROR)]),
        # Sites print names in capitals, and accounting keeps them in small letters.
        (
            {"allowed_accounts": ("ACC",), "denied_qos": ("Low",)},
            of(Qos("normal")),
            ("launcher.slurm.account=ACC", "launcher.slurm.qos=Normal"),
            [],
        ),
        (
            {"max_time_s": HOUR, "max_nodes": 2},
            of(Qos("q", overrides_max_nodes=True)),
            ("launcher.slurm.qos=q",),
            [TIME],
        ),
        ({"min_nodes": 2}, of(Qos("q", overrides_min_nodes=True)), ("launcher.slurm.qos=q",), []),
    ],
)
def test_what_a_partition_an_account_and_a_qos_allow(tmp_path, four_nodes, partition, limits, changes, expected):
    four_nodes.partition_limits["main"] = replace(MAIN, **partition)
    four_nodes.limits = limits
    found = dict.fromkeys(faults(four_nodes, tmp_path, *changes))
    assert [fault for fault in found if limits is not None or fault != ("account", Severity.NOTE)] == expected


@pytest.mark.parametrize(
    ("of_partition", "of_job", "expected"),
    [
        (Qos("part", max_wall_s=HOUR), Qos("mine"), {TIME}),
        (Qos("part", max_wall_s=DAY), Qos("mine", max_wall_s=HOUR), set()),
        (Qos("part", max_wall_s=DAY), Qos("mine", max_wall_s=HOUR, overrides_partition_qos=True), {TIME}),
    ],
)
def test_a_partitions_own_qos_stands_before_the_jobs(tmp_path, four_nodes, of_partition, of_job, expected):
    four_nodes.partition_limits["main"] = replace(MAIN, qos="part")
    four_nodes.limits = AssociationLimits(
        (Association("acc", qos=("mine",), default_qos="mine"),), (of_partition, of_job)
    )
    assert set(faults(four_nodes, tmp_path, TWO)) == expected


PROFILE = """\
title = "Ada, our own cluster"
sources = [{url = "https://example.org/ada", read = "2026-11-22"}]
notes = ["the second Tuesday is for maintenance"]
[slurm]
partition = "main"
usable_cpus = 16
[limits.main]
max_minutes = 240
max_nodes = 2
"""


def test_a_sites_profile_is_held_against_the_live_cluster(tmp_path, four_nodes):
    (tmp_path / "ada.toml").write_text(PROFILE)
    changes = ("launcher.slurm.site=./ada.toml", "constraints.max_nodes=2")
    four_nodes.partition_limits["main"] = replace(MAIN, max_time_s=14400.0)
    found = [(f.level, f.message) for f in examined(four_nodes, tmp_path, *changes) if f.name == "site"]
    assert [level for level, _ in found] == [Severity.WARNING, Severity.WARNING, Severity.NOTE, Severity.NOTE]
    assert "the profile's limit is 2 nodes, Slurm's is no limit" in found[0][1]
    assert "usable CPUs of a node are 16, Slurm has 8" in found[1][1]
    assert "not verified" in found[2][1]
    assert "second Tuesday" in found[3][1]


GB200 = Cluster(ACCELERATORS["gb200-186gb"], 4, 36)


@pytest.mark.parametrize(
    ("cluster", "blocks", "segment", "expected"),
    [
        (GB200, (18, 18), None, [(Severity.OK, "2 of 18 nodes; link domains have 18")]),
        (GB200, (16, 17), None, [(Severity.WARNING, "the largest of 2 blocks has 17 nodes, but link domains have 18")]),
        (GB200, (), None, [(Severity.WARNING, "it may refuse --segment, or spread jobs")]),
        (GB200, (), 0, [(Severity.NOTE, "a job may lie in several")]),
    ],
)
def test_blocks_hold_the_link_domains_or_the_search_says_so(cluster, blocks, segment, expected):
    slurm = FakeSlurm(FakeCluster([FakeNode("n1")]))
    slurm.block_sizes = blocks
    found = list(check_blocks(slurm, cluster, segment))
    assert [finding.level for finding in found] == [level for level, _ in expected]
    assert all(words in finding.message for finding, (_, words) in zip(found, expected, strict=True))
