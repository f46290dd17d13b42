"""Billing units of jobs by a partition's weights."""

from __future__ import annotations

import pytest

from slurm.association_limits import AssociationLimits, Qos
from slurm.billing import BillingRules, billing_with_factor, job_billing, parse_weights
from slurm.job_state import JobSnapshot, JobState
from slurm.nodes import parse_sinfo
from tests.slurm.test_nodes import asked

WEIGHTS = "CPU=1.0,Mem=0.25G,GRES/gpu=8.0"
NODES = parse_sinfo(
    "n1|idle|4|4000|gpu:2|main*|(null)\nn2|idle|4|4000|gpu:2|main*|(null)\nbig|idle|64|512000|gpu:8|main*|(null)\n"
)


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        (WEIGHTS, {"cpu": 1.0, "mem": 0.25 / 1024, "gres/gpu": 8.0}),
        ("mem=.25", {"mem": 0.25}),
        ("CPU=-1,license/x=3K", {"cpu": -1.0, "license/x": 3 / 1024}),
        ("", None),
        ("CPU=much", None),
    ],
)
def test_weights_are_units_of_one_of_a_resource(text, weights):
    """A memory weight without suffix is for a MiB (slurm.conf(5))."""
    assert parse_weights(text) == weights


GPUS, MEMORY = parse_weights(WEIGHTS), {"cpu": 1.0, "mem": 0.25 / 1024}


@pytest.mark.parametrize(
    ("request_", "whole_nodes", "rules", "billed"),
    [
        # What Slurm 22.05 reported as billing= of these jobs on the sandbox.
        (asked(2, 2, gpus_per_node=2), True, BillingRules(GPUS), 40.0),
        (asked(1, 2, gpus_per_node=1, mem="1000M"), False, BillingRules(GPUS), 10.0),
        (asked(2, 2, gpus_per_node=2), True, BillingRules(GPUS, takes_max=True), 32.0),
        (asked(4), True, BillingRules(), 16.0),
        # By slurm.conf(5): memory where it is allocated, GPUs beside the largest of the others.
        (asked(mem="3000M"), False, BillingRules(MEMORY, tracks_memory=True), 1.0),
        (asked(), False, BillingRules({"cpu": 1.0, "mem": 1 / 1024}, tracks_memory=True), 4.0),
        (asked(1, 100), True, BillingRules({"cpu": 1.0}), 100.0),
    ],
)
def test_a_job_is_billed_what_it_is_allocated_on_the_smallest_node_that_it_fits(request_, whole_nodes, rules, billed):
    assert job_billing(request_, NODES, rules, whole_nodes) == billed
    one_kind = parse_sinfo("n1|idle|4|4000|gpu:h100:2|main*|(null)\n")
    assert job_billing(asked(1, 2, gpus_per_node=2), one_kind, BillingRules({"gres/gpu:h100": 3.0}), False) == 6.0


def test_the_usage_factor_of_its_qos_counts():
    ended = JobSnapshot("1", "a", "me", JobState.COMPLETED, "COMPLETED", billing=40.0, qos="fast")
    limits = AssociationLimits((), (Qos("normal"), Qos("fast", usage_factor=2.5)))
    assert billing_with_factor(ended, limits) == 100.0
    assert billing_with_factor(ended, None) == 40.0, "without accounting there are no QOS"
    assert billing_with_factor(ended, AssociationLimits()) is None, "it is not known"
