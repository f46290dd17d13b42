"""Partitions from scontrol: jobs that none of them would ever start, and what may preempt a job."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from slurm.association_limits import AssociationLimits, Qos
from slurm.interface import PreemptsBy, SlurmSettings
from slurm.parse import parse_config
from slurm.partitions import PartitionSnapshot, beyond_limits, default_partition, named_partitions, parse_partitions
from slurm.preemption import Preemption, preemption_of
from slurm.request import JobOptions
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
    assert main == PartitionSnapshot("main", is_default=True, num_nodes=4, nodes=("n1", "n2", "n3", "n4"))
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


TIERS = """\
PartitionName=main Default=YES GraceTime=0 Nodes=n[1-4] PriorityTier=1 PreemptMode=REQUEUE State=UP
PartitionName=scav Default=NO GraceTime=5 Nodes=n[1-4] PriorityTier=1 PreemptMode=CANCEL State=UP \
TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=8.0
PartitionName=high Default=NO GraceTime=0 Nodes=n[3-9] PriorityTier=10 PreemptMode=OFF State=UP
PartitionName=apart Default=NO GraceTime=0 Nodes=m[1-2] PriorityTier=1 PreemptMode=REQUEUE State=UP
"""
PARTITIONS = parse_partitions(TIERS)
CONFIG = parse_config("PreemptMode             = REQUEUE\nPreemptType             = preempt/partition_prio\n")


BY_QOS = replace(CONFIG, preempts_by=PreemptsBy.QOS)
QOS = (
    Qos("low", preempt_mode="requeue", grace_time_s=60.0),
    Qos("high", preempts=("low", "normal")),
    Qos("normal"),
)


@pytest.mark.parametrize(
    ("options", "settings", "expected"),
    [
        (JobOptions(partition="scav"), CONFIG, Preemption(PreemptsBy.PARTITION, ("high",), "CANCEL", 5.0)),
        (JobOptions(), CONFIG, Preemption(PreemptsBy.PARTITION, ("high",), "REQUEUE", 0.0)),
        (JobOptions(partition="high"), CONFIG, None),
        (JobOptions(partition="apart"), CONFIG, None),  # no partition has its nodes as well
        (JobOptions(partition="scav"), parse_config("PreemptType = (null)\nPreemptMode = OFF"), None),
        (JobOptions(qos="low"), BY_QOS, Preemption(PreemptsBy.QOS, ("high",), "REQUEUE", 60.0)),
        (JobOptions(qos="high"), BY_QOS, None),
        (JobOptions(), BY_QOS, None),  # its QOS is not known
    ],
)
def test_a_job_is_preempted_by_a_higher_tier_on_its_nodes_or_by_a_qos_that_names_its_own(options, settings, expected):
    request = replace(asked(), options=options)
    assert preemption_of(request, settings, PARTITIONS, AssociationLimits((), QOS)) == expected
