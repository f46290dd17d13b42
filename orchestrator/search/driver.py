"""The loop of a search: watch, obey, settle, propose, submit; until there is nothing left to do.

The driver keeps no state of its own. What it does next follows from the search's record alone, so a driver that was
killed anywhere goes on where it stood: every step first writes down what it is about to do.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.launchers.base import Launcher, LaunchPostponed, LaunchRefused, LaunchRequest
from orchestrator.samplers.base import Sampler
from orchestrator.search import finalists
from orchestrator.search import limits as rules
from orchestrator.search.attempts import TrialProgram, cancelled, next_attempt, node_hours_of, node_hours_until_requeue
from orchestrator.search.history import History
from orchestrator.search.limits import Limits
from orchestrator.search.nodes import nodes_to_avoid
from orchestrator.search.standing import Standing
from orchestrator.search.time_limits import time_limit_s
from search_spaces.layout import Layout
from search_spaces.memory_floor import MemoryFloor
from trials.answer import too_full_words
from trials.classify import Ending, Life, Verdict, flag_other_fingerprint, may_retry
from trials.folder import write_json
from trials.ledger.events import EndReason, Event, EventKind, SearchRecord, SearchState
from trials.ranking import Objective
from trials.rival import best_file
from trials.trial import Attempt, FailureReason, Trial, TrialKind, TrialState

_PERHAPS_OUR_OWN_DOING = (None, FailureReason.CANCELLED_BY_SEARCH, FailureReason.CANCELLED_BY_USER)
"""How attempts end that a stopping search cancelled: a driver that came later cannot tell them from others."""

_USUAL_WAITS = (None, "Priority", "Resources", "BeginTime")
"""What jobs wait for all the time; anything else may last for ever, and the user should know."""

_LONG_WAIT_S = 60.0


@dataclass(frozen=True)
class Goal:
    """What the search is after: the objective, the batch whose layouts compete, what is measured first, how much memory
    has to stay free, and what else matters beside the objective."""

    objective: Objective
    global_batch_size: int
    first: Sequence[Layout] = ()
    floor: MemoryFloor | None = None
    others: tuple[Objective, ...] = ()


@dataclass(frozen=True)
class Hooks:
    """What the loop calls besides its work: after every event; for the user's wish to cancel; to keep the lease; to
    say what the user should know; for what is predicted of a layout, None where that is nothing; in every turn, with
    the trials that have not ended and how many more it would begin, for how many of these it may begin now."""

    on_event: Callable[[SearchRecord, Event], None] = lambda search, event: None
    cancel_requested: Callable[[], bool] = lambda: False
    keep_lease: Callable[[], None] = lambda: None
    note: Callable[[str], None] = lambda text: None
    predict: Callable[[Layout], Mapping[str, Any] | None] = lambda layout: None
    may_begin: Callable[[int, int], int] = lambda held, more: more


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
        hooks: Hooks = Hooks(),
    ):
        self._history = history
        self._program = program
        self._sampler = sampler
        self._launcher = launcher
        self._goal = goal
        self._limits = limits
        self._hooks = hooks
        self._standing = Standing(history.search, goal.objective, goal.global_batch_size, goal.floor, goal.others)
        self._interrupted = False
        self._stopped = False
        self._space_exhausted = False
        self._is_best_told = False
        self._best_told: Mapping[str, Any] | None = {}  # an earlier driver's file, which nobody here has read
        self._converged_at: int | None = None
        self._knows_more_at: int | None = None
        self._said: set[str] = set()
        self._waits: dict[str, str] = {}
        self._taken: dict[str, str | None] = {}  # launched, and not written down yet: a disk may be full just then

    @property
    def search(self) -> SearchRecord:
        return self._history.search

    @property
    def is_interrupted(self) -> bool:
        return self._interrupted

    def interrupt(self) -> None:
        """Propose and retry nothing more; `run` returns once what is in flight has ended."""
        self._interrupted = True

    def stop_now(self) -> None:
        """Do nothing more: `run` returns at its next safe point, and what is in flight is left as it is."""
        self._interrupted = self._stopped = True

    def run(self) -> SearchRecord:
        """Go on until the search has ended, or until an interrupt has drained it. Returns the record as it stands.

        A disk that is full or a folder that cannot be reached stops nothing: the turn is tried again, as every step
        may be, for as long as the lease can be kept.
        """
        if not self.search.state.is_ended:
            self.recover()
        while not (self._is_over or self._stopped):
            if self._interrupted and self._now.in_flight:
                self._say_once("nothing more is tried; what runs may finish (ctrl-C again stops now)")
            try:
                self._hooks.keep_lease()
                self.turn()
            except OSError as error:
                self._say_once(f"trying again: {error}")
            if self._is_over or (self._interrupted and not self._now.in_flight):
                break
            self._launcher.wait(self._launcher.turn_s)
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
            self._hooks.keep_lease()
            self.turn()
        return self.search

    def turn(self) -> None:
        """Everything that is to be done now, once. While nobody can tell what an attempt may cost, none is begun, and
        the budget is not taken for spent."""
        self._tell_what_was_refused()
        if self.search.state.is_ended:
            return
        self._watch()
        self._obey()
        try:
            self._settle()
            self._stop_if_broken()
            self._propose()
            self._submit()
            self._end_if_done()
        except LaunchPostponed as postponed:
            self._say_once(str(postponed))

    # -- taking over from an earlier driver

    def recover(self) -> None:
        """Ask the launcher once about everything in flight: what it never accepted is launched again by `_submit`."""
        attempts = {self._key(a): a for a in self._now.in_flight}
        adopted = self._launcher.adopt({key: self._request(a) for key, a in attempts.items()})
        for key, attempt in attempts.items():
            if key in adopted and attempt.state is TrialState.SUBMITTED:
                self._record(EventKind.ATTEMPT_LAUNCHED, attempt, job_id=adopted[key])
            elif key not in adopted and attempt.state is not TrialState.SUBMITTED:
                lost = Ending(Life.ENDED, reason=FailureReason.LOST, detail="no trace of it after the driver's restart")
                self._end(attempt, lost)
        if self.search.state is SearchState.CREATED:
            self._set_state(SearchState.RUNNING)

    # -- the steps of the loop

    def _watch(self) -> None:
        launched = {self._key(a): a for a in self._now.in_flight if a.state is not TrialState.SUBMITTED}
        if not launched:
            return
        for key, ending in self._launcher.poll(launched).items():
            self._advance(launched[key], ending)

    def _advance(self, attempt: Attempt, ending: Ending) -> None:
        if ending.life is Life.UNKNOWN:
            if attempt.unknown_since is None:
                self._record(EventKind.ATTEMPT_UNKNOWN, attempt, unknown_since=self._launcher.now())
            if ending.detail:
                self._say_once(f"{attempt.trial}.{attempt.attempt} is out of sight: {ending.detail}")
            return
        if ending.restart > attempt.restart:
            attempt = self._requeued(attempt, ending)
        if ending.life is Life.ENDED:
            self._end(self._renamed(attempt, ending), ending)
            return
        if attempt.unknown_since is not None:
            self._record(EventKind.ATTEMPT_UNKNOWN, attempt, unknown_since=None)
        if ending.started or ending.detail is None:
            self._waits.pop(f"{attempt.trial}.{attempt.attempt}", None)
        else:
            self._waits[f"{attempt.trial}.{attempt.attempt}"] = ending.detail
        self._renamed(attempt, ending)
        if ending.started and attempt.state is not TrialState.RUNNING:
            started_at = ending.started_at or self._launcher.now()
            self._record(EventKind.ATTEMPT_RUNNING, attempt, started_at=started_at, nodes=list(ending.nodes))
        elif ending.detail not in _USUAL_WAITS and self._waits_long(attempt):
            self._say_once(f"{attempt.trial}.{attempt.attempt} waits: {ending.detail}")

    def _renamed(self, attempt: Attempt, ending: Ending) -> Attempt:
        """The attempt under the id that its launcher knows now, as of a step that has its nodes; one that runs keeps
        its own."""
        if ending.job_id in (None, attempt.job_id) or attempt.state is TrialState.RUNNING:
            return attempt
        self._record(EventKind.ATTEMPT_LAUNCHED, attempt, job_id=ending.job_id)
        return self._trial(attempt).last_attempt or attempt

    def _waits_long(self, attempt: Attempt) -> bool:
        since = attempt.submitted_at
        return since is not None and self._launcher.now() - since > _LONG_WAIT_S

    def _requeued(self, attempt: Attempt, ending: Ending) -> Attempt:
        """Its job was put back into the queue: what it used so far is booked, and it goes on as its next restart."""
        node_hours = node_hours_until_requeue(attempt, ending, self._launcher.now())
        self._record(EventKind.ATTEMPT_REQUEUED, attempt, restart=ending.restart, node_hours=node_hours)
        return self._trial(attempt).last_attempt or attempt

    def _end(self, attempt: Attempt, ending: Ending) -> None:
        if self.search.state is SearchState.STOPPING and ending.reason in _PERHAPS_OUR_OWN_DOING:
            ending = cancelled(ending, self._cancel_reason())
        try:
            verdict = self._program.verdict(self._trial(attempt), attempt, ending, self._launcher.now())
        except OSError as error:
            self._say_once(f"{attempt.trial}.{attempt.attempt} has ended, and its folder cannot be read: {error}")
            self._advance(attempt, Ending(Life.UNKNOWN))
            return
        verdict = self._flagged(verdict)
        self._record(EventKind.ATTEMPT_ENDED, attempt, **self._ending_data(attempt, ending, verdict))

    def _flagged(self, verdict: Verdict) -> Verdict:
        """A measurement with other software or hardware than the search's first is marked: it is not comparable."""
        first = self._now.first_measured
        outcome = None if first is None or first.last_attempt is None else first.last_attempt.outcome
        return verdict if outcome is None else flag_other_fingerprint(verdict, outcome.fingerprint)

    def _ending_data(self, attempt: Attempt, ending: Ending, verdict: Verdict) -> dict:
        now = self._launcher.now()
        return {
            "state": verdict.state.value,
            "reason": verdict.reason,
            "outcome": None if verdict.outcome is None else verdict.outcome.to_json(),
            "excerpt": verdict.excerpt,
            "nodes": list(ending.nodes),
            "started_at": ending.started_at,
            "ended_at": ending.ended_at or now,
            "node_hours": node_hours_of(attempt, ending, now),
        }

    def _settle(self) -> None:
        """Trials whose last attempt has ended are tried again or ended; when stopping, those never tried end too."""
        for trial in self._now.unended:
            last = trial.last_attempt
            if last is None:
                if self.search.state is SearchState.STOPPING:
                    self._end_trial(trial, TrialState.CANCELLED, self._cancel_reason())
            elif last.state.is_ended:
                self._retry_or_end(trial, last)
        self._tell_best()

    def _retry_or_end(self, trial: Trial, last: Attempt) -> None:
        if not may_retry(trial, last) or self.search.state is SearchState.STOPPING:
            self._end_trial(trial, last.state, last.reason)
        elif self._goes_on and self._has_budget(last.num_nodes):
            self._intend(trial)
        elif self._goes_on and not self._now.in_flight:
            self._end_trial(trial, last.state, last.reason)

    def _end_trial(self, trial: Trial, state: TrialState, reason: FailureReason | None) -> None:
        self._is_best_told = False
        self._history_event(EventKind.TRIAL_ENDED, trial=trial.trial, state=state.value, reason=reason)
        self._tell_best()

    def _tell_best(self) -> None:
        """Record which layout is the best so far, and keep best.json true to the fastest, unless that was done since
        the last trial ended: an earlier driver may have been killed, or a disk full, just before."""
        if self._is_best_told:
            return
        ranking, by_nodes = self._now.leader(), self._now.leaders_by_nodes()
        told = best_file(ranking, by_nodes, self.search.search_id, self._goal.global_batch_size)
        name = None if ranking.best is None else ranking.best.trial
        if name != self.search.best_trial:  # to none where a repeat of the only one took more memory than it may
            self._history_event(EventKind.BEST_CHANGED, trial=name)
        if told != self._best_told:
            self._write_best(told)
            self._best_told = told
        self._is_best_told = True

    def _write_best(self, told: Mapping[str, Any] | None) -> None:
        if told is None:
            self._program.folder.best.unlink(missing_ok=True)
        else:
            write_json(self._program.folder.best, told)

    def _obey(self) -> None:
        if self.search.state is not SearchState.STOPPING:
            if self._hooks.cancel_requested():
                self._stop(EndReason.CANCELLED_BY_USER)
            elif rules.wall_time_is_over(self.search, self._limits, self._launcher.now()):
                self._stop(EndReason.WALL_TIME)
            elif rules.is_idle(self._now, self._limits, self._launcher.now()):
                self._stop(EndReason.IDLE, self._why_idle())
            else:
                self._keep_within_budget()
        if self.search.state is SearchState.STOPPING and self._now.in_flight:
            self._cancel_in_flight()

    def _why_idle(self) -> str:
        words = f"nothing has started or ended for {self._limits.idle_limit_s:g} s"
        waits = sorted({f"{name} waits: {what}" for name, what in self._waits.items()})
        return "; ".join([words, *waits])

    def _cancel_in_flight(self) -> None:
        unreached = self._cancel(self._now.in_flight)
        if unreached:
            self._say_once(f"cannot be reached, tried again: {', '.join(sorted(unreached))}")

    def _cancel(self, attempts: Sequence[Attempt]) -> set[str]:
        """The keys of those that may still run; those that were never launched have ended with this.

        Of one whose launch was in doubt the launcher may know only now that it had a job, and what that used.
        """
        known = {self._key(attempt): attempt for attempt in attempts}
        unreached = self._launcher.cancel(known)
        ended = [key for key, a in known.items() if a.state is TrialState.SUBMITTED and key not in unreached]
        for key, ending in self._launcher.poll(ended).items() if ended else ():
            if ending.life is Life.ENDED and ending.job_id is not None:
                self._record(EventKind.ATTEMPT_LAUNCHED, known[key], job_id=ending.job_id)
                self._end(self._trial(known[key]).last_attempt or known[key], ending)
            else:
                reason, detail = FailureReason.CANCELLED_BY_SEARCH, "cancelled before it was launched"
                self._end(known[key], Ending(Life.ENDED, reason=reason, detail=detail))
        return unreached

    def _keep_within_budget(self) -> None:
        """Jobs that others put back into the queue cost more than was reserved; what still waits pays for it."""
        over = rules.waiting_over_budget(self._now, self._limits)
        if over:
            self._say_once(f"the budget is reached: {', '.join(f'{a.trial}.{a.attempt}' for a in over)} cancelled")
            self._cancel(over)

    def _stop_if_broken(self) -> None:
        if self.search.state is SearchState.RUNNING and (excerpt := rules.broken_script(self._now)) is not None:
            self._stop(EndReason.SCRIPT_ERROR, excerpt)

    def _propose(self) -> None:
        """Fill the free slots; nothing is proposed while a trial still waits for room in the budget.

        A suspect run is measured again at once; repeats of the finalists follow once no more layouts are proposed and
        all that were have ended.
        """
        unended = self._now.unended
        held, free = len(unended), self._limits.parallel_trials - len(self._now.in_flight)
        if not self._goes_on or free <= 0 or any(trial.state is TrialState.PROPOSED for trial in unended):
            self._hooks.may_begin(held, 0)
            return
        repeats = self._next_repeats()[:free]
        granted = self._hooks.may_begin(held, len(repeats) + self._most_layouts(free - len(repeats)))
        # The sampler is asked for no more than may begin; where nothing is in flight at least, once, whether it knows
        # more: a search may wait long for its share.
        least = 0 if held or self._knows_more_at == self.search.last_seq else 1
        layouts = self._next_layouts(max(granted - len(repeats), least))
        if layouts:
            self._knows_more_at = self.search.last_seq
        if not repeats and not layouts:
            repeats = self._next_repeats()[:free]  # due as soon as the sampler has said that it knows no more
        for layout in repeats[:granted]:
            self._propose_trial(layout, TrialKind.FINALIST)
        for layout in layouts[: max(granted - len(repeats), 0)]:
            self._propose_trial(layout, TrialKind.SEARCH)

    def _propose_trial(self, layout: Layout, kind: TrialKind) -> None:
        name = f"t{len(self.search.trials) + 1:04d}"
        self._history_event(
            EventKind.TRIAL_PROPOSED,
            trial=name,
            layout=layout.to_json(),
            kind=kind.value,
            prediction=self._hooks.predict(layout),
        )

    def _next_layouts(self, free: int) -> list[Layout]:
        """What the user runs today comes first, then what the sampler asks for."""
        if (count := self._most_layouts(free)) <= 0:
            return []
        now = self._now
        first = [layout for layout in self._goal.first if not now.was_tried(layout)][:count]
        if first:
            return first
        known = now.told()
        if self._sampler.has_converged(known):
            self._converged_at = self.search.last_seq
            return []
        layouts = _new_layouts(self._sampler.ask(count, known), now)
        self._space_exhausted = not layouts
        return layouts

    def _most_layouts(self, free: int) -> int:
        """How many more layouts may be proposed now, as far as that is known without asking the sampler."""
        if self._why_sampler_ended is not None or self._has_ended_proposing or not self._has_budget():
            return 0
        return max(0, min(free, rules.layouts_left(self._now.num_layouts, self._limits)))

    @property
    def _why_sampler_ended(self) -> EndReason | None:
        """Why the sampler knows no more layouts, if it said so; that it has converged, of the record as it is now."""
        if self._converged_at == self.search.last_seq:
            return EndReason.CONVERGED
        return EndReason.SPACE_EXHAUSTED if self._space_exhausted else None

    def _next_repeats(self) -> list[Layout]:
        """Second looks at suspect runs; else the finalists' repeats that are due, none while a layout of the search
        itself is being measured."""
        now = self._now
        if again := finalists.second_looks_due(now, self._can_pay_for):
            return again
        if now.searched.unended or self._why_no_more_layouts() is None:
            return []
        today = {layout.key for layout in self._goal.first}
        chosen = finalists.choose(now, self._limits.finalists, today)
        return finalists.due(now, chosen, self._limits.finalist_repeats, self._can_pay_for)

    def _submit(self) -> None:
        """Write down the intent for every trial without an attempt, then launch every intent that waits."""
        for trial in self._now.unended:
            if trial.state is TrialState.PROPOSED and self._goes_on:
                self._intend_within_budget(trial)
        for attempt in self._now.in_flight:
            if attempt.state is TrialState.SUBMITTED and self.search.state is not SearchState.STOPPING:
                self._hooks.keep_lease()  # many launches may take longer together than a lease lasts
                self._launch(attempt)

    def _intend_within_budget(self, trial: Trial) -> None:
        """What is in flight gives back what it reserved and did not use, so a full budget may only have to wait."""
        if self._has_budget(trial.layout.num_nodes):
            self._intend(trial)
        elif not self._now.in_flight:
            self._end_trial(trial, TrialState.CANCELLED, FailureReason.CANCELLED_BY_SEARCH)

    def _intend(self, trial: Trial) -> None:
        limit_s = time_limit_s(self._now, self._program.time_limit_s, trial.layout.num_nodes)
        reserved_s = self._launcher.longest_s(limit_s, trial.layout.num_nodes)
        now, num_nodes = self._now, self._program.cluster.num_nodes
        avoided = nodes_to_avoid(trial, now.bad_nodes, now.runs_of(trial.layout), num_nodes)
        attempt = next_attempt(trial, secrets.token_hex(16), limit_s, reserved_s, avoided)
        self._history_event(
            EventKind.ATTEMPT_SUBMITTED,
            trial=attempt.trial,
            attempt=attempt.attempt,
            nonce=attempt.nonce,
            num_nodes=attempt.num_nodes,
            time_limit_s=attempt.time_limit_s,
            reserved_s=attempt.reserved_s,
            exclude=list(attempt.exclude),
        )

    def _launch(self, attempt: Attempt) -> None:
        key = self._key(attempt)
        try:
            if key not in self._taken:
                self._taken[key] = self._launcher.launch(self._program.prepared(self._request(attempt)))
        except LaunchPostponed as postponed:
            self._say_once(str(postponed))
            return
        except LaunchRefused as refusal:
            self._stop(EndReason.SITE_REFUSED, str(refusal))
            return
        except OSError as error:  # its folder cannot be written now; others' may
            self._say_once(f"trying again: {error}")
            return
        if (job_id := self._taken[key]) is not None:
            self._record(EventKind.ATTEMPT_LAUNCHED, attempt, job_id=job_id)
        del self._taken[key]

    def _end_if_done(self) -> None:
        reason = None if self._now.unended else self._end_reason()
        if reason is None:
            return
        if self.search.best_trial is None and reason is not EndReason.CANCELLED_BY_USER:
            detail = self.search.detail or too_full_words(self._now.ranking())
            self._set_state(SearchState.FAILED, rules.end_reason_without_value(reason), detail)
        else:
            state = SearchState.CANCELLED if reason is EndReason.CANCELLED_BY_USER else SearchState.COMPLETED
            self._set_state(state, reason, self.search.detail)

    def _end_reason(self) -> EndReason | None:
        """Why nothing more will be tried, or None while something will be."""
        if self.search.state is SearchState.STOPPING:
            return self.search.end_reason
        return None if self._next_repeats() else self._why_no_more_layouts()

    def _why_no_more_layouts(self) -> EndReason | None:
        """Why no more layouts will be proposed, whatever their repeats cost; None while some may be."""
        searched = self._now.searched
        if searched.is_cut_short or not self._fits_budget(searched):
            return EndReason.BUDGET
        if rules.layouts_left(searched.num_layouts, self._limits) <= 0:
            return EndReason.MAX_TRIALS
        if self._why_sampler_ended is not None:
            return self._why_sampler_ended
        if not self._has_ended_proposing:
            return None
        has_converged = self._sampler.has_converged(searched.told())
        return EndReason.CONVERGED if has_converged else EndReason.SPACE_EXHAUSTED

    # -- small helpers

    @property
    def _is_over(self) -> bool:
        """Whether the search has ended, and the ledger, whose disk may be full, knows that: no other driver comes that
        would tell it."""
        return self.search.state.is_ended and not self._history.untold

    def _tell_what_was_refused(self) -> None:
        """What a ledger without room was not told, and whoever is told of events after it."""
        refused = self._history.untold
        self._history.tell_ledger()
        for event in refused:
            self._hooks.on_event(self.search, event)

    def _say_once(self, words: str) -> None:
        if words not in self._said:
            self._said.add(words)
            self._hooks.note(words)

    @property
    def _now(self) -> Standing:
        """How the search stands, after the last event."""
        self._standing.follow(self.search)
        return self._standing

    @property
    def _goes_on(self) -> bool:
        return not self._interrupted and self.search.state is SearchState.RUNNING

    @property
    def _has_ended_proposing(self) -> bool:
        """Whether the record itself says that no more layouts are proposed, whatever this driver knows of the space."""
        searched = self._now.searched
        return searched is not self._now or searched.is_cut_short

    def _has_budget(self, num_nodes: int = 1) -> bool:
        return self._fits_budget(self._now, num_nodes)

    def _can_pay_for(self, layout: Layout) -> bool:
        return self._has_budget(layout.num_nodes)

    def _fits_budget(self, standing: Standing, num_nodes: int = 1) -> bool:
        if self._limits.budget_node_hours is None:
            return True
        limit_s = time_limit_s(standing, self._program.time_limit_s, num_nodes)
        return rules.fits_budget(standing, self._limits, num_nodes, self._launcher.longest_s(limit_s, num_nodes))

    def _cancel_reason(self) -> FailureReason:
        by_user = self.search.end_reason is EndReason.CANCELLED_BY_USER
        return FailureReason.CANCELLED_BY_USER if by_user else FailureReason.CANCELLED_BY_SEARCH

    def _trial(self, attempt: Attempt) -> Trial:
        return self.search.trial(attempt.trial)

    def _key(self, attempt: Attempt) -> str:
        return f"{self.search.search_id}.{attempt.trial}.{attempt.attempt}"

    def _request(self, attempt: Attempt) -> LaunchRequest:
        return self._program.request(self._trial(attempt), attempt)

    def _stop(self, reason: EndReason, detail: str | None = None) -> None:
        self._set_state(SearchState.STOPPING, reason, detail)

    def _set_state(self, state: SearchState, reason: EndReason | None = None, detail: str | None = None) -> None:
        self._history_event(EventKind.SEARCH_STATE, state=state.value, end_reason=reason, detail=detail)

    def _record(self, kind: EventKind, attempt: Attempt, /, **data) -> None:
        self._history_event(kind, trial=attempt.trial, attempt=attempt.attempt, **data)

    def _history_event(self, kind: EventKind, /, **data) -> None:
        event = self._history.record(kind, **data)
        self._hooks.on_event(self.search, event)


def _new_layouts(layouts: Sequence[Layout], standing: Standing) -> list[Layout]:
    """Those that were not tried yet, each once: a sampler that repeats itself has run out."""
    return list({layout.key: layout for layout in layouts if not standing.was_tried(layout)}.values())
