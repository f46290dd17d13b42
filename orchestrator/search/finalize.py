"""Finalization of trials: retries, ends, and the best layout so far."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from orchestrator.search.attempt_factory import next_attempt
from orchestrator.search.context import SearchContext
from orchestrator.search.node_exclusion import nodes_to_avoid
from orchestrator.search.stopping import time_limit_s
from trials.analysis.early_stopping import best_file
from trials.attempt_result import may_retry
from trials.files.folders import write_json
from trials.ledger.events import INTENT, EventKind, SearchState
from trials.trial import Attempt, FailureReason, Trial, TrialKind, TrialState
from trials.trial_json import attempt_json


class TrialFinalizer:
    """Retries or ends trials without an attempt in flight, and creates attempts for the submitter."""

    def __init__(self, context: SearchContext):
        self._context = context
        self._is_best_recorded = False
        self._recorded_best: Mapping[str, Any] | None = {}  # not None: an earlier driver's file is unknown

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

    def create_attempts(self) -> None:
        """Record an attempt for every trial without one, as far as the budget allows."""
        for trial in self._context.index.unended:
            if trial.state is TrialState.PROPOSED and self._context.is_running:
                self._create_attempt_if_affordable(trial)

    def _retry_or_end(self, trial: Trial, last: Attempt) -> None:
        if (
            not may_retry(trial, last, self._is_first_baseline_run(trial))
            or self._context.search.state is SearchState.STOPPING
        ):
            self._end_trial(trial, last.state, last.reason)
        elif self._context.is_running and self._context.has_budget(last.num_nodes):
            self._create_attempt(trial)
        elif self._context.is_running and not self._context.index.in_flight:
            self._end_trial(trial, last.state, last.reason)

    def _is_first_baseline_run(self, trial: Trial) -> bool:
        """True if this is the first measurement of the baseline."""
        return trial.kind is TrialKind.SEARCH and trial.layout.key in self._context.goal.baseline_keys

    def _create_attempt_if_affordable(self, trial: Trial) -> None:
        """Create an attempt, or end the trial if the budget cannot cover it.

        Attempts in flight release what they reserved and did not use, so a full budget may only have to wait.
        """
        if self._context.has_budget(trial.layout.num_nodes):
            self._create_attempt(trial)
        elif not self._context.index.in_flight:
            self._end_trial(trial, TrialState.CANCELLED, FailureReason.CANCELLED_BY_SEARCH)

    def _create_attempt(self, trial: Trial) -> None:
        limit_s = time_limit_s(self._context.index, self._context.factory.time_limit_s, trial.layout.num_nodes)
        reserved_s = self._context.launcher.longest_s(limit_s, trial.layout.num_nodes)
        index, num_nodes = self._context.index, self._context.factory.cluster.num_nodes
        avoided = nodes_to_avoid(trial, index.bad_nodes, index.runs_of(trial.layout), num_nodes)
        attempt = next_attempt(trial, secrets.token_hex(16), limit_s, reserved_s, avoided)
        self._context.event(EventKind.ATTEMPT_SUBMITTED, **attempt_json(attempt, *INTENT))

    def _end_trial(self, trial: Trial, state: TrialState, reason: FailureReason | None) -> None:
        self._is_best_recorded = False
        self._context.event(EventKind.TRIAL_ENDED, trial=trial.trial, state=state.value, reason=reason)
        self._record_best()

    def _record_best(self) -> None:
        """Record the best layout so far, and rewrite best.json, unless done since the last trial ended.

        An earlier driver may have been killed, or a disk full, just before.
        """
        if self._is_best_recorded:
            return
        ranking, by_nodes = self._context.index.leader(), self._context.index.leaders_by_nodes()
        best = best_file(ranking, by_nodes, self._context.search.search_id, self._context.goal.global_batch_size)
        name = None if ranking.best is None else ranking.best.trial
        # Back to None if a repeat of the only one exceeded the memory limit.
        if name != self._context.search.best_trial:
            self._context.event(EventKind.BEST_CHANGED, trial=name)
        if best != self._recorded_best:
            self._write_best(best)
            self._recorded_best = best
        self._is_best_recorded = True

    def _write_best(self, best: Mapping[str, Any] | None) -> None:
        if best is None:
            self._context.factory.folder.best.unlink(missing_ok=True)
        else:
            write_json(self._context.factory.folder.best, best)
