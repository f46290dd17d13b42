"""The loop of a search: watch, obey, settle, propose, launch; until there is nothing left to do.

The driver keeps no state of its own. What it does next follows from the search's record alone, so a driver that was
killed anywhere goes on where it stood: every step first writes down what it is about to do.
"""

from __future__ import annotations

from orchestrator.launchers.base import Launcher, LaunchPostponed
from orchestrator.samplers.base import Sampler
from orchestrator.search import stopping as rules
from orchestrator.search.context import NO_HOOKS, Course, Goal, Hooks
from orchestrator.search.event_store import History
from orchestrator.search.launch import Launching
from orchestrator.search.monitor import Watching
from orchestrator.search.propose import Proposing
from orchestrator.search.settle import Settling
from orchestrator.search.stopping import Limits
from orchestrator.search.trial_program import TrialProgram
from trials.analysis.best_layout import too_full_words
from trials.ledger.events import EndReason, SearchRecord, SearchState


class Driver:
    """Runs one search to its end. One thread; `interrupt` and `stop_now` may be called from a signal handler."""

    def __init__(
        self,
        history: History,
        program: TrialProgram,
        sampler: Sampler,
        launcher: Launcher,
        goal: Goal,
        limits: Limits,
        hooks: Hooks = NO_HOOKS,
    ):
        self._course = Course(history, program, launcher, goal, limits, hooks)
        self._watching = Watching(self._course)
        self._settling = Settling(self._course)
        self._proposing = Proposing(self._course, sampler)
        self._launching = Launching(self._course)
        self._stopped = False

    @property
    def search(self) -> SearchRecord:
        return self._course.search

    @property
    def is_interrupted(self) -> bool:
        return self._course.is_interrupted

    def interrupt(self) -> None:
        """Propose and retry nothing more; `run` returns once what is in flight has ended."""
        self._course.is_interrupted = True

    def stop_now(self) -> None:
        """Do nothing more: `run` returns at its next safe point, and what is in flight is left as it is."""
        self._course.is_interrupted = self._stopped = True

    def run(self) -> SearchRecord:
        """Go on until the search has ended, or until an interrupt has drained it. Returns the record as it stands.

        A disk that is full or a folder that cannot be reached stops nothing: the turn is tried again, as every step
        may be, for as long as the lease can be kept.
        """
        if not self.search.state.is_ended:
            self.recover()
        while not (self._is_over or self._stopped):
            if self._course.is_interrupted and self._course.now.in_flight:
                self._course.say_once("nothing more is tried; what runs may finish (ctrl-C again stops now)")
            try:
                self._course.hooks.keep_lease()
                self.turn()
            except OSError as error:
                self._course.say_once(f"trying again: {error}")
            if self._is_over or self._is_drained:
                break
            self._course.launcher.wait(self._course.launcher.turn_s)
        return self.search

    def tick(self) -> SearchRecord:
        """Do what can be done without waiting, and leave the rest to the next driver: turns until one changes nothing.

        Returns the record as it stands. OSError for a disk that is full or a folder that cannot be reached.
        """
        if not self.search.state.is_ended:
            self.recover()
        last_seq = -1
        while not (self.search.state.is_ended or self._stopped) and self.search.last_seq != last_seq:
            last_seq = self.search.last_seq
            self._course.hooks.keep_lease()
            self.turn()
        return self.search

    def turn(self) -> None:
        """Everything that is to be done now, once. While nobody can tell what an attempt may cost, none is begun, and
        the budget is not taken for spent."""
        self._course.tell_what_was_refused()
        if self.search.state.is_ended:
            return
        self._watching.watch()
        self._obey()
        try:
            self._settling.settle()
            self._stop_if_broken()
            self._proposing.propose()
            self._settling.intend()
            self._launching.launch()
            self._end_if_done()
        except LaunchPostponed as postponed:
            self._course.say_once(str(postponed))

    def recover(self) -> None:
        """Take over from an earlier driver; nothing is lost where there was none."""
        self._watching.adopt()
        if self.search.state is SearchState.CREATED:
            self._course.set_state(SearchState.RUNNING)

    def _obey(self) -> None:
        if self.search.state is not SearchState.STOPPING:
            if self._course.hooks.cancel_requested():
                self._course.stop(EndReason.CANCELLED_BY_USER)
            elif rules.wall_time_is_over(self.search, self._course.limits, self._course.launcher.now()):
                self._course.stop(EndReason.WALL_TIME)
            elif rules.is_idle(self._course.now, self._course.limits, self._course.launcher.now()):
                self._course.stop(EndReason.IDLE, self._watching.idle_reason())
            else:
                self._keep_within_budget()
        if self.search.state is SearchState.STOPPING and self._course.now.in_flight:
            self._cancel_in_flight()

    def _cancel_in_flight(self) -> None:
        unreached = self._watching.cancel(self._course.now.in_flight)
        if unreached:
            self._course.say_once(f"cannot be reached, tried again: {', '.join(sorted(unreached))}")

    def _keep_within_budget(self) -> None:
        """Jobs that others put back into the queue cost more than was reserved; what still waits pays for it."""
        over = rules.waiting_over_budget(self._course.now, self._course.limits)
        if over:
            names = ", ".join(f"{a.trial}.{a.attempt}" for a in over)
            self._course.say_once(f"the budget is reached: {names} cancelled")
            self._watching.cancel(over)

    def _stop_if_broken(self) -> None:
        if self.search.state is SearchState.RUNNING and (excerpt := rules.broken_script(self._course.now)) is not None:
            self._course.stop(EndReason.SCRIPT_ERROR, excerpt)

    def _end_if_done(self) -> None:
        reason = None if self._course.now.unended else self._end_reason()
        if reason is None or not self._has_given_back(reason):
            return
        if self.search.best_trial is None and reason is not EndReason.CANCELLED_BY_USER:
            detail = self.search.detail or too_full_words(self._course.now.ranking())
            self._course.set_state(SearchState.FAILED, rules.end_reason_without_value(reason), detail)
        else:
            state = SearchState.CANCELLED if reason is EndReason.CANCELLED_BY_USER else SearchState.COMPLETED
            self._course.set_state(state, reason, self.search.detail)

    def _has_given_back(self, reason: EndReason) -> bool:
        """Whether no pilot holds nodes any more, so that it is known what the search took; why it ends stands by then,
        whatever of the budget that leaves."""
        if not self._course.launcher.give_back():
            if self.search.state is not SearchState.STOPPING:
                self._course.stop(reason, self.search.detail)
            return False
        self._watching.book_pilots()
        return True

    def _end_reason(self) -> EndReason | None:
        """Why nothing more will be tried, or None while something will be."""
        if self.search.state is SearchState.STOPPING:
            return self.search.end_reason
        return None if self._proposing.next_repeats() else self._proposing.proposal_end_reason()

    @property
    def _is_drained(self) -> bool:
        """Whether an interrupt has nothing more to wait for; a search that is ending has its end."""
        is_ending = self.search.state is SearchState.STOPPING
        return self._course.is_interrupted and not (self._course.now.in_flight or is_ending)

    @property
    def _is_over(self) -> bool:
        """Whether the search has ended, and the ledger, whose disk may be full, knows that: no other driver comes that
        would tell it."""
        return self.search.state.is_ended and not self._course.history.untold
