"""Billing hours of a search's jobs, as the cluster tells them, on a simulated cluster."""

from __future__ import annotations

import pytest

from orchestrator.search.stopping import Limits
from slurm.association_limits import AssociationLimits, Qos
from tests.orchestrator.search.slurm_rig import SlurmRig


@pytest.fixture
def rig(tmp_path) -> SlurmRig:
    rig = SlurmRig(tmp_path, limits=Limits(max_trials=3, parallel_trials=2))
    rig.slurm.limits = AssociationLimits((), (Qos("normal", usage_factor=0.5),))
    return rig


def test_attempts_are_billed_by_units_and_hours_and_the_factor_of_their_qos(rig):
    rig.cluster.billing_per_node = 40.0
    search = rig.open_driver().run()
    rig.check(search)
    assert search.node_hours_used > 0
    assert search.billed_hours == pytest.approx(20.0 * search.node_hours_used)


def test_jobs_that_only_accounting_remembers_are_billed_alike(rig):
    rig.cluster.billing_per_node, rig.cluster.purges_at_once = 40.0, True
    search = rig.open_driver().run()
    assert search.billed_hours == pytest.approx(20.0 * search.node_hours_used)


def test_a_cluster_that_does_not_tell_leaves_them_unknown(rig):
    search = rig.open_driver().run()
    assert search.node_hours_used > 0
    assert search.billed_hours is None
