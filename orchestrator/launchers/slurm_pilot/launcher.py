"""Slurm pilot launcher: attempts are concurrent job steps in allocations of the search, its pilots.

Nodes are waited for once, and layouts are compared on the same nodes. Pilots are in pool.py, their size and the
choice of nodes in sizing.py, steps in step_monitor.py, their status in step_status.py. The agent inside the allocation,
which goes on without a driver, is trials/pilot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from orchestrator.launchers.base import LaunchPostponed, LaunchRefused, LaunchRequest
from orchestrator.launchers.slurm.job_files import write_job_files
from orchestrator.launchers.slurm.launcher import SlurmAccess, SlurmBackend
from orchestrator.launchers.slurm_pilot.fork_servers import write_fork_servers
from orchestrator.launchers.slurm_pilot.pilot import Pilot
from orchestrator.launchers.slurm_pilot.pool import CLOSE_WAIT_S, PilotPool
from orchestrator.launchers.slurm_pilot.sizing import (
    ROOM_S,
    SLOW_START_S,
    STEP_ENDING_S,
    PilotRules,
    RemainingWork,
    choose_nodes,
    min_pilot_s,
)
from orchestrator.launchers.slurm_pilot.step_monitor import LaunchedStep, StepMonitor
from orchestrator.launchers.slurm_pilot.step_status import (
    live_step_status,
    never_started_status,
    step_job,
    unserved_status,
)
from search_spaces.errors import ExternalError
from trials.attempt_result import LaunchStatus, Liveness
from trials.files.folders import SearchFolder
from trials.pilot.agent import number_script_path
from trials.pilot.files import StepFileKind, StepRequest, write
from trials.trial import FailureReason

_log = logging.getLogger(__name__)


_CANCEL_WAIT_S = 15.0
_POLL_S = 0.2


class SlurmPilotLauncher(SlurmBackend):
    """Submits pilots of these `rules`, each with its time planned from `remaining_work`, and runs attempts in them."""

    name = "slurm_pilot"
    runs_steps = True

    def __init__(self, access: SlurmAccess, rules: PilotRules, remaining_work: Callable[[], RemainingWork]):
        super().__init__(access)
        self._search = None if access.handover is None else SearchFolder(access.handover.parent)
        reserve = lambda *pilot: self.reserve_pilot(*pilot)  # noqa: E731
        self._pool = PilotPool(
            self._slurm, self._options, rules, self._queries, remaining_work, reserve, self._handover
        )
        self._steps: dict[str, LaunchedStep] = {}
        self._monitor = StepMonitor(self._slurm, self._pool, rules, self._queries)

    # -- launching

    def launch(self, request: LaunchRequest) -> str | None:
        """Return the id of the job in which the attempt will be a step."""
        request.require_taken()
        if request.key in self._steps:
            raise ValueError(f"{request.key} was launched before")
        self._open(_search_of(request))
        pilot = self._pilot_for(request) or self._pool.submit(request)
        self._steps[request.key] = LaunchedStep(request, waits_for=pilot)
        return pilot.job_id

    def adopt(self, requests: Mapping[str, LaunchRequest]) -> dict[str, str]:
        """Find steps by their files, whichever driver submitted them; attempts that waited for room wait on."""
        adopted: dict[str, str] = {}
        for key, request in requests.items():
            self._open(_search_of(request))
            submitted_to = [p for p in self._pool.pilots if request.label in p.live_steps | p.ended_steps]
            job_id = request.job_id
            waits_for = next((pilot for pilot in self._pool.pilots if job_id and pilot.job_id == job_id), None)
            if not submitted_to and job_id is None:
                continue
            step = self._steps[key] = LaunchedStep(request, waits_for=waits_for)
            if submitted_to:
                step.pilot = submitted_to[-1]
                step.nodes = self._monitor.step_nodes(step.pilot, request.label)
                self._monitor.read(step)
            pilot = step.pilot or waits_for
            adopted[key] = step.status.job_id or (pilot and pilot.job_id) or job_id or ""
        return adopted

    def _open(self, search: SearchFolder | None) -> None:
        if search is not None and self._pool.load(search):
            for pilot in self._pool.pilots:
                self._monitor.adopt_suspects(pilot, search)

    def _pilot_for(self, request: LaunchRequest) -> Pilot | None:
        """Return the first pilot in which it can run, now or later; drain those in which it cannot, as later ones are
        as large."""
        for pilot in self._pool.pilots:
            if not pilot.may_accept or pilot.job_id is None:
                continue
            if self._has_room(pilot, request.time_limit_s, request.spec.num_nodes, _avoided_nodes(pilot, request)):
                return pilot
            self._pool.drain(pilot)
            if pilot.nodes and pilot.ran_nothing and not pilot.live_steps:
                self._pool.cancel([pilot])  # its agent may not be alive yet
        return None

    def _has_room(
        self, pilot: Pilot, time_limit_s: float, num_nodes: int, avoided: Collection[str] = frozenset()
    ) -> bool:
        """True if an attempt of this limit ends before the pilot's, on nodes that it may use."""
        left_s = pilot.plan.time_limit_s
        if pilot.started_at is not None:
            left_s -= self._slurm.now() - pilot.started_at
        num_usable = sum(node not in avoided for node in pilot.nodes) if pilot.nodes else pilot.plan.num_nodes
        return left_s >= time_limit_s + ROOM_S and num_usable >= num_nodes

    def _assign_steps(self) -> None:
        """Submit waiting attempts to their pilots in order, so that large ones are not overtaken for ever."""
        waiting = [s for s in self._steps.values() if s.pilot is None and not (s.is_ended or s.cancelled)]
        full: set[str] = set()
        for step in waiting:
            if step.waits_for is not None and step.waits_for.agent_never_started:
                step.status = unserved_status(step.waits_for)
                continue
            try:
                pilot = step.waits_for = self._pilot_for(step.request) or self._pool.submit(step.request)
                step.status = LaunchStatus(Liveness.ALIVE, detail=self._wait_reason(pilot), job_id=pilot.job_id)
                if pilot.accepts_steps and pilot.key not in full and not self._submit_step(step, pilot):
                    full.add(pilot.key)
            except LaunchRefused as refusal:
                step.status = LaunchStatus(Liveness.ENDED, reason=FailureReason.LAUNCH_FAILURE, detail=str(refusal))
            except (LaunchPostponed, ExternalError, OSError) as error:
                step.status = LaunchStatus(Liveness.ALIVE, detail=str(error))

    def _wait_reason(self, pilot: Pilot) -> str | None:
        if not pilot.nodes:
            return pilot.status.detail
        if pilot.heartbeat_at is None and self._slurm.now() - (pilot.started_at or self._slurm.now()) > SLOW_START_S:
            return f"pilot {pilot.folder.name} runs, but its agent has not started: see {pilot.folder.path}/job.log"
        return "Resources"

    def _submit_step(self, step: LaunchedStep, pilot: Pilot) -> bool:
        """Submit the step to its pilot; False where too few nodes are free."""
        request, label = step.request, step.request.label
        busy = {
            node
            for other in self._steps.values()
            if other.pilot is pilot and not other.is_ended
            for node in other.nodes
        }
        busy |= self._nodes_of_unknown_steps(pilot)
        avoided = _avoided_nodes(pilot, request)
        nodes = choose_nodes(pilot.nodes, request.spec.num_nodes, busy, avoided, self._monitor.suspects)
        if nodes is None:
            return False
        script = number_script_path(pilot.folder).absolute()
        job = step_job(request, self._options, nodes, script)
        write_servers = partial(write_fork_servers, request, self._options, pilot)
        step_request = StepRequest(
            directory=str(job.directory),
            script=job.script.name,
            num_nodes=len(nodes),
            time_limit_s=request.time_limit_s,
            nodes=nodes,
            fork_servers=self._monitor.with_timeout(pilot, write_servers),
        )
        self._monitor.folders.call(str(request.folder.path), partial(write_job_files, job))
        step.pilot, step.nodes = pilot, nodes  # from here on it may run, even if the next line fails
        pilot.step_files.setdefault(label, set()).add(StepFileKind.REQUESTED)
        self._monitor.with_timeout(
            pilot, partial(write, pilot.folder.step_file(label, StepFileKind.REQUESTED), step_request)
        )
        step.status = live_step_status(pilot.job_id, nodes, None)
        return True

    def _nodes_of_unknown_steps(self, pilot: Pilot) -> set[str]:
        """Return nodes of the pilot's steps that this driver does not know: an earlier one failed to end them."""
        known = {step.request.label for step in self._steps.values()}
        return {node for label in pilot.live_steps - known for node in self._monitor.step_nodes(pilot, label)}

    # -- watching

    def poll(self, keys: Iterable[str]) -> dict[str, LaunchStatus]:
        self._refresh()
        self._end_unstarted()
        self._assign_steps()
        return {key: self._steps[key].status if key in self._steps else LaunchStatus(Liveness.UNKNOWN) for key in keys}

    def _refresh(self) -> None:
        self._pool.refresh()
        for step in self._steps.values():
            if not step.is_ended:
                self._monitor.read(step)

    # -- ending

    def cancel(self, keys: Iterable[str]) -> set[str]:
        wanted = {key: self._steps[key] for key in keys if key in self._steps}
        for step in wanted.values():
            self._monitor.request_end(step)
        deadline = self._slurm.monotonic() + _CANCEL_WAIT_S
        while left := {key for key, step in wanted.items() if not step.is_ended}:
            self._refresh()
            self._end_unstarted()
            if self._slurm.monotonic() >= deadline:
                break
            if any(not wanted[key].is_ended for key in left):
                self._sleep(_POLL_S)
        self._cancel_unresponsive(wanted[key] for key in left)
        return left

    def _end_unstarted(self) -> None:
        """End cancelled attempts that no agent has started."""
        for step in self._steps.values():
            if step.cancelled and step.pilot is None and not step.is_ended:
                waited_for = step.waits_for
                step.status = never_started_status(step.status.job_id if waited_for is None else waited_for.job_id)

    def _cancel_unresponsive(self, steps: Iterable[LaunchedStep]) -> None:
        """Cancel pilots whose agent is unresponsive; their other steps are retried in the next pilot."""
        pilots = {step.pilot.key: step.pilot for step in steps if step.pilot is not None}
        if silent := [pilot for pilot in pilots.values() if self._pool.is_unresponsive(pilot) and not pilot.is_ended]:
            self._pool.cancel(silent)

    def longest_s(self, time_limit_s: float) -> float:
        """Return the most seconds for which a step of this limit is on its nodes: its agent ends it."""
        return time_limit_s + STEP_ENDING_S

    def reservation_node_s(self, time_limit_s: float, num_nodes: int) -> float:
        """Return the node-seconds of the shortest pilot for the attempt; 0 where there is one with room for it."""
        try:
            self._open(self._search)
        except OSError as error:
            raise LaunchPostponed(f"the pilots' folder cannot be read: {error}") from error
        if any(self._has_room(pilot, time_limit_s, num_nodes) for pilot in self._pool.pilots if pilot.may_accept):
            return 0.0
        return self._pool.reservation_node_s(min_pilot_s(time_limit_s))

    def num_choosable_nodes(self) -> int | None:
        """Return the nodes of a pilot: another one for other nodes would cost more than they tell."""
        return self._pool.rules.num_nodes

    def ended_pilots(self) -> dict[str, LaunchStatus]:
        return self._pool.ended()

    def cancel_waiting_pilot(self, name: str) -> bool:
        self._open(self._search)
        return self._pool.cancel_waiting(name)

    def release(self, gives_up: bool = True) -> bool:
        self._open(self._search)
        return self._pool.release(gives_up)

    def cancel_leftovers(self) -> list[str]:
        """Cancel pilots that wait or idle, left by a driver that was killed when the search had ended."""
        self._open(self._search)
        left = [pilot for pilot in self._pool.pilots if not pilot.is_ended]
        unreached = self._drain_all(left)
        return [pilot.key for pilot in left if pilot.job_id in unreached or self._pool.may_be_submitted(pilot)]

    def close(self) -> None:
        """Drain pilots without steps that no attempt waits for; others end when idle, or serve the next driver."""
        if all(step.is_ended or step.cancelled or step.pilot is not None for step in self._steps.values()):
            self._drain_all([pilot for pilot in self._pool.pilots if not (pilot.is_ended or pilot.live_steps)])
        self._pool.save()

    def _drain_all(self, pilots: list[Pilot]) -> set[str]:
        """Drain these pilots and wait for their agents; return ids of jobs that may still be alive."""
        unreached = {job_id for pilot in pilots for job_id in self._pool.drain(pilot)}
        deadline = self._slurm.monotonic() + CLOSE_WAIT_S
        while left := [p for p in pilots if p.nodes and not (p.is_ended or self._pool.is_closing(p))]:
            if self._slurm.monotonic() >= deadline:
                unreached |= self._pool.cancel(left)
                break
            self._sleep(_POLL_S)
        if unreached:
            _log.warning(f"unneeded pilots may still be running: scancel {' '.join(sorted(unreached))}")
        return unreached


def _search_of(request: LaunchRequest) -> SearchFolder:
    return SearchFolder(request.folder.path.absolute().parents[2])


def _avoided_nodes(pilot: Pilot, request: LaunchRequest) -> set[str]:
    """Return the nodes that the attempt avoids, except those that Slurm gave the pilot although it avoided them."""
    return {*request.exclude} - {*pilot.plan.exclude}
