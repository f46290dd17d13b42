"""Partitions from scontrol, and jobs that none of them would ever start."""

from __future__ import annotations

import math
import re

import pytest

from slurm.interface import SlurmSettings
from slurm.partitions import PartitionSnapshot, beyond_limits, default_partition, named_partitions, parse_partitions
from tests.slurm.test_nodes import asked

SHOWN = """\
PartitionName=main AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A DefaultTime=NONE \
DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO \
MaxCPUsPerNode=UNLIMITED Nodes=n[1-4] OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State=UP TotalCPUs=16 \
TotalNodes=4 SelectTypeParameters=NONE
PartitionName=debug AllowGroups=physics,chem AllowAccounts=a,b DenyQos=slow Default=NO MaxNodes=2 MaxTime=01:00:00 \
MinNodes=2 OverTimeLimit=5 State=DRAIN TotalNodes=8
PartitionName=long DenyAccounts=a AllowQos=fast QoS=part-long MaxTime=7-12:30:00 OverTimeLimit=UNLIMITED State=UP
PartitionName=odd MaxTime=soon OverTimeLimit=0 State=UP
No partitions in the system
"""


def test_lines_are_partitions_that_say_who_is_let_in():
    main, debug, long, odd = parse_partitions(SHOWN)
    assert main == PartitionSnapshot("main", is_default=True, num_nodes=4)
    limits = {"max_time_s": 3600.0, "min_nodes": 2, "max_nodes": 2.0, "num_nodes": 8, "over_time_s": 300.0}
    lets_in = {"allowed_accounts": ("a", "b"), "denied_qos": ("slow",), "allowed_groups": ("physics", "chem")}
    assert debug == PartitionSnapshot("debug", state_text="DRAIN", **limits, **lets_in)
    assert (long.max_time_s, long.over_time_s) == ((7 * 24 + 12.5) * 3600, math.inf)
    assert (odd.max_time_s, odd.over_time_s) == (math.inf, 0.0)
    assert [p.qos for p in (main, debug, long, odd)] == [None, None, "part-long", None]
    main, debug, long, _ = parse_partitions(SHOWN)
    assert [p.allows_account("a") for p in (main, debug, long)] == [True, True, False]
    assert [p.allows_account("c") for p in (main, debug, long)] == [True, False, True]
    assert [p.allows_qos("slow") for p in (main, debug, long)] == [True, False, False]


def test_a_request_names_its_partitions_or_takes_the_default():
    partitions = parse_partitions(SHOWN)
    assert default_partition(partitions) == "main"
    assert default_partition(partitions[1:]) == ""
    assert [p.name for p in named_partitions(asked(), partitions)] == ["main"]
    assert [p.name for p in named_partitions(asked(partition="long,debug,nosuch"), partitions)] == ["debug", "long"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (asked(minutes=10**6), None),
        (asked(2, minutes=60, partition="debug"), None),
        (asked(2, minutes=61, partition="debug"), "PartitionTimeLimit: .*partition debug allows at most 60 minutes"),
        (asked(3, minutes=60, partition="debug"), "PartitionNodeLimit: .*partition debug allows at most 2 nodes"),
        (asked(minutes=60, partition="debug"), "PartitionNodeLimit: .*partition debug needs at least 2 nodes"),
        (asked(3, minutes=61, partition="debug,main"), None),  # one that takes it is enough
        (
            asked(minutes=11520, partition="debug,long"),
            "debug allows at most 60 .*long allows at most 10830 minutes",
        ),
    ],
)
def test_a_job_that_every_partition_of_its_own_would_leave_waiting(request_, words):
    partitions = parse_partitions(SHOWN)
    found = beyond_limits(request_, named_partitions(request_, partitions))
    assert (found is None) is (words is None)
    assert words is None or re.search(words, found or "")


def test_a_partition_may_have_an_over_time_of_its_own():
    over_times = {p.name: p.over_time_s for p in parse_partitions(SHOWN) if p.over_time_s is not None}
    settings = SlurmSettings(over_time_limit_s=60.0, default_partition="debug", partition_over_times_s=over_times)
    known = {None: 300.0, "main": 60.0, "odd": 0.0, "odd,main": 60.0, "main,debug": 300.0, "long": math.inf}
    assert {partition: settings.over_time_s(partition) for partition in known} == known
