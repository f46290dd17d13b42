"""Explanation of a plan: step time and memory of its first layout and of the baseline by parts, and how many layouts
fit.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Literal

import numpy as np

from orchestrator.config.answer import AnswerPart
from orchestrator.planning.plan import Fits, Plan, PlannedLayout
from search_spaces.cost_model.memory import StageMemory, stage_memory
from search_spaces.cost_model.stage_table import StageTable
from search_spaces.layouts.layout import Layout

MEMORY_PARTS = tuple(field.name for field in fields(StageMemory))
"""Parts of a rank's memory."""


class ExplainedLayout(PlannedLayout):
    """The first layout of a plan, or the baseline, with its predictions and where they come from."""

    what: Literal["first", "baseline"]
    place: int
    """Position among the layouts, from 1."""
    hfu: float | None
    """The same as `mfu`, with recomputed operations."""
    fullest_stage: int
    """Pipeline stage with the highest peak."""
    parts_gib: Mapping[str, float]
    """Its memory without allocator overhead: weights, gradients, optimizer, update, activations, logits, buffers; and
    `on_host`, what it keeps in host memory."""

    @classmethod
    def of(cls, plan: Plan, what: Literal["first", "baseline"], row: int) -> ExplainedLayout:
        model, layout = plan.task.model, plan.layouts[row]
        stages = StageTable.of_layout(model, layout)
        parts = stage_memory(model, plan.layouts.take(np.array([row])), stages, plan.task.expert_skew)
        stage = int(parts.total[0].argmax())
        gib = {name: float(getattr(parts, name)[0, stage]) for name in MEMORY_PARTS}
        [known] = plan.plain_rows(np.array([row]))
        recomputing = model.hardware_flops_per_token(layout) / model.model_flops_per_token
        hfu = None if known["mfu"] is None else known["mfu"] * recomputing
        return cls(**known, what=what, place=row + 1, hfu=hfu, fullest_stage=stage, parts_gib=gib)


class FitCounts(AnswerPart):
    """Number of layouts by whether they fit into memory."""

    yes: int
    no: int
    unsure: int


def explain_layouts(plan: Plan, baseline: Layout | None) -> list[ExplainedLayout]:
    """Explanations of the plan's first layout and, if different, of the baseline."""
    found = [ExplainedLayout.of(plan, "first", 0)]
    if baseline is not None and baseline != plan.layouts[0]:
        found.append(ExplainedLayout.of(plan, "baseline", plan.layouts.index(baseline)))
    return found


def time_saved_s(plan: Plan, baseline: Layout | None) -> dict[str, float] | None:
    """Seconds per step that the first layout saves against the baseline, by parts; None without a baseline, or where
    seconds are only ratios."""
    if baseline is None or not plan.speed_is_known:
        return None
    row = plan.layouts.index(baseline)
    return {name: float(seconds[row] - seconds[0]) for name, seconds in plan.time_s.items()}


def count_fits(plan: Plan) -> FitCounts | None:
    """Number of layouts that fit, may fit and do not fit; None if the memory size is unknown."""
    if plan.task.capacity_gib is None:
        return None
    return FitCounts(**{word.value: plan.fits.count(word) for word in Fits})
