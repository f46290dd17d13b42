"""Intents: attempts that are recorded before they are launched."""

from __future__ import annotations

import secrets

from orchestrator.search.attempt_factory import next_attempt
from orchestrator.search.context import SearchContext
from orchestrator.search.node_exclusion import nodes_to_avoid, with_nodes_of_earlier_runs, with_slow_nodes
from orchestrator.search.pilot_charges import may_return_budget
from search_spaces.decoding import encode
from trials.ledger.events import EVENT_FIELDS, EventKind
from trials.trial import FailureReason, Trial, TrialKind, TrialState


def create_attempts(context: SearchContext) -> None:
    """Record an attempt for every trial without one; end those that the budget cannot cover.

    A full budget may only have to wait for what attempts and pilots have reserved and do not use.
    """
    for trial in context.index.unended:
        if trial.state is not TrialState.PROPOSED or not context.is_running:
            continue
        if context.can_afford(trial.layout, trial.kind):
            create_attempt(context, trial)
        elif not may_return_budget(context):
            context.end_trial(trial, TrialState.CANCELLED, FailureReason.CANCELLED_BY_SEARCH)


def create_attempt(context: SearchContext, trial: Trial) -> None:
    """Record the trial's next attempt, which the driver launches."""
    index, factory, num_nodes = context.index, context.factory, trial.layout.num_nodes
    limit_s = context.time_limit_s(index, num_nodes, trial.kind)
    avoided: tuple[str, ...] = ()
    if trial.kind is not TrialKind.CHECK:  # a check is of all nodes
        avoided = nodes_to_avoid(trial, index.bad_nodes, index.runs_of(trial.layout), factory.cluster.num_nodes)
        avoided = with_slow_nodes(avoided, trial, context.search.fabric_check)
    if trial.kind is TrialKind.REPEAT:
        runs, num_choosable = index.runs_of(trial.layout), context.launcher.num_choosable_nodes()
        avoided = with_nodes_of_earlier_runs(avoided, trial, runs, num_choosable)
    reserved_s, is_step = context.launcher.longest_s(limit_s), context.launcher.runs_steps
    attempt = next_attempt(trial, secrets.token_hex(16), limit_s, reserved_s, is_step, avoided)
    context.event(EventKind.ATTEMPT_SUBMITTED, **encode(attempt, *EVENT_FIELDS[EventKind.ATTEMPT_SUBMITTED]))
