"""Trials once proposed: their attempts, recorded before they are launched, retries, ends, and the best so far."""

from __future__ import annotations

import secrets

from orchestrator.search.attempt_factory import next_attempt
from orchestrator.search.context import SearchContext
from orchestrator.search.node_exclusion import nodes_to_avoid, with_nodes_of_earlier_runs, with_slow_nodes
from orchestrator.search.pilot_charges import may_return_budget
from search_spaces.decoding import encode
from search_spaces.layouts.settings import described
from trials.analysis.early_stopping import Incumbents, incumbents_of
from trials.attempt_result import may_retry
from trials.failure_policy import policy_of
from trials.files.folders import write_json
from trials.ledger.events import EVENT_FIELDS, EventKind, SearchState
from trials.trial import Attempt, FailureReason, Trial, TrialKind, TrialState


class TrialFinalizer:
    """Begins trials, and retries or ends those whose attempts have ended."""

    def __init__(self, context: SearchContext):
        self._context = context
        self._is_best_recorded = False
        self._recorded_best: Incumbents | bool | None = False  # not None: an earlier driver's file is unknown

    def finalize(self) -> None:
        """Retry or end every trial whose last attempt has ended. When stopping, end those never tried as well."""
        for trial in self._context.index.unended:
            last = trial.last_attempt
            if last is None:
                if self._context.search.state is SearchState.STOPPING:
                    self._end_trial(trial, TrialState.CANCELLED, self._context.cancel_reason)
            elif last.state.is_ended:
                self._retry_or_end(trial, last)
        self._record_best()

    def begin_trials(self) -> None:
        """Record an attempt for every trial without one; end those that the budget cannot cover.

        A full budget may only have to wait for what attempts and pilots have reserved and do not use.
        """
        for trial in self._context.index.unended:
            if trial.state is not TrialState.PROPOSED or not self._context.is_running:
                continue
            if self._context.can_afford(trial.layout, trial.kind):
                self._create_attempt(trial)
            elif not may_return_budget(self._context):
                self._context.end_trial(trial, TrialState.CANCELLED, FailureReason.CANCELLED_BY_SEARCH)

    def _create_attempt(self, trial: Trial) -> None:
        """Record the trial's next attempt, which the driver launches."""
        context, launcher = self._context, self._context.launcher
        limit_s = context.time_limit_s(context.index, trial.layout.num_nodes, trial.kind)
        reserved_s, is_step = launcher.longest_s(limit_s), launcher.runs_steps
        nonce, avoided = secrets.token_hex(16), self._nodes_to_avoid(trial)
        attempt = next_attempt(trial, nonce, limit_s, reserved_s, is_step, avoided)
        context.event(EventKind.ATTEMPT_SUBMITTED, **encode(attempt, *EVENT_FIELDS[EventKind.ATTEMPT_SUBMITTED]))

    def _nodes_to_avoid(self, trial: Trial) -> tuple[str, ...]:
        """Nodes that the trial's next attempt avoids; none for a check, which is of all nodes."""
        if trial.kind is TrialKind.CHECK:
            return ()
        index, num_nodes = self._context.index, self._context.factory.cluster.num_nodes
        runs = index.runs_of(trial.layout)
        avoided = nodes_to_avoid(trial, index.bad_nodes, runs, num_nodes)
        avoided = with_slow_nodes(avoided, trial, self._context.search.fabric_check)
        if trial.kind is not TrialKind.REPEAT:
            return avoided
        return with_nodes_of_earlier_runs(avoided, trial, runs, self._context.launcher.num_choosable_nodes())

    def _retry_or_end(self, trial: Trial, last: Attempt) -> None:
        if policy_of(last.reason).may_be_setting and self._has_failing_setting(trial):
            self._end_trial(trial, last.state, FailureReason.SETTING_FAILURE)
        elif (
            not may_retry(trial, last, self._is_first_baseline_run(trial))
            or (trial.kind is TrialKind.CHECK and len(trial.attempts) > 1)
            or self._context.search.state is SearchState.STOPPING
        ):
            self._end_trial(trial, last.state, last.reason)
        elif self._context.is_running and self._context.can_afford(trial.layout, trial.kind):
            self._create_attempt(trial)
        elif self._context.is_running and not may_return_budget(self._context):
            self._end_trial(trial, last.state, last.reason)

    def _has_failing_setting(self, trial: Trial) -> bool:
        failing = self._context.index.setting_failures.failing_values(trial.layout)
        for name, value in failing.items():
            setting = described(name, value)
            logs = f"parlay logs {self._context.search.search_id} {trial.trial}"
            words = f"{setting}: every attempt with it failed, so it is not tried again; {logs} shows why"
            self._context.log_once.warning(words, key=setting)
        return bool(failing)

    def _is_first_baseline_run(self, trial: Trial) -> bool:
        """True if this is the first measurement of the baseline."""
        return trial.kind is TrialKind.SEARCH and trial.layout.key in self._context.goal.baseline_keys

    def _end_trial(self, trial: Trial, state: TrialState, reason: FailureReason | None) -> None:
        self._is_best_recorded = False
        self._context.end_trial(trial, state, reason)
        self._record_best()

    def _record_best(self) -> None:
        """Record the best layout so far, and rewrite best.json, unless done since the last trial ended.

        An earlier driver may have been killed, or a disk full, just before.
        """
        if self._is_best_recorded:
            return
        ranking, by_nodes = self._context.index.leader(), self._context.index.leaders_by_nodes()
        best = incumbents_of(by_nodes, self._context.search.search_id, self._context.goal.global_batch_size)
        name = None if ranking.best is None else ranking.best.trial
        # Back to None if a repeat of the only one exceeded the memory limit.
        if name != self._context.search.best_trial:
            self._context.event(EventKind.BEST_CHANGED, trial=name)
        if best != self._recorded_best:
            self._write_best(best)
            self._recorded_best = best
        self._is_best_recorded = True

    def _write_best(self, best: Incumbents | None) -> None:
        if best is None:
            self._context.factory.folder.best.unlink(missing_ok=True)
        else:
            write_json(self._context.factory.folder.best, best.to_json())
