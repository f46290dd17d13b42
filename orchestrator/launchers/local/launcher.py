"""Local launcher: the ranks of an attempt as processes of this machine, which end with the driver."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from orchestrator.launchers.base import Launcher, LaunchRequest
from orchestrator.launchers.local.fork_servers import NodeForkServers
from orchestrator.launchers.local.processes import GracePeriods, RankGroup, RankProcess
from orchestrator.launchers.local.rank_groups import (
    OrphanedAttempt,
    end_orphans,
    find_orphans,
    node_plans,
    status_from_reports,
    write_ranks,
)
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import Cluster
from trials.attempt_result import LaunchStatus, Liveness
from trials.files.folders import AttemptFolder

_END_TIMEOUT_S = 15.0
_log = logging.getLogger(__name__)


@dataclass
class _LocalAttempt:
    folder: AttemptFolder
    group: RankGroup
    slot: int
    cancelled: bool = False


class LocalLauncher(Launcher):
    """Runs at most one attempt per slot, on this node. Attempts cannot outlive it.

    A slot is the list of its devices, entries of CUDA_VISIBLE_DEVICES; empty on CPU. All ranks have the environment in
    which the launcher was made: libraries of the driver set variables when they are imported, between two trials.
    """

    name = "local"

    def __init__(self, slots: Sequence[Sequence[str]], grace_periods: GracePeriods | None = None):
        self._slots = slots
        self._grace_periods = grace_periods or GracePeriods()
        self._attempts: dict[str, _LocalAttempt] = {}
        self._orphans: dict[str, OrphanedAttempt] = {}
        self._environment = dict(os.environ)
        self._fork_servers = NodeForkServers(_note_plain_starts, self._environment)
        self._changed = threading.Event()

    def launch(self, request: LaunchRequest) -> str | None:
        request.require_taken()
        slot = self._free_slot()
        if slot is None:
            return None
        key, job_id = request.spec.attempt_key, f"{socket.gethostname()}:{os.getpid()}"
        if request.folder.ranks.exists():
            raise ValueError(f"{key} was launched before")
        write_ranks(request, job_id, ())
        devices = {"CUDA_VISIBLE_DEVICES": ",".join(self._slots[slot])} if self._slots[slot] else {}
        [plan] = node_plans(request, devices, self._grace_periods)
        plan = replace(plan, stub=self._fork_servers.stub_for(plan))
        on_start = partial(self._note_start, request, job_id)
        group = RankGroup(plan, on_start, on_end=self._changed.set, node_environment=self._environment)
        self._attempts[key] = _LocalAttempt(request.folder, group, slot)
        group.start()
        return job_id

    def _free_slot(self) -> int | None:
        taken = [attempt.slot for attempt in self._attempts.values() if attempt.group.report is None]
        return next((slot for slot in range(len(self._slots)) if slot not in taken), None)

    def _note_start(self, request: LaunchRequest, job_id: str, ranks: tuple[RankProcess, ...]) -> None:
        write_ranks(request, job_id, ranks)
        self._changed.set()

    def adopt(self, requests: Mapping[str, LaunchRequest]) -> dict[str, str]:
        """End processes that an earlier driver's attempts left running here."""
        found = find_orphans(requests)
        self._orphans |= found
        end_orphans(found.values(), _END_TIMEOUT_S)
        return {key: attempt.accepted.job_id for key, attempt in found.items()}

    def poll(self, keys: Iterable[str]) -> dict[str, LaunchStatus]:
        return {key: self._status(key) for key in keys}

    def _status(self, key: str) -> LaunchStatus:
        if key in self._orphans:
            return self._orphans[key].status()
        attempt = self._attempts.get(key)
        if attempt is None:
            return LaunchStatus(Liveness.UNKNOWN)
        group = attempt.group
        if group.report is not None:
            return status_from_reports([group.report], attempt.folder, attempt.cancelled)
        started_at = group.started_at
        return LaunchStatus(
            Liveness.ALIVE, started_at is not None, nodes=(socket.gethostname(),), started_at=started_at
        )

    def cancel(self, keys: Iterable[str]) -> set[str]:
        keys = list(keys)
        alive = {k: self._attempts[k] for k in keys if k in self._attempts and self._attempts[k].group.report is None}
        for attempt in alive.values():
            attempt.cancelled = True
            attempt.group.kill()
        deadline = time.monotonic() + _END_TIMEOUT_S
        stuck = {k for k, a in alive.items() if not a.group.wait(max(0.0, deadline - time.monotonic()))}
        return stuck | {k for k in keys if k in self._orphans and self._status(k).liveness is not Liveness.ENDED}

    def wait(self, seconds: float) -> None:
        self._changed.wait(seconds)
        self._changed.clear()

    def close(self) -> None:
        self.cancel(tuple(self._attempts))
        self._fork_servers.close()


def _note_plain_starts(reason: str) -> None:
    _log.warning(f"ranks are started plain, each with its own imports: {reason}")


def local_slots(cluster: Cluster, parallel_trials: int, environment: Mapping[str, str]) -> list[list[str]]:
    """Return a slot for each parallel trial, with its own devices when the accelerator is a GPU.

    InputError when the cluster is larger than this machine, or needs more GPUs than are visible.
    """
    if cluster.num_nodes > 1:
        raise InputError.of(
            "launcher",
            f"the launcher runs on this machine only, but the cluster has {cluster.num_nodes} nodes",
            key="cluster.num_nodes",
            value=cluster.num_nodes,
            fix="give 1 node, or launcher.kind ray with the address of a Ray cluster",
        )
    if cluster.accelerator.name == "cpu":
        return [[] for _ in range(parallel_trials)]
    devices, each = visible_devices(environment), cluster.gpus_per_node
    if len(devices) < parallel_trials * each:
        raise InputError.of(
            "launcher",
            f"{parallel_trials} parallel trials x {each} GPUs = {parallel_trials * each} GPUs,"
            f" but {len(devices)} are visible on this machine",
            key="search.parallel_trials",
            value=parallel_trials,
            fix="set fewer parallel trials or GPUs per node; CUDA_VISIBLE_DEVICES lists the GPUs to use",
        )
    return [devices[i * each : (i + 1) * each] for i in range(parallel_trials)]


def visible_devices(environment: Mapping[str, str], device_files: Path = Path("/dev")) -> list[str]:
    """Return the GPUs as CUDA_VISIBLE_DEVICES names them: its entries, else a number for each NVIDIA device file."""
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [device.strip() for device in named.split(",") if device.strip()]
    files = [path for path in device_files.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return [str(index) for index in range(len(files))]
