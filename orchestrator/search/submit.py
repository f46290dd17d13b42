"""Submission of attempts: each is recorded as an intent, then launched once."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial

from orchestrator.launchers.base import LaunchPostponed, LaunchRefused, LaunchRequest
from orchestrator.search.attempt_factory import next_attempt
from orchestrator.search.context import SearchContext
from orchestrator.search.node_exclusion import nodes_to_avoid, with_nodes_of_earlier_runs, with_slow_nodes
from orchestrator.search.stopping import time_limit_s
from search_spaces.decoding import encode
from trials.ledger.events import EVENT_FIELDS, EndReason, EventKind, SearchState
from trials.trial import Attempt, FailureReason, Trial, TrialKind, TrialState


class AttemptSubmitter:
    """Creates attempts, passes each to the launcher once and records its job id, which is kept until then: the disk
    may be full."""

    def __init__(self, context: SearchContext):
        self._context = context
        self._launched: dict[str, str | None] = {}

    def create_attempts(self) -> None:
        """Record an attempt for every trial without one; end those that the budget cannot cover.

        Attempts in flight release what they reserved and did not use, so a full budget may only have to wait.
        """
        for trial in self._context.index.unended:
            if trial.state is not TrialState.PROPOSED or not self._context.is_running:
                continue
            if self._context.can_afford(trial.layout):
                create_attempt(self._context, trial)
            elif not self._context.index.in_flight:
                self._context.end_trial(trial, TrialState.CANCELLED, FailureReason.CANCELLED_BY_SEARCH)

    def submit(self) -> None:
        """Launch every attempt that is recorded as submitted."""
        for attempt in self._context.index.in_flight:
            if attempt.state is TrialState.SUBMITTED and self._context.search.state is not SearchState.STOPPING:
                self.launch(self._context.request(attempt), partial(self._record_job_id, attempt))

    def launch(self, request: LaunchRequest, record: Callable[[str], object]) -> None:
        """Launch the request and `record` its job id. What can be done later is left to the next call; a refusal by the
        launcher stops the search."""
        context = self._context
        context.callbacks.heartbeat()  # many launches may together outlast the lease
        try:
            if request.key not in self._launched:
                context.factory.guard.call(
                    str(request.folder.path), partial(request.write_spec, context.factory.folder.path)
                )
                self._launched[request.key] = context.launcher.launch(request)
        except LaunchPostponed as postponed:
            context.log_once.info(str(postponed))
            return
        except LaunchRefused as refusal:
            context.stop(EndReason.SUBMISSION_REJECTED, str(refusal))
            return
        except OSError as error:  # this folder cannot be written; others may be
            context.log_once.warning(f"retrying: {error}")
            return
        if (job_id := self._launched[request.key]) is not None:
            record(job_id)
        del self._launched[request.key]

    def _record_job_id(self, attempt: Attempt, job_id: str) -> None:
        self._context.record(EventKind.ATTEMPT_LAUNCHED, attempt, job_id=job_id)


def create_attempt(context: SearchContext, trial: Trial) -> None:
    """Record the trial's next attempt, for the submitter to launch."""
    index, factory, num_nodes = context.index, context.factory, trial.layout.num_nodes
    limit_s = time_limit_s(index, factory.time_limit_s, num_nodes)
    reserved_s = context.launcher.longest_s(limit_s, num_nodes)
    avoided = nodes_to_avoid(trial, index.bad_nodes, index.runs_of(trial.layout), factory.cluster.num_nodes)
    avoided = with_slow_nodes(avoided, trial, context.search.fabric_check)
    if trial.kind is TrialKind.REPEAT:
        runs, num_choosable = index.runs_of(trial.layout), context.launcher.num_choosable_nodes()
        avoided = with_nodes_of_earlier_runs(avoided, trial, runs, num_choosable)
    attempt = next_attempt(trial, secrets.token_hex(16), limit_s, reserved_s, avoided)
    context.event(EventKind.ATTEMPT_SUBMITTED, **encode(attempt, *EVENT_FIELDS[EventKind.ATTEMPT_SUBMITTED]))
