"""Preemption that a job may suffer, by what Slurm 22.05 shows of partitions and QOS."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm.association_limits import AssociationLimits, Qos
from slurm.interface import PreemptsBy
from slurm.parse import parse_config
from slurm.partitions import parse_partitions
from slurm.preemption import Preemption, preemption_of
from slurm.request import JobOptions, JobRequest

SHOWN = """\
PartitionName=main Default=YES GraceTime=0 Nodes=n[1-4] PriorityTier=1 PreemptMode=REQUEUE State=UP
PartitionName=scav Default=NO GraceTime=5 Nodes=n[1-4] PriorityTier=1 PreemptMode=CANCEL State=UP \
TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=8.0
PartitionName=high Default=NO GraceTime=0 Nodes=n[3-9] PriorityTier=10 PreemptMode=OFF State=UP
PartitionName=apart Default=NO GraceTime=0 Nodes=m[1-2] PriorityTier=1 PreemptMode=REQUEUE State=UP
"""
PARTITIONS = parse_partitions(SHOWN)
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
    request = JobRequest("a", Path("/a"), 1, 1, 60.0, ("true",), options=options)
    assert preemption_of(request, settings, PARTITIONS, AssociationLimits((), QOS)) == expected
