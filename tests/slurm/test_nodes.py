"""Nodes: lists of hosts, sinfo, the topology, and whether a job waits only for unavailable ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm.hostlist import MAX_HOSTS, HostListError, compress, expand
from slurm.nodes import (
    NodeSnapshot,
    Resource,
    are_told,
    gpus_requested,
    memory_mib,
    num_up,
    parse_blocks,
    parse_leaves,
    parse_sinfo,
    shortages,
    wait_reason,
)
from slurm.request import JobOptions, JobRequest, Placement

LISTED = """\
n1|drained|64|512000|gpu:a100:4(S:0-1)|gpu|fast,ib
n1|drained|64|512000|gpu:a100:4(S:0-1)|main*|fast,ib
n2|down*|64|512000|gpu:a100:4|main*|fast
n3|mixed|64+|256000+|gpu:v100:2,gpu:a100:1,ssd:1|main*|(null)
n4|idle~|8|16000|gpu:0|main*|(null)
CLUSTER: big
n5|idle
"""


def asked(
    num_nodes: int = 1, tasks: int = 1, minutes: float = 1.0, exclude: tuple[str, ...] = (), **options: object
) -> JobRequest:
    request = JobRequest("a", Path("/a"), num_nodes, tasks, 60 * minutes, ("true",), options=JobOptions(**options))
    return replace(request, exclude=exclude)


def test_lines_are_nodes_in_partitions():
    nodes = parse_sinfo(LISTED)
    assert [(n.name, n.partition, n.is_in_default_partition) for n in nodes] == [
        ("n1", "gpu", False),
        *((name, "main", True) for name in ("n1", "n2", "n3", "n4")),
    ]
    assert [n.cpus for n in nodes] == [64, 64, 64, 64, 8]
    assert [n.gpus for n in nodes] == [4, 4, 4, 3, 0]
    assert [n.memory_mib for n in nodes] == [512000, 512000, 512000, 256000, 16000]
    assert [n.gpu_kinds for n in nodes] == [("a100",), ("a100",), ("a100",), ("v100", "a100"), ()]
    assert [n.features for n in nodes] == [("fast", "ib"), ("fast", "ib"), ("fast",), (), ()]
    assert [n.is_away for n in nodes] == [True, True, True, False, False]


AWAY = ("down", "down*", "drained", "draining", "idle*", "fail", "failing", "maint", "unknown", "inval")
THERE = ("idle", "idle~", "mixed", "mixed-", "allocated", "completing", "planned", "idle#")


@pytest.mark.parametrize("state", [*AWAY, *THERE])
def test_a_node_that_takes_no_job_now_is_away_and_one_that_is_busy_asleep_or_starting_is_not(state):
    assert NodeSnapshot("n1", state, 1, 0, "main", True).is_away is (state in AWAY)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 5),
        ({"gpus_per_node": 4}, 4),
        ({"gres": "gpu:v100:2,ssd:1"}, 2),
        ({"gres": "gpu:a100:4", "exclude": ("n1",)}, 1),
        ({"gres": "gpu:h100:4"}, 0),
        ({"mem": "500G"}, 2),
        ({"constraint": "fast&ib"}, 1),
        ({"constraint": "slow"}, 0),
    ],
)
def test_of_unlike_nodes_those_that_have_what_a_job_asks_for_are_counted(options, count):
    """The others would let a repeat avoid all nodes that it can run on: Slurm then refuses, and bad ones come back."""
    rows = (
        "n1|idle|64|512000|gpu:a100:4|main*|fast,ib",
        "n2|mixed|64|512000|gpu:a100:4|main*|fast",
        "n3|down*|64|512000|gpu:a100:4|main*|fast",
        "n4|idle|64|256000|gpu:v100:4|main*|(null)",
        "n5|idle|64|256000|gpu:v100:4|main*|(null)",
        "n6|idle|64|256000|(null)|main*|(null)",
    )
    assert num_up(JobOptions(**options), parse_sinfo("\n".join(rows))) == count


def test_a_reservation_and_other_constraints_do_not_tell_the_nodes():
    assert are_told(JobOptions())
    assert are_told(JobOptions(constraint="fast&ib"))
    assert not are_told(JobOptions(constraint="fast|slow"))
    assert not are_told(JobOptions(reservation="r1"))


@pytest.mark.parametrize("placement", [Placement.CONTIGUOUS, Placement.ONE_BLOCK])
def test_a_placed_job_may_wait_for_any_node_that_is_away(placement):
    """sbatch takes it and it waits, but its test refuses it: the drained node is amid those that are up."""
    placed = replace(asked(2, repeat_placement=placement), is_repeat=True)
    assert wait_reason(placed, parse_sinfo(LISTED)) == "n[1-2] of the 4 nodes that could run it: down* or drained"
    assert wait_reason(replace(placed, num_nodes=5), parse_sinfo(LISTED)) is None, "more than there are"
    up = LISTED.replace("drained", "idle").replace("down*", "idle")
    assert wait_reason(placed, parse_sinfo(up)) is None
    assert wait_reason(replace(placed, is_repeat=False), parse_sinfo(LISTED)) is None


@pytest.mark.parametrize(
    ("request_", "away"),
    [
        (asked(3), "n[1-2]"),  # of four, one would be missing
        (asked(2), None),  # two are up
        (asked(1, partition="gpu"), "n1"),
        (asked(1, partition="gpu,main"), None),
        (asked(2, tasks=64), "n[1-2]"),  # n4 is too small
        (asked(1, gres="gpu:a100:4"), "n[1-2]"),
        (asked(1, nodelist=("n[1-2]",)), "n[1-2]"),
        (asked(1, nodelist=("n1",), exclude=("n1",)), None),
    ],
)
def test_only_nodes_that_would_do_and_are_needed_are_waited_for(request_, away):
    words = wait_reason(request_, parse_sinfo(LISTED))
    assert (words is None) is (away is None)
    assert words is None or words.startswith(f"{away} of the ")


def test_gpus_are_asked_for_by_number_or_as_resources_and_memory_in_mib_of_a_node():
    assert gpus_requested(asked(gpus_per_node=4)) == 4
    assert gpus_requested(asked(gres="ssd:1,gpu:a100:2,gpu:v100:1")) == 3
    assert gpus_requested(asked(gres="ssd:1")) == gpus_requested(asked()) == 0
    sizes = {None: 0, "0": 0, "4000": 4000, "4000M": 4000, "20G": 20480, "1T": 1048576, "512K": 0}
    assert {text: memory_mib(text) for text in sizes} == sizes


SHORT = {
    Resource.NODES: "{} nodes requested, there are {}",
    Resource.CPUS: "{} CPUs per node requested, the nodes have 8 to 64",
    Resource.MEMORY: "{} MiB of memory per node requested, the nodes have 16000 to 512000",
    Resource.GPUS: "{} GPUs per node requested, the nodes have 0 to 4",
}


@pytest.mark.parametrize(
    ("request_", "short"),
    [
        (asked(5), {Resource.NODES: (5, 4)}),
        (asked(2, partition="gpu"), {Resource.NODES: (2, 1)}),
        (asked(3, tasks=64), {}),  # nodes that are down count
        (asked(4, tasks=64), {Resource.CPUS: (64,)}),
        (asked(2, mem="500G"), {}),
        (asked(3, mem="500G"), {Resource.MEMORY: (512000,)}),
        (asked(3, gpus_per_node=4), {Resource.GPUS: (4,)}),
        (asked(1, tasks=65, gpus_per_node=8), {Resource.CPUS: (65,), Resource.GPUS: (8,)}),
    ],
)
def test_what_no_enough_nodes_have_is_reported_with_both_numbers(request_, short):
    expected = {resource: SHORT[resource].format(*numbers) for resource, numbers in short.items()}
    assert {s.resource: s.message for s in shortages(request_, parse_sinfo(LISTED))} == expected
    unknown = NodeSnapshot("n1", "idle", 8, 0, "main", True)
    assert shortages(asked(1, mem="500G"), [unknown]) == (), "nobody says how much memory it has"


BLOCKS = """\
BlockName=b1 BlockIndex=0 Nodes=n[1-3] BlockSize=4
BlockName=b2 BlockIndex=1 Nodes=n4 BlockSize=4
AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=8
"""
TREE = """\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[3-4]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2]
"""
"""Output of Slurm 22.05."""


@pytest.mark.parametrize(
    ("stdout", "blocks", "leaves"),
    [
        (BLOCKS, (3, 1), {"n1": "b1", "n2": "b1", "n3": "b1", "n4": "b2"}),
        (TREE, (), {"n1": "leaf1", "n2": "leaf1", "n3": "leaf2", "n4": "leaf2"}),
        ("No topology information available\n", (), {}),
    ],
)
def test_each_block_has_its_size_and_each_node_its_leaf_switch_or_its_block(stdout, blocks, leaves):
    assert parse_blocks(stdout) == blocks
    assert parse_leaves(stdout) == leaves


def test_no_nodes_are_none_and_a_broken_list_has_no_leaves():
    assert parse_blocks("BlockName=b1 BlockIndex=0 Nodes=(null)\n") == (0,)
    assert parse_leaves("BlockName=b1 BlockIndex=0 Nodes=n[1-") == {}


names = st.from_regex(r"[a-z]{1,4}[0-9]{0,4}(-ib[0-9]{1,2})?(\.[a-z]{2})?", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login", ["login"]),
        ("n[1-4,7]", ["n1", "n2", "n3", "n4", "n7"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]-ib[0-1]", ["r1-ib0", "r1-ib1", "r2-ib0", "r2-ib1"]),
        ("n[1-2],login, gpu[3].site", ["n1", "n2", "login", "gpu3.site"]),
        ("", []),
    ],
)
def test_a_host_list_expands_in_its_own_order(text, hosts):
    assert list(expand(text)) == hosts


WRONG = ("n[1-", "n[a]", "n[2-1]", "a,,b", "-x", "$(x)", "n\n1")
TOO_LONG = ("n[1-100001]", "n[1-999999999]", "a[1-400]b[1-400]", "n[1-60000],m[1-60000]")


@pytest.mark.bad_input(29)
@pytest.mark.parametrize("text", [*WRONG, *TOO_LONG])
def test_what_is_no_host_list_is_refused_and_a_list_beyond_any_cluster_before_it_costs_memory(text):
    with pytest.raises(HostListError, match=str(MAX_HOSTS) if text in TOO_LONG else ""):
        expand(text)
    assert len(expand(f"n[1-{MAX_HOSTS}]")) == MAX_HOSTS


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ([], ""),
        (["n2", "n1", "n3", "n7", "n1"], "n[1-3,7]"),
        (["n9", "n10"], "n[9-10]"),
        (["r1-ib0", "r1-ib1", "r2-ib0"], "r1-ib[0-1],r2-ib0"),
    ],
)
def test_names_are_compressed_by_their_last_number(hosts, text):
    assert compress(hosts) == text


@pytest.mark.slow
@given(st.lists(names, max_size=40))
def test_compressing_loses_and_invents_no_host(hosts):
    expanded = expand(compress(hosts))
    assert sorted(expanded) == sorted(set(hosts))


@given(st.text())
def test_any_text_expands_or_is_refused(text):
    try:
        hosts = expand(text)
    except HostListError:
        return
    assert all("\n" not in host and " " not in host for host in hosts)
