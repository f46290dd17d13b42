"""Memory of a recipe's layout: the rank with least left and what takes it, and what the cost model predicts. Pure."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from search_spaces.cost_model.memory import StageMemory, stage_memory
from search_spaces.cost_model.stage_table import StageTable
from search_spaces.layouts.table import LayoutTable
from search_spaces.routing import Routing
from trials.analysis.ranked_layout import RankedLayout
from trials.trial import TrialSpec


def recipe_memory(best: RankedLayout, spec: TrialSpec) -> dict[str, Any]:
    """Content of the recipe's `memory`."""
    fullest = best.fullest_rank
    return {
        "fullest_rank": None if fullest is None else dict(fullest),
        "predicted_gib": _predicted_gib(spec),
    }


def _predicted_gib(spec: TrialSpec) -> dict[str, float]:
    """GiB of a rank of the fullest stage by purpose, without the allocator's overhead."""
    skew = Routing.of(spec.measure.routing).skew or 1.0
    layout = spec.layout.canonical()
    parts = stage_memory(spec.model, LayoutTable.of([layout]), StageTable.of_layout(spec.model, layout), skew)
    stage = int(parts.total[0].argmax())
    return {field.name: float(getattr(parts, field.name)[0, stage]) for field in fields(StageMemory)}
