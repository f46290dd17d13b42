"""Pilots in the search's record: each is charged once, when its end is known; the rest of its reservation returns."""

from __future__ import annotations

from orchestrator.search.context import SearchContext
from orchestrator.search.node_hours import billed_hours_of, pilot_node_hours
from orchestrator.search.stopping import TOLERANCE_NODE_HOURS, node_hours_over_budget
from trials.attempt_result import LaunchStatus
from trials.ledger.events import EventKind, PilotUsage


def charge_ended_pilots(context: SearchContext) -> None:
    """Charge every pilot whose end is known."""
    if not (pilots := context.search.open_pilots):
        return
    ended = context.launcher.ended_pilots()
    for name in [name for name in pilots if name in ended]:
        _charge(context, name, pilots[name], ended[name])


def release_pilots(context: SearchContext, gives_up: bool = True) -> bool:
    """End all pilots; True once none holds nodes and each is charged. One whose end stays unknown is charged its
    reservation. Raises OSError as `Launcher.release`."""
    if not context.launcher.release(gives_up):
        return False
    charge_ended_pilots(context)
    for name, pilot in context.search.open_pilots.items():
        _charge(context, name, pilot, None)
    return True


def cancel_pilots_over_budget(context: SearchContext) -> None:
    """Cancel pilots that wait for their nodes, the youngest first, until the rest is within the budget: another one may
    have held its nodes for longer than was reserved. Raises OSError as `Launcher.cancel_waiting_pilot`."""
    budget_node_hours = context.limits.budget_node_hours
    over = 0.0 if budget_node_hours is None else node_hours_over_budget(context.index, budget_node_hours)
    for name, pilot in reversed(context.search.open_pilots.items()):
        if over > TOLERANCE_NODE_HOURS and context.launcher.cancel_waiting_pilot(name):
            context.log_once.info(f"budget reached, cancelled while waiting: pilot {name}")
            over -= pilot.reserved_node_hours


def may_return_budget(context: SearchContext) -> bool:
    """True while attempts or pilots may return what they reserved; pilots are ended for it once no attempt is there."""
    if context.index.in_flight:
        return True
    if not context.search.open_pilots:
        return False
    release_pilots(context, gives_up=False)
    return True


def _charge(context: SearchContext, name: str, pilot: PilotUsage, status: LaunchStatus | None) -> None:
    node_hours, billed_hours, job_id = pilot.reserved_node_hours, None, None
    if status is not None:
        node_hours, job_id = pilot_node_hours(pilot, status, context.launcher.now()), status.job_id
        billed_hours = billed_hours_of(pilot.num_nodes, status, node_hours)
    used = {"node_hours": node_hours, "billed_hours": billed_hours}
    context.event(EventKind.PILOT_ENDED, pilot=name, job_id=job_id, **used)
