"""Preemption that a job may suffer, by what Slurm 22.05 shows of partitions and QOS."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from slurm.association_limits import AssociationLimits, Qos
from slurm.interface import PreemptsBy, SlurmSettings
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


def job(**options) -> JobRequest:
    return JobRequest("a", Path("/a"), 1, 1, 60.0, ("true",), options=JobOptions(**options))


def preempted(request: JobRequest, settings: SlurmSettings = CONFIG, limits: AssociationLimits | None = None):
    return preemption_of(request, settings, PARTITIONS, limits)


def test_partitions_of_a_higher_tier_preempt_on_nodes_that_they_share():
    assert preempted(job(partition="scav")) == Preemption(PreemptsBy.PARTITION, ("high",), "CANCEL", 5.0)
    assert preempted(job()) == Preemption(PreemptsBy.PARTITION, ("high",), "REQUEUE", 0.0)
    assert preempted(job(partition="high")) is None
    assert preempted(job(partition="apart")) is None, "no partition has its nodes as well"
    assert preempted(job(partition="scav"), parse_config("PreemptType = (null)\nPreemptMode = OFF")) is None


def test_qos_preempt_those_that_they_name():
    settings = replace(CONFIG, preempts_by=PreemptsBy.QOS)
    low, high = Qos("low", preempt_mode="requeue", grace_time_s=60.0), Qos("high", preempts=("low", "normal"))
    limits = AssociationLimits((), (Qos("normal"), low, high))
    assert preempted(job(qos="low"), settings, limits) == Preemption(PreemptsBy.QOS, ("high",), "REQUEUE", 60.0)
    assert preempted(job(qos="normal"), settings, limits) == Preemption(PreemptsBy.QOS, ("high",), "REQUEUE", 0.0)
    assert preempted(job(qos="high"), settings, limits) is None
    assert preempted(job(), settings, limits) is None, "its QOS is not known"
