"""Launchers by the search file's section."""

from __future__ import annotations

import os
import tempfile

import pytest

from orchestrator.config.schema.launcher import LauncherSection
from orchestrator.launchers.base import LaunchRefused
from orchestrator.launchers.factory import job_options, make_launcher
from orchestrator.launchers.ray.runtime import RayRuntime, RayUnavailable
from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.launchers.slurm_pilot.launcher import SlurmPilotLauncher
from orchestrator.launchers.slurm_pilot.sizing import RemainingWork
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.tables.measured_table import render_table

ONE_NODE = Cluster(ACCELERATORS["cpu"], 2, 1)


def section(**fields: object) -> LauncherSection:
    return LauncherSection.model_validate(fields)


def made(parallel_trials: int = 1, cluster: Cluster = ONE_NODE, remaining_work=None, **fields: object):
    parts = {"parallel_trials": parallel_trials, "cluster": cluster, "remaining_work": remaining_work}
    return make_launcher(section(**fields), **parts)


@pytest.mark.parametrize(
    ("accelerator", "slurm", "segment"),
    [
        ("gb200-186gb", {}, 18),
        ("gb200-186gb", {"segment": 8}, 8),
        ("gb200-186gb", {"segment": 0}, 0),
        ("h100-80gb", {}, None),
        ("h100-80gb", {"segment": 4}, 4),
    ],
)
def test_jobs_ask_for_segments_as_large_as_a_link_domain_of_several_nodes(accelerator, slurm, segment):
    cluster = Cluster(ACCELERATORS[accelerator], 4, 36)
    assert job_options(section(kind="slurm", slurm=slurm), cluster).segment == segment


def test_under_slurm_the_lease_is_kept_before_every_command(tmp_path, monkeypatch):
    """A hanging command takes its timeout, and one iteration may run several."""
    for command in ("scontrol", "squeue"):
        (tmp_path / command).write_text("#!/bin/sh\n")
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    kept: list[None] = []
    keep = lambda: kept.append(None)  # noqa: E731
    launcher, _ = make_launcher(section(kind="slurm"), parallel_trials=1, cluster=ONE_NODE, before_command=keep)
    assert len(kept) == 2, "the configuration was asked for, and that of the partitions"
    launcher.poll([])
    assert len(kept) == 3


@pytest.mark.parametrize(
    ("kind", "has_work", "expected"),
    [("slurm", True, SlurmLauncher), ("slurm_pilot", True, SlurmPilotLauncher), ("slurm_pilot", False, SlurmLauncher)],
)
def test_only_a_search_has_remaining_work_to_plan_pilots_for(tmp_path, monkeypatch, kind, has_work, expected):
    """Replay, selftest and calibrate run in a job of their own."""
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm answers, and none has to
    work = (lambda: RemainingWork(3, 1)) if has_work else None
    assert type(made(kind=kind, remaining_work=work)[0]) is expected


@pytest.mark.fault(36)
@pytest.mark.parametrize("words", ["no free port", "no temporary folder for Ray"])
def test_when_ray_cannot_start_plain_processes_take_over_and_it_is_said(monkeypatch, words):
    def no_sockets(rank_slots: int, num_gpus: int) -> RayRuntime:
        raise RayUnavailable("no free port")

    if words == "no free port":
        monkeypatch.setattr(RayRuntime, "start_loopback", no_sockets)
    else:
        monkeypatch.setattr(tempfile, "tempdir", f"/tmp/parlay-gone-{os.getpid()}")  # short, for Ray's sockets
    launcher, note = made(kind="ray", parallel_trials=2)
    assert launcher.name == "local"
    assert words in str(note)


def test_a_named_ray_that_is_not_there_is_refused_at_once_and_not_replaced():
    with pytest.raises(LaunchRefused, match=r"no Ray at 127\.0\.0\.1:1"):
        made(kind="ray", address="127.0.0.1:1")


@pytest.mark.parametrize("kind", ["local", "ray"])
def test_more_than_this_machine_is_refused_before_anything_starts(kind):
    with pytest.raises(InputError, match="the cluster has 2 nodes"):
        made(kind=kind, cluster=Cluster(ACCELERATORS["cpu"], 2, 2))


def test_simulated_reads_its_table_needs_no_machine_and_goes_on_at_the_newest_moment_it_knows(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text(render_table([]))
    recorded, cluster = section(kind="simulated", table=str(table)), Cluster(ACCELERATORS["h100-80gb"], 8, 64)
    launcher, note = make_launcher(recorded, parallel_trials=9, cluster=cluster, not_before=1e9)
    assert (launcher.name, note, launcher.now()) == ("simulated", None, 1e9)
    table.write_text("problem,source\n")
    with pytest.raises(InputError, match="column outcome is missing"):
        make_launcher(recorded, parallel_trials=1, cluster=ONE_NODE)
