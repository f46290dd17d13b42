"""Status of steps by the files in their pilot's folder, and the nodes that they make suspect."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.slurm.queries import SlurmQueries
from orchestrator.launchers.slurm_pilot.pilot import Pilot
from orchestrator.launchers.slurm_pilot.pool import PilotPool
from orchestrator.launchers.slurm_pilot.sizing import PilotRules
from orchestrator.launchers.slurm_pilot.step_status import (
    ended_step_status,
    live_step_status,
    lost_step_status,
    suspect_nodes,
)
from orchestrator.launchers.timeouts import FOLDER_TIMEOUT_S, HangGuard
from slurm.interface import Slurm
from trials.attempt_result import LaunchStatus, Liveness
from trials.files.folders import SearchFolder
from trials.pilot.files import StepEndReason, StepFileKind, StepRequest, StepStart

_log = logging.getLogger(__name__)


T = TypeVar("T")

_LAST_FILES_S = 5.0
"""Time for the last files of an ended pilot to appear."""


@dataclass
class LaunchedStep:
    """A launched attempt: it waits for room in a pilot (`waits_for`), or was submitted to one and has its `nodes`.

    `start` is the agent's report on its start; `lost_since` when the pilot was seen to have ended without a report on
    the step (`Slurm.monotonic`).
    """

    request: LaunchRequest
    pilot: Pilot | None = None
    waits_for: Pilot | None = None
    nodes: tuple[str, ...] = ()
    start: StepStart | None = None
    cancelled: bool = False
    lost_since: float | None = None
    status: LaunchStatus = field(default_factory=lambda: LaunchStatus(Liveness.ALIVE))

    @property
    def is_ended(self) -> bool:
        return self.status.liveness is Liveness.ENDED

    @property
    def step_files(self) -> set[StepFileKind]:
        return set() if self.pilot is None else self.pilot.step_files.get(self.request.label, set())


class StepMonitor:
    """Reads the folders of pilots, each with a timeout. `suspects` are nodes that are used only if no other is free."""

    def __init__(self, slurm: Slurm, pilots: PilotPool, rules: PilotRules, queries: SlurmQueries):
        self.suspects: set[str] = set()
        self.folders = HangGuard(FOLDER_TIMEOUT_S)
        self._slurm = slurm
        self._pool = pilots
        self._rules = rules
        self._queries = queries

    def adopt_suspects(self, pilot: Pilot, search: SearchFolder) -> None:
        """Restore the suspect nodes of an earlier driver, of a pilot that has not ended."""
        for label in () if pilot.is_ended else pilot.ended_steps:
            trial, _, attempt = label.partition(".")
            nodes = self.step_nodes(pilot, label)
            self.suspects |= {*suspect_nodes(search.attempt(trial, attempt), nodes, self._rules.tasks_per_node)}

    def step_nodes(self, pilot: Pilot, label: str) -> tuple[str, ...]:
        """Return the nodes of a step, by its request; all of its pilot's where that is damaged."""
        try:
            return self._step_request(pilot, label).nodes
        except ValueError as error:
            _log.warning(f"{error}")
            return pilot.nodes

    def _step_request(self, pilot: Pilot, label: str) -> StepRequest:
        if StepFileKind.CLAIMED not in pilot.step_files[label]:
            with suppress(FileNotFoundError):  # its agent has claimed it meanwhile
                return pilot.folder.request(label, StepFileKind.REQUESTED)
        return pilot.folder.request(label, StepFileKind.CLAIMED)

    def read(self, step: LaunchedStep) -> None:
        """Update a submitted step from its pilot's files."""
        try:
            if step.pilot is not None:
                step.status = self._status_of(step, step.pilot)
        except (OSError, ValueError) as error:
            step.status = LaunchStatus(Liveness.UNKNOWN, detail=f"its pilot's folder cannot be read: {error}")
        if step.is_ended and step.nodes:
            self._note_suspects(step)

    def _status_of(self, step: LaunchedStep, pilot: Pilot) -> LaunchStatus:
        step_files, label, request = step.step_files, step.request.label, step.request
        if step.start is None and StepFileKind.STARTED in step_files:
            step.start = self.with_timeout(pilot, partial(pilot.folder.start, label))
        if StepFileKind.ENDED in step_files:
            end = self.with_timeout(pilot, partial(pilot.folder.end, label))
            if end.reason is not StepEndReason.INTERRUPTED:
                return self._queries.with_neighbours(ended_step_status(request, pilot.job_id, step.nodes, end))
            if pilot.is_ended:
                return lost_step_status(request, step.nodes, step.start, pilot.status, step.cancelled)
        elif pilot.is_ended:
            return self._status_without_report(step, pilot)
        elif self._pool.is_unresponsive(pilot) or (
            pilot.status.liveness is Liveness.UNKNOWN and pilot.heartbeat_at is None
        ):
            return LaunchStatus(
                Liveness.UNKNOWN, detail=pilot.status.detail or f"pilot {pilot.folder.name} is unresponsive"
            )
        return live_step_status(pilot.job_id, step.nodes, step.start)

    def _status_without_report(self, step: LaunchedStep, pilot: Pilot) -> LaunchStatus:
        """Return the status of a step whose pilot has ended: withdraw it if unclaimed, else it ended as well."""
        if StepFileKind.CLAIMED not in step.step_files and self._withdraw(step, pilot):
            return LaunchStatus(Liveness.ALIVE, job_id=pilot.job_id)
        now = self._slurm.monotonic()
        step.lost_since = now if step.lost_since is None else step.lost_since
        if now - step.lost_since < _LAST_FILES_S:
            return live_step_status(pilot.job_id, step.nodes, step.start)
        return lost_step_status(step.request, step.nodes, step.start, pilot.status, step.cancelled)

    def request_end(self, step: LaunchedStep) -> None:
        """Withdraw a step that no agent has claimed; request the cancellation of a claimed one."""
        pilot, label = step.pilot, step.request.label
        step.cancelled = True
        if pilot is None or step.is_ended:
            return
        with suppress(OSError):
            if not self._withdraw(step, pilot):
                self.with_timeout(pilot, pilot.folder.step_file(label, StepFileKind.CANCEL).touch)

    def _withdraw(self, step: LaunchedStep, pilot: Pilot) -> bool:
        """Take the step back, which then waits; False where its agent was first."""
        label = step.request.label
        if not self.with_timeout(pilot, partial(pilot.folder.take, label, StepFileKind.WITHDRAWN)):
            return False
        pilot.step_files.setdefault(label, set()).add(StepFileKind.WITHDRAWN)
        step.pilot, step.nodes, step.waits_for = None, (), pilot
        return True

    def _note_suspects(self, step: LaunchedStep) -> None:
        """Add nodes that may have caused the step's end; certain causes are excluded by the search's next attempts."""
        with suppress(OSError):
            sick = suspect_nodes(step.request.folder, step.nodes, self._rules.tasks_per_node)
            if new := {*sick} - self.suspects:
                self.suspects |= new
                _log.warning(
                    f"suspect after {step.request.label}: {', '.join(sorted(new))}; used only if no other node is free"
                )

    def with_timeout(self, pilot: Pilot, work: Callable[[], T]) -> T:
        return self.folders.call(str(pilot.folder.path), work)
