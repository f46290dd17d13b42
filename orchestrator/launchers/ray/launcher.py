"""Ray launcher: the ranks of an attempt in a placement group, with a supervising actor on each of its nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from orchestrator.launchers.base import Launcher, LaunchRequest
from orchestrator.launchers.local.processes import GracePeriods, end_surviving_ranks
from orchestrator.launchers.local.rank_groups import (
    OrphanedAttempt,
    end_orphans,
    find_orphans,
    last_sign_of_life,
    node_plans,
    status_from_reports,
    unkillable_status,
    write_ranks,
)
from orchestrator.launchers.ray.node_actor import NodeJob, RayJob
from orchestrator.launchers.ray.runtime import RayRuntime, RayUnavailable
from trials.attempt_result import LaunchStatus, Liveness
from trials.trial import FailureReason

_END_TIMEOUT_S = 16.0
_LOST_END_TIMEOUT_S = 1.0  # the ranks of a lost node are killed at every poll
_LONGEST_WAIT_S = 2.0  # the death of Ray is only found by polling


@dataclass
class _RayAttempt:
    request: LaunchRequest
    job: RayJob
    bundles: list[dict[str, float]]
    cancelled: bool = False
    nodes_written: int = 0
    released: bool = False


class RayLauncher(Launcher):
    """Attempts queue in Ray until their nodes are free. They cannot outlive the driver, which owns their actors.

    `start` returns the Ray to use, and another one if a private Ray dies; it raises RayUnavailable, and so does the
    constructor.
    """

    name = "ray"

    def __init__(self, start: Callable[[], RayRuntime], grace_periods: GracePeriods | None = None):
        self._start = start
        self._runtime = start()
        self._grace_periods = grace_periods or GracePeriods()
        self._attempts: dict[str, _RayAttempt] = {}
        self._orphans: dict[str, OrphanedAttempt] = {}

    def launch(self, request: LaunchRequest) -> str | None:
        request.require_taken()
        self._replace_dead_ray()
        spec = request.spec
        if request.folder.ranks.exists():
            raise ValueError(f"{spec.attempt_key} was launched before")
        write_ranks(request, spec.attempt_key, ())
        plans = node_plans(request, grace_periods=self._grace_periods)
        bundles = [self._runtime.bundle(spec.accelerator != "cpu", len(plan.logs)) for plan in plans]
        job = self._runtime.submit(spec.attempt_key, plans, bundles)
        self._attempts[spec.attempt_key] = _RayAttempt(request, job, bundles)
        return spec.attempt_key

    def _replace_dead_ray(self) -> None:
        if self._runtime.is_alive:
            return
        self._leave_dead_ray()
        try:
            self._runtime = self._start()
        except RayUnavailable as error:
            raise RayUnavailable(f"Ray died and could not be started again: {error}") from error

    def _leave_dead_ray(self) -> None:
        """Close a dead Ray at once, which would otherwise end the driver. Its ranks have ended with their actors."""
        self._runtime.close()
        for submitted in self._attempts.values():
            submitted.released = True
            submitted.job.mark_lost("the Ray on this machine died")

    def adopt(self, requests: Mapping[str, LaunchRequest]) -> dict[str, str]:
        """End an earlier driver's actors, and their ranks on this machine."""
        found = find_orphans(requests)
        self._orphans |= found
        self._runtime.end_named({key: left.request.spec.num_nodes for key, left in found.items()}, _END_TIMEOUT_S / 2)
        end_orphans(found.values(), _END_TIMEOUT_S / 2)
        return {key: left.accepted.job_id for key, left in found.items()}

    def poll(self, keys: Iterable[str]) -> dict[str, LaunchStatus]:
        keys = list(keys)
        self._refresh(keys)
        return {key: self._status(key) for key in keys}

    def _refresh(self, keys: Iterable[str]) -> None:
        if self._runtime.is_alive:
            self._runtime.refresh(self._attempts[key].job for key in keys if key in self._attempts)
        else:
            self._leave_dead_ray()

    def _status(self, key: str) -> LaunchStatus:
        if key in self._orphans:
            return self._status_of_orphan(key)
        if key not in self._attempts:
            return LaunchStatus(Liveness.UNKNOWN)
        submitted = self._attempts[key]
        _record_ranks(submitted)
        self._end_peers_of_ended_nodes(submitted)
        if not submitted.job.is_ended:
            return _alive(submitted)
        if not submitted.released:
            self._runtime.release(submitted.job)
            submitted.released = True
        ranks_of_lost = tuple(rank for node in submitted.job.nodes if node.lost for rank in node.ranks or ())
        left = end_surviving_ranks(ranks_of_lost, _LOST_END_TIMEOUT_S)
        return unkillable_status(left) if left else _ended(submitted)

    def _status_of_orphan(self, key: str) -> LaunchStatus:
        left = self._orphans[key]
        if self._runtime.is_alive and not self._runtime.end_named({key: left.request.spec.num_nodes}, timeout_s=0):
            return LaunchStatus(
                Liveness.UNKNOWN, started=True, detail="the actors of an earlier driver cannot be ended"
            )
        return left.status()

    def _end_peers_of_ended_nodes(self, submitted: _RayAttempt) -> None:
        """End the ranks of other nodes as RankGroup ends those of its node."""
        due = self._peers_due_at(submitted)
        if due is not None and time.monotonic() >= due:
            self._runtime.end_ranks(submitted.job)

    def _peers_due_at(self, submitted: _RayAttempt) -> float | None:
        """Return when the nodes that still run are ended (monotonic seconds).

        Either the grace period after the end of other nodes has passed, or the time limit of the node that started
        first; each node counts the limit from its own start.
        """
        job, limit_s = submitted.job, submitted.request.time_limit_s + self._grace_periods.after_term_s
        limits = [node.start_seen_at + limit_s for node in job.nodes if node.start_seen_at is not None]
        ends = [node.ended_at + self._grace_after_s(node) for node in job.nodes if node.ended_at is not None]
        return None if job.is_ended else min([*limits, *ends], default=None)

    def _grace_after_s(self, ended: NodeJob) -> float:
        if ended.report is not None and ended.report.timed_out:
            return 0.0
        return self._grace_periods.after_success_s if _ended_well(ended) else self._grace_periods.after_failure_s

    def cancel(self, keys: Iterable[str]) -> set[str]:
        keys = list(keys)
        self._refresh(keys)
        alive = {k: self._attempts[k] for k in keys if k in self._attempts and not self._attempts[k].job.is_ended}
        for submitted in alive.values():
            submitted.cancelled = submitted.released = True
        if alive:
            self._runtime.end([submitted.job for submitted in alive.values()], _END_TIMEOUT_S)
        stuck = {key for key, submitted in alive.items() if not submitted.job.is_ended}
        return stuck | {k for k in keys if k in self._orphans and self._status(k).liveness is not Liveness.ENDED}

    def wait(self, seconds: float) -> None:
        alive = [s for s in self._attempts.values() if not s.job.is_ended]
        due_in_s = [due - time.monotonic() for s in alive if (due := self._peers_due_at(s)) is not None]
        coming = [due for due in due_in_s if due > 0]  # those already due are being ended, which wakes us
        self._runtime.wait((s.job for s in alive), min([seconds, _LONGEST_WAIT_S, *coming]))

    def close(self) -> None:
        self.cancel(tuple(self._attempts))
        self._runtime.close()


def _ended_well(node: NodeJob) -> bool:
    return node.report is not None and all(rank_exit.code == 0 for rank_exit in node.report.exits)


def _record_ranks(submitted: _RayAttempt) -> None:
    started = [node.ranks for node in submitted.job.nodes if node.ranks]
    if submitted.nodes_written == len(started):
        return
    with suppress(OSError):  # a full disk; retried at the next poll
        write_ranks(submitted.request, submitted.request.spec.attempt_key, [r for ranks in started for r in ranks])
        submitted.nodes_written = len(started)


def _alive(submitted: _RayAttempt) -> LaunchStatus:
    if any(node.started_at is None for node in submitted.job.nodes):
        return LaunchStatus(Liveness.ALIVE, detail=f"waiting for Ray resources {submitted.bundles}")
    return LaunchStatus(Liveness.ALIVE, True, nodes=_hosts(submitted), started_at=_started_at(submitted))


def _ended(submitted: _RayAttempt) -> LaunchStatus:
    nodes = submitted.job.nodes
    reports = [node.report for node in nodes if node.report is not None]
    status = status_from_reports(reports, submitted.request.folder, submitted.cancelled)
    lost = next((node.lost for node in nodes if node.lost is not None), None)
    if lost is None:
        return status
    started_at = _started_at(submitted)
    status = replace(
        status,
        started=started_at is not None,
        failed=True,
        nodes=_hosts(submitted),
        started_at=started_at,
        ended_at=_last_seen_at(submitted, status.ended_at, started_at),
    )
    if submitted.cancelled:
        return status
    reason = FailureReason.LAUNCH_FAILURE if started_at is None else FailureReason.NODE_FAILURE
    return replace(status, reason=reason, detail=lost)


def _last_seen_at(submitted: _RayAttempt, reported: float | None, started_at: float | None) -> float | None:
    """Estimate the end of an attempt with a lost node: nothing was written later."""
    last = last_sign_of_life(submitted.request.folder, started_at)
    return max((moment for moment in (reported, last) if moment is not None), default=None)


def _hosts(submitted: _RayAttempt) -> tuple[str, ...]:
    return tuple(node.ranks[0].host for node in submitted.job.nodes if node.ranks)


def _started_at(submitted: _RayAttempt) -> float | None:
    return min((node.started_at for node in submitted.job.nodes if node.started_at is not None), default=None)
