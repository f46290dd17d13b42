"""Slurm launcher with shared jobs: decided work runs as steps of one job, every other attempt as a job of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from orchestrator.launchers.base import EndedPilot, Launcher, LaunchRequest
from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.launchers.slurm_pilot.launcher import SlurmPilotLauncher
from trials.attempt_result import LaunchStatus


class SharedJobsLauncher(Launcher):
    """Passes attempts that may share a job to `shared`, whose pilots are these jobs, and all others to `alone`.

    Which launcher an attempt belongs to follows from its request alone, so the next driver finds it there again.
    """

    name = "slurm"

    def __init__(self, alone: SlurmLauncher, shared: SlurmPilotLauncher):
        self._alone = alone
        self._shared = shared
        self._shared_keys: set[str] = set()
        self.iteration_interval_s = alone.iteration_interval_s

    def _launch(self, request: LaunchRequest) -> str | None:
        if not request.may_share_job:
            return self._alone.launch(request)
        self._shared_keys.add(request.key)
        return self._shared.launch(request)

    def adopt(self, requests: Mapping[str, LaunchRequest]) -> dict[str, str]:
        shared = {key: request for key, request in requests.items() if request.may_share_job}
        self._shared_keys |= shared.keys()
        alone = {key: request for key, request in requests.items() if key not in shared}
        return self._alone.adopt(alone) | self._shared.adopt(shared)

    def poll(self, keys: Iterable[str]) -> dict[str, LaunchStatus]:
        alone, shared = self._split(keys)
        return self._alone.poll(alone) | self._shared.poll(shared)

    def cancel(self, keys: Iterable[str]) -> set[str]:
        alone, shared = self._split(keys)
        return self._alone.cancel(alone) | self._shared.cancel(shared)

    def _split(self, keys: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return the attempts with a job of their own, and those that share one."""
        alone: list[str] = []
        shared: list[str] = []
        for key in keys:
            (shared if key in self._shared_keys else alone).append(key)
        return alone, shared

    def longest_s(self, time_limit_s: float, num_nodes: int = 1, may_share_job: bool = False) -> float:
        """Return what each of the two reserves; what ended jobs held and is not booked yet counts for either."""
        if may_share_job:
            return self._shared.longest_s(time_limit_s, num_nodes)
        return self._alone.longest_s(time_limit_s, num_nodes) + self._shared.unbooked_node_s() / num_nodes

    def now(self) -> float:
        return self._alone.now()

    def wait(self, seconds: float) -> None:
        self._alone.wait(seconds)

    def leaves_of(self, nodes: Sequence[str]) -> tuple[str, ...]:
        return self._alone.leaves_of(nodes)

    def ended_pilots(self) -> list[EndedPilot]:
        return self._shared.ended_pilots()

    def release(self) -> bool:
        return self._shared.release()

    def cancel_leftovers(self) -> list[str]:
        return self._shared.cancel_leftovers()

    def close(self) -> None:
        self._alone.close()
        self._shared.close()
