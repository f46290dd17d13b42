import os
import tempfile
from pathlib import Path

import pytest

from orchestrator.launchers.base import LaunchRefused
from orchestrator.launchers.factory import job_options, longest_s, make_launcher
from orchestrator.launchers.ray.runtime import RayRuntime, RayUnavailable
from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.launchers.slurm_pilot.shared_jobs import SharedJobsLauncher
from orchestrator.launchers.slurm_pilot.sizing import IDLE_S, STARTUP_S, TAIL_S, RemainingWork
from orchestrator.schema.launcher import LauncherSection
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.tables.measured_table import render_table

ONE_NODE = Cluster(ACCELERATORS["cpu"], 2, 1)


def section(**fields: object) -> LauncherSection:
    return LauncherSection.model_validate(fields)


def test_local_is_plain_processes() -> None:
    launcher, note = make_launcher(section(kind="local"), parallel_trials=2, cluster=ONE_NODE)
    assert (launcher.name, note) == ("local", None)


@pytest.mark.processes
@pytest.mark.timeout(120)
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


def test_under_slurm_the_lease_is_kept_before_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging command takes its timeout, and one iteration may run several."""
    for command in ("scontrol", "squeue"):
        (tmp_path / command).write_text("#!/bin/sh\n")
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    kept: list[None] = []
    keep = lambda: kept.append(None)  # noqa: E731
    launcher, _ = make_launcher(section(kind="slurm"), parallel_trials=1, cluster=ONE_NODE, before_command=keep)
    assert len(kept) == 2, "the configuration was asked for, and that of the partitions"
    launcher.poll([])
    assert len(kept) == 3


def test_a_single_run_needs_no_pilot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Under slurm_pilot replay, selftest and calibrate run in a job of their own; only a search has remaining work."""
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm answers, and none has to
    pilots = section(kind="slurm_pilot")
    one, _ = make_launcher(pilots, parallel_trials=1, cluster=ONE_NODE)
    search, _ = make_launcher(pilots, parallel_trials=1, cluster=ONE_NODE, remaining_work=lambda: RemainingWork(3, 1))
    assert (one.name, search.name) == ("slurm", "slurm_pilot")


def test_jobs_are_shared_where_the_search_file_says_so_and_there_is_work_to_plan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    work = lambda: RemainingWork(3, 1)  # noqa: E731
    launchers = [
        make_launcher(section(kind="slurm", slurm=slurm), parallel_trials=1, cluster=ONE_NODE, remaining_work=work)[0]
        for slurm in ({}, {"shared_jobs": True})
    ]
    shared = section(kind="slurm", slurm={"shared_jobs": True})
    single, _ = make_launcher(shared, parallel_trials=1, cluster=ONE_NODE)
    assert [type(launcher) for launcher in (*launchers, single)] == [SlurmLauncher, SharedJobsLauncher, SlurmLauncher]


def test_what_a_repeat_reserves_is_known_before_there_is_a_launcher() -> None:
    shared = section(kind="slurm", slurm={"shared_jobs": True})
    repeat_s = longest_s(shared, 600.0, num_nodes=2, may_share_job=True)
    assert longest_s(shared, 600.0, 2) < repeat_s == STARTUP_S + IDLE_S + 615.0 + TAIL_S


@pytest.mark.fault(36)
def test_when_ray_cannot_start_plain_processes_take_over_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_sockets(rank_slots: int, num_gpus: int) -> RayRuntime:
        raise RayUnavailable("no free port")

    monkeypatch.setattr(RayRuntime, "start_loopback", no_sockets)
    launcher, note = make_launcher(section(kind="ray"), parallel_trials=2, cluster=ONE_NODE)
    assert launcher.name == "local"
    assert "no free port" in str(note)


@pytest.mark.fault(36)
def test_without_a_temporary_folder_for_ray_plain_processes_take_over_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", f"/tmp/parlay-gone-{os.getpid()}")  # short: Ray's sockets lie below it
    launcher, note = make_launcher(section(kind="ray"), parallel_trials=2, cluster=ONE_NODE)
    assert launcher.name == "local"
    assert "no temporary folder for Ray" in str(note)


def test_a_named_ray_that_is_not_there_is_refused_at_once_and_not_replaced() -> None:
    with pytest.raises(LaunchRefused, match=r"no Ray at 127\.0\.0\.1:1"):
        make_launcher(section(kind="ray", address="127.0.0.1:1"), parallel_trials=1, cluster=ONE_NODE)


@pytest.mark.parametrize("kind", ["local", "ray"])
def test_more_than_this_machine_is_refused_before_anything_starts(kind: str) -> None:
    with pytest.raises(InputError, match="the cluster has 2 nodes"):
        make_launcher(section(kind=kind), parallel_trials=1, cluster=Cluster(ACCELERATORS["cpu"], 2, 2))


def test_simulated_reads_its_table_and_needs_no_machine(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(render_table([]))
    recorded = section(kind="simulated", table=str(table))
    launcher, note = make_launcher(recorded, parallel_trials=9, cluster=Cluster(ACCELERATORS["h100-80gb"], 8, 64))
    assert (launcher.name, note) == ("simulated", None)


def test_a_simulated_search_goes_on_at_the_newest_moment_it_knows(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(render_table([]))
    recorded = section(kind="simulated", table=str(table))
    launcher, _ = make_launcher(recorded, parallel_trials=1, cluster=ONE_NODE, not_before=1e9)
    assert launcher.now() == 1e9


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("problem,source\n")
    with pytest.raises(InputError, match="column outcome is missing"):
        make_launcher(section(kind="simulated", table=str(table)), parallel_trials=1, cluster=ONE_NODE)
