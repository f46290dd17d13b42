"""Cost of a search, in node-hours and as Slurm bills it, and the training after which it has paid back. Pure.

A training on n nodes with a throughput of v tokens/s takes n / v node-seconds a token. In each hour, the best layout
(n, v) trains tokens for which the baseline (n0, v0) would take n0 v / v0 node-hours, and takes n itself. So it saves
n0 v / v0 - n node-hours, and a search that cost C node-hours has paid back after C / (n0 v / v0 - n) hours of training
with it; on equally many nodes, C / (n (speedup - 1)). Where both are billed alike, billing hours give the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum
from typing import Any

from trials.analysis.ranking import Objective, Speedup, speedup_over
from trials.analysis.verdict import SearchVerdict, VerdictKind
from trials.ledger.events import SearchRecord
from trials.trial import Trial


@dataclass(frozen=True)
class PayBack:
    """Pay-back of `cost_node_hours` by a training with the best layout, on `num_nodes` nodes.

    `saved` are node-hours that it saves in each hour against the baseline, below 0 where it takes more; the other two
    are the ends of the 95 % interval, None where that is unknown.
    """

    cost_node_hours: float
    num_nodes: int
    saved: float
    saved_low: float | None = None
    saved_high: float | None = None

    @classmethod
    def of(cls, cost_node_hours: float, speedup: Speedup, num_nodes: int, baseline_nodes: int) -> PayBack:
        """By the ratio of throughputs, tokens/s of the best over those of the baseline."""
        saved, low, high = (
            None if ratio is None else baseline_nodes * ratio - num_nodes
            for ratio in (speedup.ratio, speedup.low, speedup.high)
        )
        assert saved is not None, "the ratio is known"
        return cls(cost_node_hours, num_nodes, saved, low, high)

    @property
    def hours(self) -> float | None:
        """Hours of training with the best layout until the search has paid back; None: never."""
        return self._hours(self.saved)

    @property
    def has_interval(self) -> bool:
        return self.saved_low is not None and self.saved_high is not None

    @property
    def hours_low(self) -> float | None:
        """The least hours within the interval; None where that is unknown, or contains no saving."""
        return None if self.saved_high is None else self._hours(self.saved_high)

    @property
    def hours_high(self) -> float | None:
        """The most hours within the interval; None where that is unknown, or contains no saving."""
        return None if self.saved_low is None else self._hours(self.saved_low)

    def _hours(self, saved: float) -> float | None:
        return self.cost_node_hours / saved if saved > 0 else None

    def to_json(self) -> dict[str, Any]:
        """The contract's `pay_back` object."""
        return {
            "num_nodes": self.num_nodes,
            "node_hours_saved_per_hour": self.saved,
            "node_hours_saved_per_hour_low": self.saved_low,
            "node_hours_saved_per_hour_high": self.saved_high,
            "hours": self.hours,
            "hours_low": self.hours_low,
            "hours_high": self.hours_high,
        }


@dataclass(frozen=True)
class SearchCost:
    """Cost of a search so far. `billed_hours` are Slurm's billing hours of its ended jobs, None where it did not
    tell them of all; `pay_back` is None where the best layout is not clearly faster or slower than the baseline, where
    that is unproven, and where a table was replayed."""

    node_hours: float
    billed_hours: float | None
    pay_back: PayBack | None

    @classmethod
    def of(cls, search: SearchRecord, verdict: SearchVerdict) -> SearchCost:
        return cls(search.node_hours_used, search.billed_hours, _pay_back(search.node_hours_used, verdict))

    def to_json(self) -> dict[str, Any]:
        """The contract's `cost` object."""
        pay_back = None if self.pay_back is None else self.pay_back.to_json()
        return {"node_hours": self.node_hours, "billed_hours": self.billed_hours, "pay_back": pay_back}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SearchCost:
        cost, found = data["node_hours"], data["pay_back"]
        saved = (f"node_hours_saved_per_hour{end}" for end in ("", "_low", "_high"))
        pay_back = None if found is None else PayBack(cost, found["num_nodes"], *(found[name] for name in saved))
        return cls(cost, data["billed_hours"], pay_back)


def trial_billed_hours(trial: Trial) -> float | None:
    """Billing hours of a trial's own jobs; None without any, and where Slurm did not tell those of all."""
    jobs = [attempt.billed_hours for attempt in trial.attempts if attempt.node_hours]
    known = [hours for hours in jobs if hours is not None]
    return fsum(known) if known and len(known) == len(jobs) else None


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
