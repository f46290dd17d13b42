"""Cost of a search, in node-hours and as Slurm bills it, and the training after which it has paid back. Pure.

A training on n nodes with a throughput of v tokens/s takes n / v node-seconds a token. In each hour, the best layout
(n, v) trains tokens for which the baseline (n0, v0) would take n0 v / v0 node-hours, and takes n itself. So it saves
n0 v / v0 - n node-hours, and a search that cost C node-hours has paid back after C / (n0 v / v0 - n) hours of training
with it; on equally many nodes, C / (n (speedup - 1)). Where both are billed alike, billing hours give the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

from trials.analysis.ranking import Objective, Speedup, speedup_over
from trials.analysis.verdict import SearchVerdict, VerdictKind
from trials.ledger.events import SearchRecord


@dataclass(frozen=True)
class PayBack:
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

    @classmethod
    def of(cls, cost_node_hours: float, speedup: Speedup, num_nodes: int, baseline_nodes: int) -> PayBack:
        """By the ratio of throughputs, tokens/s of the best over those of the baseline."""
        saved, low, high = (
            None if ratio is None else baseline_nodes * ratio - num_nodes
            for ratio in (speedup.ratio, speedup.low, speedup.high)
        )
        assert saved is not None, "the ratio is known"
        hours, most, least = (
            None if saving is None or saving <= 0 else cost_node_hours / saving for saving in (saved, low, high)
        )
        return cls(num_nodes, saved, low, high, hours, least, most)

    @property
    def has_interval(self) -> bool:
        return self.node_hours_saved_per_hour_low is not None and self.node_hours_saved_per_hour_high is not None


@dataclass(frozen=True)
class SearchCost:
    """Cost of a search so far, without the pilots that it still has, which are charged when they end."""

    node_hours: float
    billed_hours: float | None
    """Slurm's billing hours of its ended jobs and its driver's: billing units times hours, with the usage factor of the
    QOS. Null where Slurm did not tell those of all, and while the search has pilots."""
    pay_back: PayBack | None
    """Null where the best layout is not clearly faster or slower than the baseline, where that is unproven, of a
    replayed table, and while the search has pilots."""

    @classmethod
    def of(cls, search: SearchRecord, verdict: SearchVerdict) -> SearchCost:
        if search.open_pilots:
            return cls(search.node_hours_used, None, None)
        return cls(search.node_hours_used, search.billed_hours, _pay_back(search.node_hours_used, verdict))


def _pay_back(node_hours: float, verdict: SearchVerdict) -> PayBack | None:
    best, baseline = verdict.best, verdict.baseline
    if verdict.is_unproven or verdict.replayed_table is not None:
        return None
    if verdict.kind not in (VerdictKind.FASTER, VerdictKind.SLOWER) or best is None or baseline is None:
        return None
    speedup = speedup_over(baseline, best, Objective.TOKENS_PER_SEC)
    if speedup is None:
        return None
    return PayBack.of(node_hours, speedup, best.layout.num_nodes, baseline.layout.num_nodes)
