"""Cancels steps of pilots, and ends pilots that no attempt needs any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
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
        """Request the end of these attempts; those that never started have ended at once."""
        for step in steps:
            step.cancelled = True
            self._request(step)
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

    def drain_or_cancel(self, pilot: Pilot) -> None:
        """Drain the pilot; cancel its job if it has no steps, since its agent may not be alive yet."""
        self._pool.drain(pilot)
        if pilot.nodes and pilot.ran_nothing and not pilot.live_steps:
            self._pool.cancel([pilot])

    def end_unstarted(self) -> None:
        """End cancelled attempts that no agent has started."""
        for step in self._steps.values():
            if step.cancelled and step.pilot is None and not step.is_ended:
                waited_for = step.waits_for
                step.status = never_started_status(step.status.job_id if waited_for is None else waited_for.job_id)

    def cancel_unresponsive(self, steps: Iterable[LaunchedStep]) -> None:
        """Cancel pilots whose agent is unresponsive; their other steps are retried in the next pilot."""
        pilots = {step.pilot.key: step.pilot for step in steps if step.pilot is not None}
        if silent := [pilot for pilot in pilots.values() if self._pool.is_unresponsive(pilot) and not pilot.is_ended]:
            self._pool.cancel(silent)
