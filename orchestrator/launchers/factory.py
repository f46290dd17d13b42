"""The launcher a search file asks for."""

from __future__ import annotations

import os
from functools import partial

from orchestrator.launchers.base import Launcher, LaunchRefused
from orchestrator.launchers.local import LocalLauncher, local_slots
from orchestrator.launchers.ray import RayLauncher
from orchestrator.launchers.recorded import RecordedLauncher
from orchestrator.launchers.schema import LauncherSection
from orchestrator.ray_runtime import RayRuntime, RayUnavailable
from search_spaces.cluster import Cluster
from search_spaces.measured import read_table


def make_launcher(
    section: LauncherSection, *, parallel_trials: int, cluster: Cluster, not_before: float | None = None
) -> tuple[Launcher, str | None]:
    """The launcher, and what the user should be told once about the choice.

    `not_before` is the newest moment the search's record knows (UTC seconds since the epoch), from where a simulated
    clock goes on.

    Raises InputError when this machine cannot hold the trials or the table cannot be read, LaunchRefused when the
    named Ray cannot be reached.
    """
    if section.table_path is not None:
        observations = read_table(section.table_path).require_whole().observations
        return RecordedLauncher(observations, section.queue_wait_s, not_before), None
    if section.kind == "ray" and section.address is not None:
        return _ray_at(section.address), None
    slots = local_slots(cluster, parallel_trials, os.environ)
    if section.kind == "local":
        return LocalLauncher(slots), None
    num_ranks, num_gpus = parallel_trials * cluster.gpus_per_node, sum(len(slot) for slot in slots)
    try:
        return RayLauncher(partial(RayRuntime.start_loopback, num_ranks, num_gpus)), None
    except RayUnavailable as error:
        return LocalLauncher(slots), f"Ray could not start, the trials run as plain processes instead: {error}"


def _ray_at(address: str) -> RayLauncher:
    try:
        return RayLauncher(partial(RayRuntime.connect, address))
    except RayUnavailable as error:
        raise LaunchRefused(f"no Ray at {address}: {error}") from error
