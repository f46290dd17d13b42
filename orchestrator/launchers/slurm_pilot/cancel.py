"""Cancels steps of pilots, and ends pilots that no attempt needs any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from orchestrator.launchers.slurm_pilot.allocation import Pilot
from orchestrator.launchers.slurm_pilot.allocations import PilotPool
from orchestrator.launchers.slurm_pilot.step_monitor import LaunchedStep, StepMonitor
from orchestrator.launchers.slurm_pilot.step_status import never_started_status
from trials.pilot.files import StepFileKind


class StepCanceller:
    """Cancels `steps`, the launcher's by their keys."""

    def __init__(self, pool: PilotPool, monitor: StepMonitor, steps: Mapping[str, LaunchedStep]):
        self._pool = pool
        self._monitor = monitor
        self._steps = steps

    def begin(self, steps: Iterable[LaunchedStep]) -> None:
        """Request the end of these attempts; those that never started may have ended at once."""
        for step in steps:
            step.cancelled = True
            self._request(step)
        self._drain_unwanted()
        self.end_unstarted()

    def _request(self, step: LaunchedStep) -> None:
        """Withdraw a step that no agent has claimed; request the cancellation of a claimed one."""
        pilot, label = step.pilot, step.request.label
        if pilot is None or step.is_ended:
            return
        with suppress(OSError):
            if self._monitor.with_timeout(pilot, partial(pilot.folder.take, label, StepFileKind.WITHDRAWN)):
                pilot.step_files.setdefault(label, set()).add(StepFileKind.WITHDRAWN)
                step.pilot, step.nodes, step.waits_for = None, (), pilot
            else:
                self._monitor.with_timeout(pilot, pilot.folder.step_file(label, StepFileKind.CANCEL).touch)

    def _drain_unwanted(self) -> None:
        """Drain pilots that ran nothing and that no attempt waits for: no step would pay what they hold."""
        for pilot in self._pool.pilots:
            if (
                pilot.job_id is not None
                and not pilot.is_ended
                and self._unstarted(pilot)
                and self._has_no_waiters(pilot)
            ):
                self.drain_or_cancel(pilot)

    def drain_or_cancel(self, pilot: Pilot) -> None:
        """Drain the pilot; cancel its job if it has no steps, since its agent may not be alive yet."""
        self._pool.drain(pilot)
        if pilot.nodes and pilot.ran_nothing and not pilot.live_steps:
            self._pool.cancel([pilot])

    def end_unstarted(self) -> None:
        """End cancelled attempts that no agent has started. The last to wait for a pilot end after it, and share its
        cost."""
        for step in self._unstarted(None):
            step.status = never_started_status(step.status.job_id)
        for pilot in self._pool.pilots:
            steps = self._unstarted(pilot)
            if not steps or pilot.job_id is None or not self._has_no_waiters(pilot):
                for step in steps:
                    step.status = never_started_status(pilot.job_id)
            elif pilot.is_ended:
                with suppress(OSError):  # retried at the next refresh
                    self._pool.share_cost(pilot, [step.request.label for step in steps])
                    for step in steps:
                        share = pilot.shares[step.request.label]
                        step.status = replace(never_started_status(pilot.job_id), extra_node_s=share)

    def _unstarted(self, pilot: Pilot | None) -> list[LaunchedStep]:
        """Return cancelled attempts that wait for this pilot, or for none."""
        steps = (step for step in self._steps.values() if step.cancelled and step.pilot is None and not step.is_ended)
        return [step for step in steps if step.waits_for is pilot]

    def _has_no_waiters(self, pilot: Pilot) -> bool:
        """True if the pilot ran nothing and no attempt that is not cancelled needs it."""
        wanting = (step for step in self._steps.values() if not (step.is_ended or step.cancelled))
        is_wanted = any(pilot in (step.pilot, step.waits_for) for step in wanting)
        return not is_wanted and pilot.ran_nothing

    def cancel_unresponsive(self, steps: Iterable[LaunchedStep]) -> None:
        """Cancel pilots whose agent is unresponsive; their other steps are retried in the next pilot."""
        pilots = {step.pilot.key: step.pilot for step in steps if step.pilot is not None}
        if silent := [pilot for pilot in pilots.values() if self._pool.is_unresponsive(pilot) and not pilot.is_ended]:
            self._pool.cancel(silent)
