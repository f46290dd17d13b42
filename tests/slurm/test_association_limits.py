"""Accounts and QOS from sacctmgr."""

from __future__ import annotations

import math

import pytest

from slurm.association_limits import (
    Association,
    AssociationLimits,
    Qos,
    billing_with_factor,
    parse_associations,
    parse_qos,
)
from slurm.job_state import JobSnapshot, JobState
from slurm.request import JobOptions

ASSOCIATIONS = """\
parlay-sandbox|acc||fast,normal||4|5||
parlay-sandbox|acc||fast,normal||4|5|
parlay-sandbox|acc|gpu|normal|normal|||1-00:00:00
parlay-sandbox|root||normal||||
elsewhere|acc||normal||9||
sacctmgr: a warning
"""
QUALITIES = """\
normal||||||1.000000
fast|DenyOnLimit,PartitionTimeLimit|01:00:00|2|3|gres/gpu=4,node=2|2.500000
big|PartitionMaxNodes|||4|cpu=5000|1.000000
small|OverPartQOS,PartitionMinNodes|||||0.000000
"""
LIMITS = AssociationLimits(parse_associations(ASSOCIATIONS, "parlay-sandbox"), parse_qos(QUALITIES))


def test_rows_are_associations_of_this_cluster():
    assert parse_associations(ASSOCIATIONS, "parlay-sandbox") == (
        Association("acc", qos=("fast", "normal"), max_jobs=4, max_submit=5),
        Association("acc", "gpu", ("normal",), "normal", max_wall_s=86400.0),
        Association("root", qos=("normal",)),
    )


def test_rows_are_qualities_with_what_they_lift():
    limits = {"max_wall_s": 3600.0, "max_jobs": 2, "max_submit": 3, "max_nodes": 2, "max_gpus": 4}
    lifted = {"overrides_min_nodes": True, "overrides_partition_qos": True}
    assert parse_qos(QUALITIES) == (
        Qos("normal"),
        Qos("fast", overrides_max_time=True, **limits, usage_factor=2.5),
        Qos("big", overrides_max_nodes=True, max_submit=4),
        Qos("small", **lifted, usage_factor=0.0),
    )
    assert Qos("big").max_gpus == math.inf


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (JobOptions(account="acc", partition="main"), [("acc", None)]),
        (JobOptions(account="acc", partition="main,gpu"), [("acc", None), ("acc", "gpu")]),
        (JobOptions(partition="main"), [("acc", None), ("root", None)]),
        (JobOptions(account="nosuch", partition="main"), []),
    ],
)
def test_a_job_runs_under_the_associations_of_its_account_and_partition(options, found):
    assert [(one.account, one.partition) for one in LIMITS.associations_for(options)] == found


def test_a_job_without_a_qos_has_its_accounts_default_where_they_agree():
    normal, fast = Qos("normal"), Qos("fast", overrides_max_time=True)
    limits = AssociationLimits(
        (Association("a", default_qos="fast"), Association("b", default_qos="normal")), (normal, fast)
    )
    assert limits.qos_for(JobOptions(qos="normal", account="a")) == normal
    assert limits.qos_for(JobOptions(account="a")) == fast
    assert limits.qos_for(JobOptions()) is limits.qos("nosuch") is limits.qos(None) is None


def test_the_usage_factor_of_its_qos_counts_in_what_a_job_is_billed():
    ended = JobSnapshot("1", "a", "me", JobState.COMPLETED, "COMPLETED", billing=40.0, qos="fast")
    assert billing_with_factor(ended, LIMITS) == 100.0
    assert billing_with_factor(ended, None) == 40.0, "without accounting there are no QOS"
    assert billing_with_factor(ended, AssociationLimits()) is None, "it is not known"
