"""Factory of the launcher that a search file names."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from orchestrator.config.schema.launcher import LauncherSection
from orchestrator.launchers.base import Launcher, LaunchRefused
from orchestrator.launchers.local.launcher import LocalLauncher, local_slots
from orchestrator.launchers.ray.launcher import RayLauncher
from orchestrator.launchers.ray.runtime import RayRuntime, RayUnavailable
from orchestrator.launchers.simulated import SimulatedLauncher
from orchestrator.launchers.slurm.launcher import SlurmAccess, SlurmLauncher
from orchestrator.launchers.slurm.queries import PollBackoff
from orchestrator.launchers.slurm.squeue_cache import SqueueCache
from orchestrator.launchers.slurm_pilot.launcher import SlurmPilotLauncher
from orchestrator.launchers.slurm_pilot.sizing import (
    LONGEST_PILOT_S,
    PilotRules,
    RemainingWork,
)
from search_spaces.hardware.cluster import Cluster
from search_spaces.tables.measured_table import read_table
from slurm.client import SlurmClient
from slurm.environment import cluster_key
from slurm.interface import SlurmSettings, SlurmUnreachable
from slurm.option_checks import requests_gpus
from slurm.request import JobOptions, Runtime
from slurm.sandbox.config_files import SANDBOX_CLUSTER_NAME
from trials.ledger.location import home_folder

POLL_INTERVAL_S = 30.0
"""Between two queries of a controller that many people share."""

LEAST_POLL_INTERVAL_S = 1.0

_NO_ACCOUNTING = "this Slurm has no accounting: how jobs ended is taken from outcome files and the controller's records"


def make_launcher(
    section: LauncherSection,
    *,
    parallel_trials: int,
    cluster: Cluster,
    not_before: float | None = None,
    before_command: Callable[[], None] = lambda: None,
    handover: Path | None = None,
    remaining_work: Callable[[], RemainingWork] | None = None,
) -> tuple[Launcher, str | None]:
    """Return the launcher, and a remark on the choice to show once.

    `not_before` is the latest time in the search's record (UTC seconds since the epoch), at which a simulated clock
    starts. `before_command` is called before each command that may take long,
    so that a lease is renewed even when several hang; its exceptions propagate. `handover` is the file in which a
    driver on Slurm leaves the state of uncertain jobs to the next one. `remaining_work` is the basis for planning
    pilots; without it, as for a single run, every attempt is a job of its own.

    Raises InputError when this machine cannot hold the trials or the table cannot be read, LaunchRefused when the named
    Ray cannot be reached.
    """
    if section.uses_slurm:
        rules = _pilot_rules(section, cluster, parallel_trials) if section.has_pilots else None
        return _slurm_of(section, cluster, before_command, handover, rules, remaining_work)
    if section.table_path is not None:
        observations = read_table(section.table_path)
        return SimulatedLauncher(observations, section.queue_wait_s, not_before), None
    if section.kind == "ray" and section.address is not None:
        return _ray_at(section.address), None
    slots = local_slots(cluster, parallel_trials, os.environ)
    if section.kind == "local":
        return LocalLauncher(slots), None
    num_ranks, num_gpus = parallel_trials * cluster.gpus_per_node, sum(len(slot) for slot in slots)
    try:
        return RayLauncher(partial(RayRuntime.start_loopback, num_ranks, num_gpus)), None
    except RayUnavailable as error:
        return LocalLauncher(slots), f"Ray could not start; trials run as plain processes instead: {error}"


def _slurm_of(
    section: LauncherSection,
    cluster: Cluster,
    before_command: Callable[[], None],
    handover: Path | None,
    rules: PilotRules | None,
    remaining_work: Callable[[], RemainingWork] | None,
) -> tuple[Launcher, str | None]:
    client = SlurmClient(before_command=before_command)
    try:
        settings = client.settings()
    except SlurmUnreachable:  # jobs of a resumed search may be alive nevertheless
        settings = SlurmSettings()
    floor_s, remark = poll_interval_s(section.slurm.poll_interval_s, settings)
    if settings.version and not settings.has_accounting:
        remark = f"{remark}; {_NO_ACCOUNTING}" if remark else _NO_ACCOUNTING
    folder = home_folder() / "slurm"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    shared = SqueueCache(client, folder, cluster_key(os.environ))
    options = job_options(section, cluster)
    access = SlurmAccess(client, options, PollBackoff(floor_s), shared.jobs, handover=handover, jobs_on=shared.jobs_on)
    if rules is None or remaining_work is None:
        return SlurmLauncher(access), remark
    return SlurmPilotLauncher(access, rules, remaining_work), remark


def _pilot_rules(section: LauncherSection, cluster: Cluster, parallel_trials: int) -> PilotRules:
    """Return the pilots' size and time from the search file, or derived from it."""
    wanted = section.slurm
    num_nodes = wanted.nodes_per_pilot(cluster, parallel_trials)
    return PilotRules(num_nodes, cluster.gpus_per_node, wanted.pilot_time_s or LONGEST_PILOT_S)


def poll_interval_s(wanted: float | None, settings: SlurmSettings) -> tuple[float, str | None]:
    """Return the interval between queries, and a remark where the search file asks for a shorter one than is allowed.

    A sandbox has no other users and is polled at the shortest interval.
    """
    least = LEAST_POLL_INTERVAL_S
    if wanted is None:
        return (least if settings.cluster_name == SANDBOX_CLUSTER_NAME else POLL_INTERVAL_S), None
    if wanted < least:
        return least, f"launcher.slurm.poll_interval {wanted:g} s is raised to {least:g} s"
    return wanted, None


def job_options(section: LauncherSection, cluster: Cluster) -> JobOptions:
    """Return the user's options, completed by the nodes of a link domain, the GPUs of a node and the driver that
    Apptainer binds."""
    options = section.slurm.job_options()
    if options.segment is None and cluster.domain_nodes > 1:
        options = replace(options, segment=cluster.domain_nodes)
    if cluster.accelerator.name == "cpu":
        return options
    if (container := options.container) is not None and container.runtime is Runtime.APPTAINER:
        gpus = container.gpus or ("rocm" if cluster.accelerator.name.startswith("mi") else "nv")
        options = replace(options, container=replace(container, gpus=gpus))
    if options.gpus_per_node is not None or requests_gpus(options.gres):
        return options
    if section.slurm.gpus_as == "gres":
        return replace(options, gres=",".join(filter(None, (f"gpu:{cluster.gpus_per_node}", options.gres))))
    return options if options.gres is not None else replace(options, gpus_per_node=cluster.gpus_per_node)


def _ray_at(address: str) -> RayLauncher:
    try:
        return RayLauncher(partial(RayRuntime.connect, address))
    except RayUnavailable as error:
        raise LaunchRefused(f"no Ray at {address}: {error}") from error
