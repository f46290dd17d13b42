"""Terms on which Slurm runs a search's jobs, before it begins, and what a plan says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.plan_answer import PlannedCost
from orchestrator.diagnostics.preflight.job_terms import JobTerms, job_terms
from orchestrator.planning.candidates import candidates_of
from slurm.association_limits import AssociationLimits, Qos
from slurm.interface import SlurmUnreachable
from slurm.partitions import PartitionSnapshot
from slurm.preemption import Preemption, PreemptsBy
from tests.fake_slurm.client import FakeSlurm
from tests.kit import MINIMAL, loaded, search_file
from tests.orchestrator.cli.parlay import parlay_here
from tests.rig import four_nodes

SEARCH = {
    "cluster": {"accelerator": "cpu", "gpus_per_node": 2, "num_nodes": 4},
    "global_batch_size": 64,
    "space": {"num_nodes": [2, 4]},
    "launcher": {"kind": "slurm", "slurm": {"partition": "main"}},
}
NORMAL = AssociationLimits((), (Qos("normal", usage_factor=0.5),))


def terms(folder: Path, slurm: FakeSlurm, *overrides: str) -> JobTerms | None:
    spec = loaded(folder, MINIMAL, *overrides, **SEARCH)
    return job_terms(spec, candidates_of(spec), slurm)


@pytest.fixture
def slurm() -> FakeSlurm:
    slurm = FakeSlurm(four_nodes())
    slurm.limits = NORMAL
    return slurm


def test_a_partition_without_weights_bills_cpus(tmp_path, slurm):
    """Nodes of four CPUs, two of which a job requests; the QOS counts half."""
    shared, whole = terms(tmp_path, slurm), terms(tmp_path, slurm, "launcher.slurm.exclusive=true")
    assert shared == JobTerms(("main",), 1.0, 0.5, None)
    assert whole == JobTerms(("main",), 2.0, 0.5, None)


def test_the_weights_of_the_partition_count(tmp_path, slurm):
    slurm.partition_limits = {"main": PartitionSnapshot("main", billing_weights={"node": 3.0}, has_whole_nodes=True)}
    found = terms(tmp_path, slurm)
    assert found is not None
    assert found.billed_per_node_hour == 1.5
    assert found.billed_hours(10.0) == 15.0


def test_billing_is_unknown_where_qos_differ_and_the_jobs_is_not_named(tmp_path, slurm):
    slurm.limits = AssociationLimits((), (Qos("normal"), Qos("fast", usage_factor=2.0)))
    found = terms(tmp_path, slurm)
    assert found is not None
    assert found.billed_hours(10.0) is None


def test_other_launchers_have_no_terms_and_a_slurm_that_is_down_none_yet(tmp_path, slurm):
    assert terms(tmp_path, slurm, "launcher.kind=local") is None
    slurm.cluster.controller_down(3600.0)
    with pytest.raises(SlurmUnreachable):
        terms(tmp_path, slurm)


def test_the_lines_of_a_plan():
    preemption = Preemption(PreemptsBy.PARTITION, ("high",), "REQUEUE", 5.0)
    cost = PlannedCost.by(JobTerms(("scav",), 64.0, 2.0, preemption), 10.0, 50.0)
    _, billing, preempted = cost.lines(10.0)
    assert billing.endswith("upper limit 3,200 billing hours")
    assert preempted.startswith("jobs in scav may be preempted by those of partition high (PreemptMode REQUEUE, 5 s")
    assert (cost.billed_hours, cost.most_billed_hours) == (640.0, 3200.0)


def test_a_plan_without_slurm_is_in_node_hours(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = parlay_here("plan", search_file(tmp_path, **SEARCH), cwd=tmp_path)
    assert answer.code == 0
    assert "billing hours are unknown, since Slurm does not answer here: scontrol is not on PATH" in answer.out
