"""Search loop: monitor, check stop conditions, finalize, propose, submit; repeated until nothing is left to do.

The driver keeps no state of its own: every step first records what it is about to do, and the next step follows from
the record alone. So a driver that was killed at any point is resumed by another one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from orchestrator.launchers.base import Launcher, LaunchPostponed, LaunchRefused
from orchestrator.search.attempt_factory import AttemptFactory
from orchestrator.search.context import NO_CALLBACKS, DriverCallbacks, SearchContext, SearchObjective
from orchestrator.search.event_store import EventStore
from orchestrator.search.fabric_check import FabricChecker, FabricProgram
from orchestrator.search.finalize import TrialFinalizer
from orchestrator.search.monitor import AttemptMonitor
from orchestrator.search.pilot_charges import cancel_pilots_over_budget, may_return_budget, release_pilots
from orchestrator.search.propose import TrialProposer
from orchestrator.search.samplers.base import Sampler
from orchestrator.search.stopping import (
    Limits,
    end_reason_without_value,
    is_idle,
    program_change_detail,
    repeated_failure_excerpt,
    unmeasurable_excerpt,
    wall_time_exceeded,
)
from trials.analysis.best_layout import no_room_detail
from trials.analysis.setting_failures import SettingValue
from trials.ledger.events import EndReason, EventKind, SearchRecord, SearchState
from trials.trial import Attempt, TrialState


class Driver:
    """Drives one search to its end. Single-threaded, but a signal handler may call `interrupt` and `stop_now`."""

    def __init__(
        self,
        event_store: EventStore,
        factory: AttemptFactory,
        make_sampler: Callable[[frozenset[SettingValue]], Sampler],
        launcher: Launcher,
        goal: SearchObjective,
        limits: Limits,
        callbacks: DriverCallbacks = NO_CALLBACKS,
        is_in_job: bool = False,
        fabric_check: FabricProgram | None = None,
    ):
        """`make_sampler` returns a sampler whose candidates have none of the given values of settings, which fail.
        `is_in_job` if the driver runs in a Slurm job of its own. `fabric_check` is run before anything is proposed,
        where it is given."""
        if fabric_check is not None:
            factory = replace(factory, check=fabric_check.trainer)
        self._context = SearchContext(event_store, factory, launcher, goal, limits, callbacks, is_in_job)
        self._monitor = AttemptMonitor(self._context)
        self._finalizer = TrialFinalizer(self._context)
        self._proposer = TrialProposer(self._context, make_sampler)
        self._fabric = FabricChecker(self._context, fabric_check)
        self._launched: dict[str, str | None] = {}
        self._stopped = False

    @property
    def search(self) -> SearchRecord:
        return self._context.search

    @property
    def is_interrupted(self) -> bool:
        return self._context.is_interrupted

    def interrupt(self) -> None:
        """Propose and retry nothing more; `run` returns once everything in flight has ended."""
        self._context.is_interrupted = True

    def stop_now(self) -> None:
        """Stop at the next safe point of `run`, and leave everything in flight as it is."""
        self._context.is_interrupted = self._stopped = True

    def run(self) -> SearchRecord:
        """Drive until the search has ended, or until an interrupt has drained it. Returns the record.

        A full disk or an unreachable folder does not end the search: the iteration is retried for as long as the lease
        can be renewed.
        """
        if not self.search.state.is_ended:
            self.recover()
        while not (self._is_over or self._stopped):
            if self._context.is_interrupted and self._context.index.in_flight:
                self._context.log_once.info("interrupted: waiting for the attempts in flight (ctrl-C again stops now)")
            try:
                self._context.callbacks.heartbeat()
                self.iterate()
            except OSError as error:
                self._context.log_once.warning(f"retrying: {error}")
            if self._is_over or self._is_drained:
                break
            self._context.launcher.wait(self._context.launcher.iteration_interval_s)
        return self.search

    def advance(self) -> SearchRecord:
        """Do everything that needs no waiting: iterate until nothing changes, and leave the rest to the next driver.

        Returns the record. OSError for a full disk or an unreachable folder.
        """
        if not self.search.state.is_ended:
            self.recover()
        last_seq = -1
        while not (self.search.state.is_ended or self._stopped) and self.search.last_seq != last_seq:
            last_seq = self.search.last_seq
            self._context.callbacks.heartbeat()
            self.iterate()
        return self.search

    def iterate(self) -> None:
        """Do everything that is due now, once.

        While the launcher cannot tell the cost of an attempt (LaunchPostponed), none is started, and the budget does
        not count as spent.
        """
        self._context.flush_ledger()
        if self.search.state.is_ended:
            return
        self._monitor.poll()
        self._apply_stop_conditions()
        try:
            self._finalizer.finalize()
            self._stop_if_broken()
            if self._fabric.advance():
                self._proposer.propose()
            self._finalizer.begin_trials()
            self._launch()
            self._end_if_done()
        except LaunchPostponed as postponed:
            self._context.log_once.info(str(postponed))
        self._context.callbacks.after_launches()

    def _launch(self) -> None:
        """Launch what is recorded and not launched yet, each once. A job id that cannot be recorded, for example on a
        full disk, is kept until it can. A refusal by the launcher stops the search; anything else is retried."""
        context, root = self._context, self._context.factory.folder.path
        for attempt in context.index.in_flight:
            if attempt.state is not TrialState.SUBMITTED or context.search.state is SearchState.STOPPING:
                continue
            request = context.request(attempt)
            context.callbacks.heartbeat()  # many launches may together outlast the lease
            try:
                if request.key not in self._launched:
                    context.factory.guard.call(
                        str(request.folder.path),
                        partial(request.folder.write_spec, root, request.spec.to_json(), request.require_taken),
                    )
                    self._launched[request.key] = context.launcher.launch(request)
            except LaunchPostponed as postponed:
                context.log_once.info(str(postponed))
                continue
            except LaunchRefused as refusal:
                context.stop(EndReason.SUBMISSION_REJECTED, str(refusal))
                continue
            except OSError as error:  # this folder cannot be written; others may be
                context.log_once.warning(f"retrying: {error}")
                continue
            if (job_id := self._launched[request.key]) is not None:
                context.record(EventKind.ATTEMPT_LAUNCHED, attempt, job_id=job_id)
            del self._launched[request.key]

    def recover(self) -> None:
        """Take over the attempts of an earlier driver, if there was one."""
        self._monitor.adopt()
        if self.search.state is SearchState.CREATED:
            self._context.set_state(SearchState.RUNNING)

    def _apply_stop_conditions(self) -> None:
        if self.search.state is not SearchState.STOPPING:
            if self._context.callbacks.cancel_requested():
                self._context.stop(EndReason.CANCELLED_BY_USER)
            elif wall_time_exceeded(self.search, self._context.limits, self._context.launcher.now()):
                self._context.stop(EndReason.WALL_TIME)
            elif is_idle(self._context.index, self._context.limits, self._context.launcher.now()):
                self._context.stop(EndReason.IDLE, self._monitor.idle_reason())
            else:
                self._cancel_over_budget()
        if self.search.state is SearchState.STOPPING and self._context.index.in_flight:
            self._cancel_in_flight()

    def _cancel_in_flight(self) -> None:
        unreached = self._monitor.cancel(self._context.index.in_flight)
        if unreached:
            self._context.log_once.warning(f"unreachable, retrying: {', '.join(sorted(unreached))}")

    def _cancel_over_budget(self) -> None:
        """Cancel waiting attempts and pilots that the budget no longer covers: a job that Slurm requeued costs more
        than its reservation, and a pilot that ended early may leave too little for the next one."""
        over: list[Attempt] = []
        with suppress(LaunchPostponed):
            over = self._context.attempts_over_budget()
        if over:
            names = ", ".join(f"{a.trial}.{a.attempt}" for a in over)
            self._context.log_once.info(f"budget reached, cancelled while waiting: {names}")
            self._monitor.cancel(over)
        cancel_pilots_over_budget(self._context)

    def _stop_if_broken(self) -> None:
        if self.search.state is not SearchState.RUNNING:
            return
        if (detail := program_change_detail(self._context.index)) is not None:
            self._context.stop(EndReason.PROGRAM_CHANGED, detail)
        elif (excerpt := repeated_failure_excerpt(self._context.index)) is not None:
            self._context.stop(EndReason.SCRIPT_ERROR, excerpt)
        elif (excerpt := unmeasurable_excerpt(self._context.index)) is not None:
            self._context.stop(EndReason.NO_FEASIBLE_LAYOUT, excerpt)

    def _end_if_done(self) -> None:
        reason = None if self._context.index.unended else self._end_reason()
        if reason is None or not self._has_released_pilots(reason):
            return
        if self.search.best_trial is None and reason is not EndReason.CANCELLED_BY_USER:
            detail = self.search.detail or no_room_detail(self._context.index.ranking())
            self._context.set_state(SearchState.FAILED, end_reason_without_value(reason), detail)
        else:
            state = SearchState.CANCELLED if reason is EndReason.CANCELLED_BY_USER else SearchState.COMPLETED
            self._context.set_state(state, reason, self.search.detail)

    def _has_released_pilots(self, reason: EndReason) -> bool:
        """End all pilots. True once each is charged, so that the node-hours of the search are final.

        A search that runs out of its budget may go on with what they return. Otherwise the end reason is recorded
        before, so that the node-hours freed cannot change it.
        """
        is_running = self.search.state is not SearchState.STOPPING
        if is_running and reason is EndReason.BUDGET and may_return_budget(self._context):
            return False
        if not release_pilots(self._context):
            if is_running:
                self._context.stop(reason, self.search.detail)
            return False
        return True

    def _end_reason(self) -> EndReason | None:
        """Reason why nothing more will be tried, None while something will be."""
        if self.search.state is SearchState.STOPPING:
            return self.search.end_reason
        return None if self._proposer.next_repeats() else self._proposer.proposal_end_reason()

    @property
    def _is_drained(self) -> bool:
        """True if an interrupted driver has nothing left in flight. A search that is stopping is driven to its end."""
        is_ending = self.search.state is SearchState.STOPPING
        return self._context.is_interrupted and not (self._context.index.in_flight or is_ending)

    @property
    def _is_over(self) -> bool:
        """True if the search has ended and the ledger has all its events. No later driver would write them."""
        return self.search.state.is_ended and not self._context.event_store.pending
