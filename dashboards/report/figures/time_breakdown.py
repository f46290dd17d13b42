"""Time breakdown of a step: profiled, else by the cost model. Pure; the cost model uses numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from trials.analysis.ranked_layout import RankedLayout, TrialOrLayout


@dataclass(frozen=True)
class TimeBreakdown:
    """Shares of one layout's step time, adding up to 1, by the keys of the contract's `time_s`.

    Measured if `is_profiled`, else by the cost model with its typical constants.
    """

    label: str
    trial: str
    shares: Mapping[str, float]
    is_profiled: bool


def time_breakdowns(
    best: RankedLayout | None, baseline: TrialOrLayout | None, spec: Mapping[str, Any]
) -> tuple[TimeBreakdown, ...]:
    """Breakdowns of the best layout, and of the baseline where it differs; unknown ones are omitted."""
    wanted: dict[str, TrialOrLayout] = {} if best is None else {"best": best}
    if baseline is not None and (best is None or baseline.layout.key != best.layout.key):
        wanted["baseline"] = baseline
    found = (_breakdown(label, trial, spec) for label, trial in wanted.items())
    return tuple(parts for parts in found if parts is not None)


def _breakdown(label: str, trial: TrialOrLayout, spec: Mapping[str, Any]) -> TimeBreakdown | None:
    profiled = None if trial.measured is None else trial.measured.time_s
    seconds = profiled or _estimate(trial.layout, spec)
    total = sum((seconds or {}).values())
    if not seconds or not total > 0:
        return None
    shares = {part: share / total for part, share in seconds.items()}
    return TimeBreakdown(label, trial.trial, shares, bool(profiled))


def _estimate(layout: Layout, spec: Mapping[str, Any]) -> dict[str, float] | None:
    """Breakdown by the cost model; None for an unknown accelerator or an incomplete model or cluster section."""
    from search_spaces.cost_model.posterior import typical_constants
    from search_spaces.cost_model.step_time import StepTerms
    from search_spaces.hardware.cluster import Cluster
    from search_spaces.layouts.table import LayoutTable
    from search_spaces.model_shape import ModelShape

    try:
        model, cluster = ModelShape.from_json(spec["model"]), Cluster.from_json(spec["cluster"])
    except (InputError, KeyError, TypeError, AttributeError):
        return None
    if cluster.accelerator.peak_flops_for(layout.precision) is None:
        return None
    parts = StepTerms.of(model, cluster, LayoutTable.of([layout])).parts(typical_constants())
    return {part: float(seconds[0]) for part, seconds in parts.items()}
