"""Time breakdown of a step in seconds: profiled, else by the cost model. Pure; the cost model uses numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dashboards.search_view import SearchView
from search_spaces.layouts.layout import Layout
from trials.analysis.ranked_layout import TrialOrLayout


@dataclass(frozen=True)
class TimeBreakdown:
    """Seconds of one layout's step by the keys of `time_s`, and its measured step time. The seconds are
    measured if `is_profiled`, else by the cost model with its typical constants."""

    label: str
    layout: Layout
    seconds: Mapping[str, float]
    step_time_s: float
    is_profiled: bool


def time_breakdowns(view: SearchView) -> tuple[TimeBreakdown, ...]:
    """Breakdowns of the baseline and of the best layout where they differ, both profiled or both by the cost model.

    Where they cannot be had alike the best layout's alone, as profiled; unknown ones are omitted.
    """
    best, baseline, spec = view.best, view.verdict.baseline, view.search.spec
    wanted: dict[str, TrialOrLayout] = {}
    if baseline is not None and baseline.measured and (best is None or not view.is_baseline(best)):
        wanted["the baseline"] = baseline
    if best is not None:
        wanted[best.trial] = best
    for are_profiled in (True, False):
        found = [_breakdown(label, trial, spec, are_profiled) for label, trial in wanted.items()]
        known = tuple(parts for parts in found if parts is not None)
        if len(known) == len(found):
            return known
    alone = None if best is None else _breakdown(best.trial, best, spec, is_profiled=True)
    return () if alone is None else (alone,)


def _breakdown(label: str, trial: TrialOrLayout, spec: Mapping[str, Any], is_profiled: bool) -> TimeBreakdown | None:
    if (measured := trial.measured) is None:
        return None
    seconds = measured.time_s if is_profiled else _estimate(trial.layout, spec)
    if not seconds or not sum(seconds.values()) > 0:
        return None
    return TimeBreakdown(label, trial.layout, seconds, measured.step_time_s, is_profiled)


def _estimate(layout: Layout, spec: Mapping[str, Any]) -> dict[str, float] | None:
    """Breakdown by the cost model; None for an unknown accelerator or an incomplete model or cluster section."""
    from search_spaces.cost_model.constants import typical_constants
    from search_spaces.cost_model.step_time import StepTerms
    from search_spaces.hardware.cluster import Cluster
    from search_spaces.layouts.table import LayoutTable
    from search_spaces.model_shape import ModelShape

    try:
        model, cluster = ModelShape.from_json(spec["model"]), Cluster.from_json(spec["cluster"])
    except (KeyError, ValueError):
        return None
    if cluster.accelerator.peak_flops_for(layout.precision) is None:
        return None
    parts = StepTerms.of(model, cluster, LayoutTable.of([layout])).parts(typical_constants())
    return {part: float(seconds[0]) for part, seconds in parts.items()}
