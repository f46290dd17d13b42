"""The launcher a search file asks for."""

from __future__ import annotations

import os
from functools import partial

from orchestrator.launchers.base import Launcher, LaunchRefused
from orchestrator.launchers.local import LocalLauncher, local_slots
from orchestrator.launchers.ray import RayLauncher
from orchestrator.launchers.schema import LauncherSection
from orchestrator.ray_runtime import RayRuntime, RayUnavailable
from search_spaces.cluster import Cluster


def make_launcher(section: LauncherSection, *, parallel_trials: int, cluster: Cluster) -> tuple[Launcher, str | None]:
    """The launcher, and what the user should be told once about the choice.

    Raises InputError when this machine cannot hold the trials, LaunchRefused when the named Ray cannot be reached.
    """
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
