"""Cost of a search and its pay-back as text, for the terminal, the report and the recipe. Pure."""

from __future__ import annotations

from dashboards.trial_text import format_number
from trials.analysis.search_cost import PayBack, SearchCost
from trials.files.text import plural


def describe_search_cost(cost: SearchCost) -> str | None:
    """Cost of a search in one sentence, with the training after which it has paid back; None where nothing but its
    node-hours is known."""
    words = f"this search cost {format_cost(cost.node_hours, cost.billed_hours)}"
    if cost.pay_back is None:
        return None if cost.billed_hours is None else words
    joined = " and" if cost.billed_hours is None else ", and"
    return f"{words}{joined} {describe_pay_back(cost.pay_back, 'pays', 'the layout that it found')}"


def format_cost(node_hours: float, billed_hours: float | None) -> str:
    """Node-hours, and Slurm's billing hours beside them where they are known."""
    billed = "" if billed_hours is None else f", billed as {format_number(billed_hours, 4)} billing hours"
    return f"{format_number(node_hours, 4)} node-hours{billed}"


def describe_pay_back(pay_back: PayBack, verb: str, layout: str) -> str:
    """Hours of training after which the search has paid back, with the 95 % interval. `verb` is a form of to pay."""
    if pay_back.hours is None:
        least = "" if pay_back.hours_low is None else f"; after {_hours(pay_back.hours_low)} at the soonest, at 95 %"
        of_baseline = pay_back.num_nodes + pay_back.node_hours_saved_per_hour
        return (
            f"never {verb} back in node-hours: the same tokens take the baseline"
            f" {format_number(of_baseline, 3)} node-hours where {layout} takes"
            f" {format_number(pay_back.num_nodes, 3)}{least}"
        )
    where = f"of training on {plural(pay_back.num_nodes, 'node')} with {layout} instead of the baseline"
    return f"{verb} back after {_hours(pay_back.hours)} {where}{_interval(pay_back)}"


def _interval(pay_back: PayBack) -> str:
    if not pay_back.has_interval:
        return ""
    most = "never" if pay_back.hours_high is None else _hours(pay_back.hours_high)
    return f" (95 % interval: {_hours(pay_back.hours_low or 0.0)} to {most})"


def _hours(hours: float) -> str:
    text = format_number(hours, 3)
    return f"{text} hour" if text == "1" else f"{text} hours"
