"""A search's smallest and largest job against planted limits of a simulated cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.diagnostics.doctor.finding import Finding, Level
from orchestrator.diagnostics.doctor.job_limits import check_jobs
from orchestrator.planning.candidates import candidates_of
from slurm.association_limits import Association, AssociationLimits, Qos
from slurm.fake.client import FakeSlurm
from slurm.fake.cluster import FakeCluster
from slurm.fake.placement import FakeNode
from slurm.interface import PreemptsBy
from slurm.partitions import PartitionSnapshot
from tests.orchestrator.cli.parlay import write_search

SEARCH = """\
name: checked
model: {num_layers: 4, hidden_size: 32, num_attention_heads: 4, vocab_size: 64, seq_length: 16}
cluster: {accelerator: a100-80gb, gpus_per_node: 4, num_nodes: 4}
global_batch_size: 64
space:
  num_nodes: [1, 2, 4]
  tensor_parallel: [1, 2]
measure: {time_limit: 2h}
launcher: {kind: slurm}
"""
MAIN = PartitionSnapshot("main", is_default=True, num_nodes=4)


@pytest.fixture
def slurm() -> FakeSlurm:
    return slurm_with("main")


def slurm_with(*partitions: str) -> FakeSlurm:
    """Four nodes, all of them in each partition; the first is the default one."""
    nodes = [FakeNode(f"n{i}", cpus=8, memory_mib=64_000, gpu_kinds=("a100",)) for i in range(1, 5)]
    return FakeSlurm(FakeCluster(nodes, partitions=partitions))


def examined(slurm: FakeSlurm, folder: Path, *changes: str) -> list[Finding]:
    spec = load_search_file(write_search(folder, SEARCH), changes)
    return list(check_jobs(slurm, spec, candidates_of(spec)))


def faults(slurm: FakeSlurm, folder: Path, *changes: str) -> list[tuple[str, Level]]:
    return [(f.name, f.level) for f in examined(slurm, folder, *changes) if f.level is not Level.OK]


def test_a_search_that_the_cluster_takes(tmp_path, slurm):
    slurm.limits = AssociationLimits((Association("acc", qos=("normal",)),), (Qos("normal"),))
    findings = examined(slurm, tmp_path)
    assert {f.level for f in findings} == {Level.OK}
    assert [f.name for f in findings] == [
        *("partition", "account", "accelerator", "nodes_up", "sbatch", "nodes_up", "sbatch", "parallel_trials")
    ]
    assert slurm.cluster.jobs() == []


@pytest.mark.parametrize(
    ("changes", "whole_nodes", "levels"),
    [
        ([], False, []),
        (["launcher.slurm.gpus_per_node=2"], False, [Level.WARNING]),
        (["launcher.slurm.gpus_per_node=2", "launcher.slurm.cpus_per_task=2"], False, []),
        (["launcher.slurm.gpus_per_node=2", "launcher.slurm.exclusive=user"], False, [Level.WARNING]),
        (["launcher.slurm.gpus_per_node=2", "launcher.slurm.exclusive=true"], False, []),
        (["launcher.slurm.gpus_per_node=2"], True, []),
    ],
)
def test_trials_that_may_share_a_node_are_warned_of(tmp_path, slurm, changes, whole_nodes, levels):
    slurm.partition_limits["main"] = replace(MAIN, has_whole_nodes=whole_nodes)
    found = [f for f in examined(slurm, tmp_path, *changes) if f.name == "exclusive"]
    assert [f.level for f in found] == levels
    assert all("(n[1-4])" in f.message and "shared_node" in (f.fix or "") for f in found)


@pytest.mark.bad_input(20)
def test_two_hours_in_a_partition_of_one_are_an_error_though_sbatch_would_take_them(tmp_path, slurm):
    slurm.partition_limits["main"] = replace(MAIN, max_time_s=3600.0)
    findings = [f for f in examined(slurm, tmp_path) if f.name == "time_limit"]
    assert [f.level for f in findings] == [Level.ERROR, Level.ERROR]
    assert "for 121 minutes" in findings[0].message
    assert "partition main allows at most 60 minutes" in findings[0].message
    assert "measure.time_limit" in (findings[0].fix or "")
    assert faults(slurm, tmp_path, "measure.time_limit=59m") == [("account", Level.NOTE)]


@pytest.mark.parametrize(
    ("mode", "level", "follows"),
    [("REQUEUE", Level.NOTE, "starts again, at most 8 times"), ("SUSPEND,GANG", Level.WARNING, "measures the pause")],
)
def test_partitions_whose_jobs_others_preempt_are_named(tmp_path, mode, level, follows):
    slurm = slurm_with("main", "high")
    slurm.cluster.settings = replace(slurm.cluster.settings, preempts_by=PreemptsBy.PARTITION)
    assert "preemption" not in [f.name for f in examined(slurm, tmp_path)]
    nodes = tuple(slurm.cluster.nodes)
    slurm.partition_limits = {
        "main": replace(MAIN, nodes=nodes, preempt_mode=mode, grace_time_s=30.0),
        "high": PartitionSnapshot("high", num_nodes=4, nodes=nodes[:1], priority_tier=2),
    }
    [found] = [f for f in examined(slurm, tmp_path) if f.name == "preemption"]
    assert found.level is level
    assert f"may be preempted by those of partition high (PreemptMode {mode}, 30 s of grace)" in found.message
    assert follows in found.message
    assert ("starts again" in found.message) == (mode == "REQUEUE"), "a suspended trial is not retried"


def test_more_nodes_than_a_partition_gives_are_an_error_of_the_largest_job_alone(tmp_path, slurm):
    slurm.partition_limits["main"] = replace(MAIN, max_nodes=2)
    assert ("nodes", Level.ERROR) in faults(slurm, tmp_path)
    assert ("nodes", Level.ERROR) not in faults(slurm, tmp_path, "constraints.max_nodes=2")


@pytest.mark.bad_input(22)
@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        ("launcher.slurm.partition=nosuch", "partition", "there is no partition nosuch"),
        ("launcher.slurm.cpus_per_task=3", "cpus", "12 CPUs per node requested, the nodes have 8"),
        ("launcher.slurm.mem=100G", "memory", "102400 MiB of memory per node requested, the nodes have 64000"),
        ("launcher.slurm.gpus_per_node=8", "gpus", "8 GPUs per node requested, the nodes have 4"),
        ("launcher.slurm.exclude=[n4]", "nodes", "4 nodes requested, there are 3"),
        ("cluster.accelerator=h100-80gb", "accelerator", "is h100-80gb, the nodes' GPUs are a100"),
        ("cluster.accelerator=gb200", "accelerator", "is gb200-186gb, the nodes' GPUs are a100"),
        ("cluster.accelerator=mi355x", "accelerator", "is mi355x-288gb, the nodes' GPUs are a100"),
    ],
)
def test_what_the_nodes_have_not_is_reported_with_both_numbers(tmp_path, slurm, change, name, words):
    found = [f for f in examined(slurm, tmp_path, change) if f.level is Level.ERROR and f.name == name]
    assert found
    assert words in found[0].message
    assert found[0].fix


def test_nodes_that_are_away_are_a_warning_until_no_trial_can_start(tmp_path, slurm):
    slurm.cluster.drain_node("n1")
    [largest] = [f for f in examined(slurm, tmp_path) if f.name == "nodes_up" and f.level is not Level.OK]
    assert largest.level is Level.WARNING
    assert "n1 of the 4 nodes that could run it: drained" in largest.message
    for name in ("n2", "n3", "n4"):
        slurm.cluster.drain_node(name)
    found = [f.level for f in examined(slurm, tmp_path) if f.name == "nodes_up"]
    assert found == [Level.ERROR, Level.WARNING]


def test_a_partition_that_is_closed_or_for_others(tmp_path, slurm):
    slurm.partition_limits["main"] = replace(MAIN, state_text="DRAIN", allowed_groups=("no-such-group",))
    assert faults(slurm, tmp_path)[:2] == [("partition", Level.WARNING), ("partition", Level.ERROR)]
    slurm.partition_limits["main"] = replace(MAIN, allowed_accounts=("b",), denied_qos=("low",))
    changes = ("launcher.slurm.account=a", "launcher.slurm.qos=low")
    assert faults(slurm, tmp_path, *changes)[:2] == [("partition", Level.ERROR)] * 2


def test_a_partition_that_is_not_there_is_reported_once(tmp_path, slurm):
    assert faults(slurm, tmp_path, "launcher.slurm.partition=nosuch") == [
        ("partition", Level.ERROR),
        ("account", Level.NOTE),
    ]


def test_no_default_partition_and_none_named(tmp_path, slurm):
    slurm.partition_limits["main"] = replace(MAIN, is_default=False)
    [finding] = [f for f in examined(slurm, tmp_path) if f.name == "partition"]
    assert (finding.level, finding.fix) == (Level.ERROR, "set launcher.slurm.partition to one of: main")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ((), []),
        (("launcher.slurm.account=acc",), []),
        (("launcher.slurm.account=other",), [("account", Level.WARNING)]),
        (("launcher.slurm.qos=fast",), [("time_limit", Level.ERROR), ("nodes", Level.ERROR)]),
        (("launcher.slurm.qos=nosuch",), [("qos", Level.ERROR)]),
        (("launcher.slurm.qos=big",), [("qos", Level.WARNING)]),
        (("search.parallel_trials=5",), [("parallel_trials", Level.NOTE)]),
        (("search.parallel_trials=9",), [("parallel_trials", Level.WARNING)]),
    ],
)
def test_accounts_qos_and_their_limits(tmp_path, slurm, changes, found):
    slurm.limits = AssociationLimits(
        (Association("acc", qos=("normal", "fast"), max_jobs=4, max_submit=8),),
        (Qos("normal"), Qos("fast", max_wall_s=3600.0, max_nodes=2), Qos("big")),
    )
    assert list(dict.fromkeys(faults(slurm, tmp_path, *changes))) == found


def test_the_accounts_default_qos_counts_where_none_is_named(tmp_path, slurm):
    fast = Qos("fast", max_wall_s=3600.0, max_submit=1)
    slurm.limits = AssociationLimits((Association("acc", qos=("fast",), default_qos="fast"),), (fast,))
    found = set(faults(slurm, tmp_path, "search.parallel_trials=2"))
    assert found == {("time_limit", Level.ERROR), ("parallel_trials", Level.WARNING)}


def test_what_a_qos_allows_stands_before_what_the_account_does(tmp_path, slurm):
    """Slurm applies the account's limits only where the QOS sets none (resource_limits.html, "Hierarchy")."""
    account = Association("acc", qos=("long",), default_qos="long", max_jobs=1, max_submit=1, max_wall_s=3600.0)
    slurm.limits = AssociationLimits((account,), (Qos("long", max_wall_s=86400.0, max_jobs=8, max_submit=8),))
    assert faults(slurm, tmp_path, "search.parallel_trials=2") == []
    slurm.limits = AssociationLimits((account,), (Qos("long"),))
    found = set(faults(slurm, tmp_path, "search.parallel_trials=2"))
    assert found == {("time_limit", Level.ERROR), ("parallel_trials", Level.WARNING)}


def test_a_qos_allows_a_job_so_many_gpus(tmp_path, slurm):
    slurm.limits = AssociationLimits((Association("acc", qos=("few",), default_qos="few"),), (Qos("few", max_gpus=8),))
    [largest] = [f for f in examined(slurm, tmp_path) if f.level is Level.ERROR]
    assert largest.name == "gpus"
    assert "QOS few allows 8 GPUs (MaxTRES), 16 are asked for" in largest.message
    assert faults(slurm, tmp_path, "constraints.max_nodes=2") == []


def test_accounts_and_qos_are_the_same_whatever_their_case(tmp_path, slurm):
    """Sites print them in capitals, and accounting keeps them in small letters."""
    slurm.partition_limits["main"] = replace(MAIN, allowed_accounts=("PROJ7",), denied_qos=("Low",))
    slurm.limits = AssociationLimits((Association("proj7", qos=("normal",)),), (Qos("normal"),))
    assert faults(slurm, tmp_path, "launcher.slurm.account=PROJ7", "launcher.slurm.qos=Normal") == []


def test_a_qos_may_lift_the_partitions_limit(tmp_path, slurm):
    slurm.partition_limits["main"] = replace(MAIN, max_time_s=3600.0)
    slurm.limits = AssociationLimits((Association("acc", qos=("long",)),), (Qos("long", overrides_max_time=True),))
    assert faults(slurm, tmp_path, "launcher.slurm.qos=long") == []


@pytest.mark.parametrize(
    ("qos", "limits", "found"),
    [
        (Qos("q", overrides_max_nodes=True), {"max_time_s": 3600.0, "max_nodes": 2}, [("time_limit", Level.ERROR)]),
        (Qos("q", overrides_max_time=True), {"max_time_s": 3600.0, "max_nodes": 2}, [("nodes", Level.ERROR)]),
        (Qos("q", overrides_min_nodes=True), {"min_nodes": 2}, []),
        (Qos("q", overrides_max_nodes=True), {"min_nodes": 2}, [("nodes", Level.ERROR)]),
    ],
)
def test_a_qos_lifts_the_limits_it_says_and_no_others(tmp_path, slurm, qos, limits, found):
    slurm.partition_limits["main"] = replace(MAIN, **limits)
    slurm.limits = AssociationLimits((Association("acc", qos=("q",)),), (qos,))
    assert list(dict.fromkeys(faults(slurm, tmp_path, "launcher.slurm.qos=q"))) == found


@pytest.mark.parametrize(
    ("of_partition", "of_job", "found"),
    [
        (Qos("part", max_wall_s=3600.0), Qos("mine"), {("time_limit", Level.ERROR)}),
        (Qos("part", max_nodes=2), Qos("mine"), {("nodes", Level.ERROR)}),
        (Qos("part", max_wall_s=86400.0), Qos("mine", max_wall_s=3600.0), set()),
        (
            Qos("part", max_wall_s=86400.0),
            Qos("mine", max_wall_s=3600.0, overrides_partition_qos=True),
            {("time_limit", Level.ERROR)},
        ),
        (Qos("part", max_submit=1), Qos("mine"), {("parallel_trials", Level.WARNING)}),
    ],
)
def test_a_partitions_own_qos_stands_before_the_jobs(tmp_path, slurm, of_partition, of_job, found):
    slurm.partition_limits["main"] = replace(MAIN, qos="part")
    slurm.limits = AssociationLimits((Association("acc", qos=("mine",), default_qos="mine"),), (of_partition, of_job))
    assert set(faults(slurm, tmp_path, "search.parallel_trials=2")) == found


@pytest.mark.parametrize(
    "shut", [{"state_text": "DOWN"}, {"allowed_groups": ("no-such-group",)}, {"denied_accounts": ("acc",)}]
)
def test_a_shut_partition_beside_an_open_one_is_a_remark(tmp_path, shut):
    slurm = slurm_with("main", "b")
    slurm.partition_limits["b"] = PartitionSnapshot("b", num_nodes=4, **shut)
    changes = ("launcher.slurm.partition=main,b", "launcher.slurm.account=acc")
    [finding] = [f for f in examined(slurm, tmp_path, *changes) if f.name == "partition" and f.level is not Level.OK]
    assert finding.level is Level.NOTE
    assert "partition b " in finding.message
    assert finding.fix == "nothing, or leave b out of launcher.slurm.partition"
    assert ("partition", Level.NOTE) not in faults(slurm, tmp_path, "launcher.slurm.account=acc")


def test_what_a_shut_partition_would_allow_helps_no_job(tmp_path):
    slurm = slurm_with("main", "b")
    slurm.partition_limits["main"] = replace(MAIN, max_time_s=3600.0)
    slurm.partition_limits["b"] = PartitionSnapshot("b", num_nodes=4, allowed_groups=("no-such-group",))
    assert ("time_limit", Level.ERROR) in faults(slurm, tmp_path, "launcher.slurm.partition=main,b")


def test_what_only_slurm_itself_knows_is_reported_in_its_words_with_the_key(tmp_path, slurm):
    slurm.submissions_refused("allocation failure: Invalid feature specification")
    found = [f for f in examined(slurm, tmp_path) if f.level is Level.ERROR]
    assert {f.name for f in found} == {"sbatch"}
    assert "launcher.slurm.constraint" in found[0].message
    assert "Invalid feature specification" in found[0].message


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


def test_a_sites_profile_is_held_against_the_live_cluster(tmp_path, slurm):
    (tmp_path / "ada.toml").write_text(PROFILE)
    changes = ("launcher.slurm.site=./ada.toml", "constraints.max_nodes=2")
    slurm.partition_limits["main"] = replace(MAIN, max_time_s=14400.0)
    found = [(f.level, f.message) for f in examined(slurm, tmp_path, *changes) if f.name == "site"]
    assert [level for level, _ in found] == [Level.WARNING, Level.WARNING, Level.NOTE, Level.NOTE]
    assert "the profile's limit is 2 nodes, Slurm's is no limit" in found[0][1]
    assert "usable CPUs of a node are 16, Slurm has 8" in found[1][1]
    assert "not verified" in found[2][1]
    assert "second Tuesday" in found[3][1]
    slurm.partition_limits["main"] = replace(MAIN, max_time_s=14400.0, max_nodes=2)
    (tmp_path / "ada.toml").write_text(PROFILE.replace("usable_cpus = 16", "usable_cpus = 8"))
    levels = [f.level for f in examined(slurm, tmp_path, *changes) if f.name == "site"]
    assert levels == [Level.OK, Level.NOTE, Level.NOTE]


@pytest.mark.bad_input(26)
def test_a_variable_that_decides_what_every_rank_runs_is_a_warning(tmp_path, slurm):
    found = [f for f in examined(slurm, tmp_path, "launcher.slurm.env={PATH: /x, A: b}") if f.name == "environment"]
    assert [(f.level, f.message.split()[0]) for f in found] == [(Level.WARNING, "launcher.slurm.env.PATH")]
