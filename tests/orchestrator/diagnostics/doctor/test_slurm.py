"""Findings about a Slurm that answers, one that does not, and one with a short MinJobAge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.diagnostics.doctor.finding import Finding, Level
from orchestrator.diagnostics.doctor.slurm import COMMANDS, check_slurm, unreachable_finding
from slurm.fake.client import FakeSlurm
from slurm.fake.cluster import FAKE_SETTINGS, FakeCluster
from slurm.fake.placement import FakeNode
from slurm.interface import SlurmUnreachable


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm(FakeCluster([FakeNode("n1")]))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Environment with Slurm's commands on PATH."""
    for command in COMMANDS:
        (tmp_path / command).write_text("#!/bin/sh\n")
        (tmp_path / command).chmod(0o755)
    return {"PATH": str(tmp_path)}


def found(slurm: FakeSlurm, environ: dict[str, str], wanted_s: float | None = None) -> dict[str, Finding]:
    return {finding.name: finding for finding in check_slurm(slurm, environ, wanted_s)}


def test_a_slurm_without_fault(slurm, environ):
    slurm.cluster.settings = replace(FAKE_SETTINGS, enforces_limits=True)
    findings = found(slurm, environ)
    assert set(findings) == {"commands", "controller", "min_job_age", "partition_limits", "accounting"}
    assert {finding.level for finding in findings.values()} == {Level.OK}
    assert "22.05.8" in findings["controller"].message


def test_commands_that_are_not_there_are_named_and_nothing_is_asked(slurm, environ, tmp_path):
    (tmp_path / "squeue").unlink()
    slurm.cluster.controller_down(3600.0)
    findings = found(slurm, environ)
    assert [(f.name, f.level) for f in findings.values()] == [("commands", Level.ERROR)]
    assert findings["commands"].message.startswith("squeue is not on PATH")
    assert "slurm-sandbox start" in (findings["commands"].fix or "")


def test_a_configuration_that_is_not_there_is_reported_before_slurm_is_asked(slurm, environ):
    findings = found(slurm, environ | {"SLURM_CONF": "/no/such/slurm.conf"})
    assert findings["configuration"].level is Level.ERROR
    assert "/no/such/slurm.conf" in findings["configuration"].message
    assert "controller" not in findings


def test_a_controller_that_does_not_answer_is_reported_with_its_words(slurm, environ):
    slurm.cluster.controller_down(3600.0)
    findings = found(slurm, environ)
    assert findings["controller"].level is Level.ERROR
    assert "Unable to contact slurm controller" in findings["controller"].message
    assert list(findings) == ["commands", "controller"]


@pytest.mark.parametrize(
    "words",
    [
        'sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory',
        "Unable to contact slurm controller: Protocol authentication error",
    ],
)
def test_munge_is_told_from_a_controller_that_is_away(words):
    finding = unreachable_finding(SlurmUnreachable(words))
    assert (finding.name, finding.level) == ("munge", Level.ERROR)
    assert "munged" in (finding.fix or "")


@pytest.mark.parametrize(
    ("age_s", "accounting", "wanted_s", "level"),
    [
        (300.0, False, None, Level.OK),
        (0.0, False, None, Level.OK),  # for ever
        (59.0, False, None, Level.WARNING),
        (59.0, True, None, Level.NOTE),
        (300.0, False, 200.0, Level.WARNING),
    ],
)
def test_a_controller_that_forgets_a_job_before_it_is_asked_again(slurm, environ, age_s, accounting, wanted_s, level):
    slurm.cluster.settings = replace(FAKE_SETTINGS, min_job_age_s=age_s, has_accounting=accounting)
    assert found(slurm, environ, wanted_s)["min_job_age"].level is level


@pytest.mark.parametrize(
    ("cluster_name", "wanted_s", "asked_s"),
    [("ada", None, 30), ("parlay-sandbox", None, 1), ("parlay-sandbox", 5.0, 5), ("ada", 0.2, 1)],
)
def test_how_often_a_job_is_asked_for_is_said_as_the_driver_does_it(slurm, environ, cluster_name, wanted_s, asked_s):
    slurm.cluster.settings = replace(FAKE_SETTINGS, cluster_name=cluster_name)
    assert found(slurm, environ, wanted_s)["min_job_age"].message.endswith(f" polled every {asked_s} s")


def test_a_controller_that_forgets_no_job_is_said_to(slurm, environ):
    slurm.cluster.settings = replace(FAKE_SETTINGS, min_job_age_s=0.0)
    assert found(slurm, environ)["min_job_age"].message.startswith(
        "the controller never forgets an ended job (MinJobAge is 0)"
    )


def test_limits_that_are_not_enforced_no_accounting_and_an_old_version_are_said(slurm, environ):
    slurm.cluster.settings = replace(FAKE_SETTINGS, version="19.05.5", has_accounting=False)
    findings = found(slurm, environ)
    assert {name: f.level for name, f in findings.items() if f.level is not Level.OK} == {
        "version": Level.WARNING,
        "partition_limits": Level.NOTE,
        "accounting": Level.NOTE,
    }


def test_accounting_that_does_not_answer_hinders_nothing(slurm, environ):
    slurm.cluster.accounting.go_down(slurm.cluster.time + 3600.0, 0.0)
    assert found(slurm, environ)["accounting"].level is Level.WARNING
