"""SlurmPilotLauncher: attempts are job steps, side by side in an allocation of the search's own, the pilot.

The nodes are waited for once, and layouts are compared on the same ones. Pilots are in allocations.py, how large
they are and who runs where in sizing.py, steps in step_monitor.py, and what became of them in
step_status.py; what runs inside the allocation, and goes on without a driver, is trials/pilot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from orchestrator.launchers.base import EndedPilot, Launcher, LaunchPostponed, LaunchRefused, LaunchRequest
from orchestrator.launchers.slurm.attempt_logs import may_exist
from orchestrator.launchers.slurm.handover import HandoverFile
from orchestrator.launchers.slurm.job_files import write_job_files
from orchestrator.launchers.slurm.queries import SlurmQueries
from orchestrator.launchers.slurm_pilot.allocation import Pilot
from orchestrator.launchers.slurm_pilot.allocations import CLOSE_WAIT_S, PilotPool
from orchestrator.launchers.slurm_pilot.sizing import (
    ROOM_S,
    SLOW_START_S,
    PilotRules,
    WorkLeft,
    choose_nodes,
    max_share_s,
)
from orchestrator.launchers.slurm_pilot.step_monitor import Step, StepMonitor
from orchestrator.launchers.slurm_pilot.step_status import (
    live_step_status,
    never_started_status,
    step_job,
    unused_pilot_status,
)
from search_spaces.errors import ExternalError
from slurm.interface import Slurm
from slurm.poll_backoff import PollBackoff
from slurm.request import JobOptions
from slurm.squeue_cache import SqueueSnapshot
from trials.attempt_result import LaunchStatus, Liveness
from trials.files.folders import SearchFolder
from trials.pilot.agent import number_script_path
from trials.pilot.files import StepFileKind, StepRequest, write
from trials.trial import FailureReason

_CANCEL_WAIT_S = 15.0
_LOOK_S = 0.2


class SlurmPilotLauncher(Launcher):
    """Submits pilots of these `rules` to `slurm` with the user's `options`, and hands attempts to them.

    `work_left` is what the search may still do, by which the next pilot's time is planned. The other arguments are
    those of SlurmLauncher.
    """

    name = "slurm_pilot"

    def __init__(
        self,
        slurm: Slurm,
        options: JobOptions,
        rules: PilotRules,
        backoff: PollBackoff,
        jobs: Callable[[float], SqueueSnapshot],
        work_left: Callable[[], WorkLeft],
        sleep: Callable[[float], None] = time.sleep,
        note: Callable[[str], None] = lambda text: None,
        handover: Path | None = None,
    ):
        self._slurm = slurm
        self._options = options
        self._rules = rules
        self._sleep = sleep
        self._note = note
        self._search = None if handover is None else SearchFolder(handover.parent)
        queries = SlurmQueries(slurm, backoff, jobs)
        self.iteration_interval_s = queries.iteration_interval_s(self.iteration_interval_s)
        handover_file = HandoverFile(handover, slurm.monotonic, slurm.now)
        self._pilots = PilotPool(slurm, options, rules, queries, work_left, note, handover_file)
        self._steps: dict[str, Step] = {}
        self._monitor = StepMonitor(slurm, self._pilots, rules, note)

    # -- launching

    def _launch(self, request: LaunchRequest) -> str | None:
        """The id of the job in which the attempt will be a step."""
        if request.key in self._steps:
            raise ValueError(f"{request.key} was launched before")
        self._open(_search_of(request))
        pilot = self._pilot_for(request) or self._pilots.submit(request)
        self._steps[request.key] = Step(request, waits_for=pilot)
        return pilot.job_id

    def adopt(self, requests: Mapping[str, LaunchRequest]) -> dict[str, str]:
        """Steps are found by their files, whoever asked for them; those that waited for room wait on."""
        adopted: dict[str, str] = {}
        for key, request in requests.items():
            self._open(_search_of(request))
            handed_to = [p for p in self._pilots.known if request.label in p.live | p.ends]
            waits_for = self._adopted_pilot(request)
            if not handed_to and waits_for is None and request.job_id is None:
                continue
            step = self._steps[key] = Step(request, waits_for=waits_for)
            if handed_to:
                step.pilot = handed_to[-1]
                step.nodes = self._monitor.request_in(step.pilot, request.label).nodes
                self._monitor.read(step)
            pilot = step.pilot or waits_for
            adopted[key] = step.status.job_id or (pilot and pilot.job_id) or request.job_id or ""
        return adopted

    def _adopted_pilot(self, request: LaunchRequest) -> Pilot | None:
        """The pilot with which an earlier driver let it end, or of which it told it, or which it perhaps asked for on
        its behalf and could not say so any more: who else would pay for that?"""
        known = [pilot for pilot in self._pilots.known if request.label in pilot.shares]
        if request.job_id is not None:
            known += [pilot for pilot in self._pilots.known if pilot.job_id == request.job_id]
        elif may_exist(request.folder.spec):  # without it nothing was asked for
            unpaid = (p for p in self._pilots.known if p.ran_nothing and not self._pilots.is_paid(p))
            known += [pilot for pilot in unpaid if pilot.job_id is not None]
        return next(iter(known), None)

    def _open(self, search: SearchFolder) -> None:
        if self._pilots.open(search):
            for pilot in self._pilots.known:
                self._monitor.take_over(pilot, search)

    def _pilot_for(self, request: LaunchRequest) -> Pilot | None:
        """The first pilot in which it can run, now or later. One that runs and can not take it is let go: those that
        follow are as large, and the next pilot takes them as well."""
        for pilot in self._pilots.known:
            if pilot.is_over or pilot.is_draining or pilot.job_id is None:
                continue
            if self._has_room(pilot, request):
                return pilot
            self._drain_or_cancel(pilot)
        return None

    def _drain_or_cancel(self, pilot: Pilot) -> None:
        """It takes no more steps. Where it has none its job is cancelled, since its agent may not live yet."""
        self._pilots.drain(pilot)
        if pilot.nodes and pilot.ran_nothing and not pilot.live:
            self._pilots.cancel([pilot])

    def _has_room(self, pilot: Pilot, request: LaunchRequest) -> bool:
        """Whether the attempt's limit ends before the pilot's, on nodes that it may have."""
        left_s = pilot.plan.time_limit_s
        if pilot.started_at is not None:
            left_s -= self._slurm.now() - pilot.started_at
        avoided = _avoided(pilot, request)
        num_usable = sum(node not in avoided for node in pilot.nodes) if pilot.nodes else pilot.plan.num_nodes
        return left_s >= request.time_limit_s + ROOM_S and num_usable >= request.spec.num_nodes

    def _assign_steps(self) -> None:
        """Hand those that wait to their pilots, in their order: one that needs many nodes is not overtaken for ever."""
        waiting = [s for s in self._steps.values() if s.pilot is None and not (s.is_over or s.cancelled)]
        unused = [step for step in waiting if step.waits_for is not None and self._was_unused(step.waits_for)]
        self._end_unused(unused)
        full: set[str] = set()
        for step in [step for step in waiting if step not in unused]:
            try:
                pilot = step.waits_for = self._pilot_of(step)
                step.status = LaunchStatus(Liveness.ALIVE, detail=self._wait_reason(pilot), job_id=pilot.job_id)
                if pilot.accepts_steps and pilot.key not in full and not self._submit_step(step, pilot):
                    full.add(pilot.key)
            except LaunchRefused as refusal:
                step.status = LaunchStatus(Liveness.ENDED, reason=FailureReason.LAUNCH_FAILURE, detail=str(refusal))
            except (LaunchPostponed, ExternalError, OSError) as error:
                step.status = LaunchStatus(Liveness.ALIVE, detail=str(error))

    def _end_unused(self, steps: Collection[Step]) -> None:
        """Attempts that waited for a pilot which is over before anything was begun in it end, and pay what it held. The
        next attempt of their trials has a reservation of its own for the next pilot."""
        for pilot in self._pilots.known:
            if not (those := [step for step in steps if step.waits_for is pilot]):
                continue
            try:
                self._pilots.share_cost(pilot, [step.request.label for step in those])
            except OSError as error:
                for step in those:
                    step.status = LaunchStatus(Liveness.ALIVE, detail=str(error), job_id=pilot.job_id)
                continue
            for step in those:
                step.status = unused_pilot_status(pilot, pilot.shares[step.request.label])

    def _was_unused(self, pilot: Pilot) -> bool:
        """Whether those that wait for it end with it. One that never had nodes, and was let go, cost nobody a thing."""
        if not (pilot.is_over and pilot.ran_nothing):
            return False
        return pilot.agent_never_started or bool(pilot.shares) or self._pilots.rest_node_s(pilot) > 0.0

    def _pilot_of(self, step: Step) -> Pilot:
        """The pilot that it waits for from now on; raises as `Launcher.launch` does."""
        if (pilot := self._draining_pilot(step)) is not None:
            return pilot
        found = self._pilot_for(step.request)  # which may let go the one that it waits for
        return found or self._draining_pilot(step) or self._pilots.submit(step.request)

    def _draining_pilot(self, step: Step) -> Pilot | None:
        """The pilot it waits for, where that takes no more steps and nothing was begun in it: its end, which tells what
        is to be paid, is waited for before another is asked for."""
        pilot = step.waits_for
        if pilot is None or pilot.is_over or pilot.job_id is None or not (pilot.is_draining and pilot.ran_nothing):
            return None
        if not pilot.nodes:
            self._pilots.drain(pilot)  # once more, should Slurm not have heard it
        return pilot

    def _wait_reason(self, pilot: Pilot) -> str | None:
        if pilot.is_draining:
            return f"pilot {pilot.folder.name} ends first"
        if not pilot.nodes:
            return pilot.status.detail
        if pilot.heartbeat_at is None and self._slurm.now() - (pilot.started_at or self._slurm.now()) > SLOW_START_S:
            return (
                f"pilot {pilot.folder.name} runs, and its agent does not come to life: see {pilot.folder.path}/job.log"
            )
        return "Resources"

    def _submit_step(self, step: Step, pilot: Pilot) -> bool:
        """False where too few nodes are free just now."""
        request, label = step.request, step.request.label
        busy = {
            node for other in self._steps.values() if other.pilot is pilot and not other.is_over for node in other.nodes
        }
        busy |= self._nodes_of_unknown_steps(pilot)
        avoided = _avoided(pilot, request)
        nodes = choose_nodes(pilot.nodes, request.spec.num_nodes, busy, avoided, self._monitor.suspects)
        if nodes is None:
            return False
        script = number_script_path(pilot.folder).absolute()
        job = step_job(request, self._options, nodes, script)
        asked = StepRequest(
            directory=str(job.directory),
            script=job.script.name,
            num_nodes=len(nodes),
            time_limit_s=request.time_limit_s,
            nodes=nodes,
            pilot_started_at=pilot.started_at,
        )
        self._monitor.folders.call(str(request.folder.path), partial(write_job_files, job))
        step.pilot, step.nodes = pilot, nodes  # from here on it may run, whatever the next line says
        pilot.step_files.setdefault(label, set()).add(StepFileKind.REQUESTED)
        self._monitor.with_timeout(pilot, partial(write, pilot.folder.step_file(label, StepFileKind.REQUESTED), asked))
        step.status = live_step_status(pilot.job_id, nodes, None)
        return True

    def _nodes_of_unknown_steps(self, pilot: Pilot) -> set[str]:
        """Nodes of steps in this pilot that this driver does not know: an earlier one gave them up in vain."""
        known = {step.request.label for step in self._steps.values()}
        return {node for label in pilot.live - known for node in self._monitor.request_in(pilot, label).nodes}

    # -- watching

    def poll(self, keys: Iterable[str]) -> dict[str, LaunchStatus]:
        self._refresh()
        self._end_unstarted()
        self._assign_steps()
        return {key: self._steps[key].status if key in self._steps else LaunchStatus(Liveness.UNKNOWN) for key in keys}

    def _refresh(self) -> None:
        self._pilots.refresh()
        for step in self._steps.values():
            if not step.is_over:
                self._monitor.read(step)

    # -- ending

    def cancel(self, keys: Iterable[str]) -> set[str]:
        wanted = {key: self._steps[key] for key in keys if key in self._steps}
        for step in wanted.values():
            step.cancelled = True
            self._request_cancel(step)
        self._drain_unwanted()
        self._end_unstarted()
        deadline = self._slurm.monotonic() + _CANCEL_WAIT_S
        while left := {key for key, step in wanted.items() if not step.is_over}:
            self._refresh()
            self._end_unstarted()
            if self._slurm.monotonic() >= deadline:
                break
            if any(not wanted[key].is_over for key in left):
                self._sleep(_LOOK_S)
        self._cancel_silent([wanted[key] for key in left])
        return left

    def _request_cancel(self, step: Step) -> None:
        """What no agent has claimed never runs; of the rest the agent is told."""
        pilot, label = step.pilot, step.request.label
        if pilot is None or step.is_over:
            return
        with suppress(OSError):
            if self._monitor.with_timeout(pilot, partial(pilot.folder.take, label, StepFileKind.WITHDRAWN)):
                pilot.step_files.setdefault(label, set()).add(StepFileKind.WITHDRAWN)
                step.pilot, step.nodes, step.waits_for = None, (), pilot
            else:
                self._monitor.with_timeout(pilot, pilot.folder.step_file(label, StepFileKind.CANCEL).touch)

    def _drain_unwanted(self) -> None:
        """Pilots that have begun nothing, and that nobody waits for any more: no step would pay what they hold."""
        for pilot in self._pilots.known:
            if (
                pilot.job_id is not None
                and not pilot.is_over
                and self._unstarted(pilot)
                and self._has_no_waiters(pilot)
            ):
                self._drain_or_cancel(pilot)

    def _end_unstarted(self) -> None:
        """Cancelled attempts that no agent has begun end, but those that were the last to want their pilot: it is over
        first, and they share what it held."""
        for step in self._unstarted(None):
            step.status = never_started_status(step.status.job_id)
        for pilot in self._pilots.known:
            steps = self._unstarted(pilot)
            if not steps or pilot.job_id is None or not self._has_no_waiters(pilot):
                for step in steps:
                    step.status = never_started_status(pilot.job_id)
            elif pilot.is_over:
                with suppress(OSError):  # tried again with the next look
                    self._pilots.share_cost(pilot, [step.request.label for step in steps])
                    for step in steps:
                        share = pilot.shares[step.request.label]
                        step.status = replace(never_started_status(pilot.job_id), twin_node_s=share)

    def _unstarted(self, pilot: Pilot | None) -> list[Step]:
        """Cancelled attempts that wait for this pilot, or for none."""
        steps = (step for step in self._steps.values() if step.cancelled and step.pilot is None and not step.is_over)
        return [step for step in steps if step.waits_for is pilot]

    def _has_no_waiters(self, pilot: Pilot) -> bool:
        wanting = (step for step in self._steps.values() if not (step.is_over or step.cancelled))
        is_wanted = any(pilot in (step.pilot, step.waits_for) for step in wanting)
        return not is_wanted and pilot.ran_nothing

    def _cancel_silent(self, steps: Iterable[Step]) -> None:
        """A pilot whose agent does nothing any more is ended as a whole: its other steps are tried again elsewhere."""
        pilots = {step.pilot.key: step.pilot for step in steps if step.pilot is not None}
        if silent := [pilot for pilot in pilots.values() if self._pilots.is_silent(pilot) and not pilot.is_over]:
            self._pilots.cancel(silent)

    def longest_s(self, time_limit_s: float, num_nodes: int = 1) -> float:
        """What an attempt alone in its pilot would have to pay, and what other pilots hold that is in no book yet."""
        try:
            if self._search is not None:
                self._open(self._search)
        except OSError as error:
            raise LaunchPostponed(f"the pilots' folder does not answer: {error}") from error
        return max_share_s(self._rules, time_limit_s, num_nodes, self._pilots.unbooked_node_s())

    def now(self) -> float:
        return self._slurm.now()

    def wait(self, seconds: float) -> None:
        self._sleep(seconds)

    def ended_pilots(self) -> list[EndedPilot]:
        return self._pilots.ended()

    def release(self) -> bool:
        if self._search is not None:
            self._open(self._search)
        return self._pilots.release()

    def cancel_leftovers(self) -> list[str]:
        """A driver that was killed once the search had ended leaves pilots that wait in the queue, or idle."""
        if self._search is not None:
            self._open(self._search)
        left = [pilot for pilot in self._pilots.known if not pilot.is_over]
        unreached = self._drain_all(left)
        return [pilot.key for pilot in left if pilot.job_id in unreached or self._pilots.may_be_submitted(pilot)]

    def close(self) -> None:
        """Pilots that nothing runs in and nothing waits for end now; the others end by themselves once they are idle,
        unless the next driver has more for them."""
        if all(step.is_over or step.cancelled or step.pilot is not None for step in self._steps.values()):
            self._drain_all([pilot for pilot in self._pilots.known if not (pilot.is_over or pilot.live)])
        self._pilots.save()

    def _drain_all(self, pilots: list[Pilot]) -> set[str]:
        """Ids of those that may live on."""
        unreached = {job_id for pilot in pilots for job_id in self._pilots.drain(pilot)}
        deadline = self._slurm.monotonic() + CLOSE_WAIT_S
        while left := [p for p in pilots if p.nodes and not (p.is_over or may_exist(p.folder.closed))]:
            if self._slurm.monotonic() >= deadline:
                unreached |= self._pilots.cancel(left)
                break
            self._sleep(_LOOK_S)
        if unreached:
            self._note(f"pilots that nobody needs may still be there: scancel {' '.join(sorted(unreached))}")
        return unreached


def _search_of(request: LaunchRequest) -> SearchFolder:
    return SearchFolder(request.folder.path.absolute().parents[2])


def _avoided(pilot: Pilot, request: LaunchRequest) -> set[str]:
    """The nodes the attempt keeps away from, but for those that Slurm gave the pilot although it was told the same."""
    return {*request.exclude} - {*pilot.plan.exclude}
