"""Cost of a search, before and after it, in the answers of others."""

from __future__ import annotations

from typing import Literal, TypedDict


class PayBackAnswer(TypedDict):
    """Training after which a search has paid back, with the best layout instead of the baseline."""

    num_nodes: int
    """Nodes of the best layout."""
    node_hours_saved_per_hour: float
    """By each hour of training; below 0 where the best layout takes more node-hours for the same tokens."""
    node_hours_saved_per_hour_low: float | None
    """Lower end of the 95 % interval."""
    node_hours_saved_per_hour_high: float | None
    """Upper end of the 95 % interval."""
    hours: float | None
    """Hours of training; null: never."""
    hours_low: float | None
    """By the upper end of the interval; null where that is unknown or no saving."""
    hours_high: float | None
    """By the lower end of the interval; null where that is unknown or no saving."""


class CostAnswer(TypedDict):
    """Cost of a search so far."""

    node_hours: float
    billed_hours: float | None
    """Slurm's billing hours of its ended jobs and its driver's: billing units times hours, with the usage factor of the
    QOS. Null where Slurm did not tell those of all."""
    pay_back: PayBackAnswer | None
    """Null where the best layout is not clearly faster or slower than the baseline, where that is unproven, and of a
    replayed table."""


class PreemptionAnswer(TypedDict):
    """Preemption that jobs may suffer from others."""

    by: Literal["partition_prio", "qos"]
    """Slurm's PreemptType."""
    preemptors: list[str]
    """Partitions or QOS whose jobs preempt them."""
    mode: str
    """Slurm's PreemptMode, such as REQUEUE, which ends jobs with --no-requeue, CANCEL or SUSPEND."""
    grace_time_s: float


class PlannedCostAnswer(TypedDict):
    """Cost of a search as Slurm bills it, and its pay-back. Null or empty without Slurm, and where it does not
    answer."""

    partitions: list[str]
    billed_per_node_hour: float | None
    """Billing hours of a node-hour of the largest jobs."""
    usage_factor: float | None
    """The QOS's, which the billing hours contain."""
    billed_hours: float | None
    """Billing hours of `expected_node_hours.guided`."""
    most_billed_hours: float | None
    """Billing hours of `node_hours`, the upper limit."""
    pay_back: PayBackAnswer | None
    """Pay-back by the first layout over the baseline, as predicted; null without a baseline, and where seconds are
    unknown."""
    preemption: PreemptionAnswer | None
    """Null where no other job takes the nodes of the search's jobs."""
