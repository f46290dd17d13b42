"""Explanation of a plan: step time and memory of its first layout and of the baseline by parts, and how many layouts
fit.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from orchestrator.planning.plan import Fits, Plan
from search_spaces.cost_model.memory import StageMemory, stage_memory
from search_spaces.cost_model.stage_table import StageTable
from search_spaces.layouts.layout import Layout

MEMORY_PARTS = tuple(field.name for field in fields(StageMemory))
"""Parts of a rank's memory."""


@dataclass(frozen=True)
class LayoutExplanation:
    """Explanation of a plan's `first` layout or of its `baseline`, in row `row`.

    `hfu` is the hardware FLOPs utilization, recomputation included, as a fraction; None if the peak is unknown.
    `parts_gib` are GiB of a rank of the fullest stage by purpose, without the allocator's overhead.
    """

    what: str
    row: int
    hfu: float | None
    fullest_stage: int
    parts_gib: Mapping[str, float]

    @classmethod
    def of(cls, plan: Plan, what: str, row: int) -> LayoutExplanation:
        model, layout = plan.task.model, plan.layouts[row]
        stages = StageTable.of_layout(model, layout)
        parts = stage_memory(model, plan.layouts.take(np.array([row])), stages, plan.task.expert_skew)
        stage = int(parts.total[0].argmax())
        gib = {name: float(getattr(parts, name)[0, stage]) for name in MEMORY_PARTS}
        return cls(what, row, _hfu(plan, row), stage, gib)

    def to_json(self, plan: Plan) -> dict[str, Any]:
        """The contract's `explained`."""
        [row] = plan.rows_json(np.array([self.row]))
        about = {"what": self.what, "place": self.row + 1}
        return about | row | {"hfu": self.hfu, "fullest_stage": self.fullest_stage, "parts_gib": dict(self.parts_gib)}


def explain_layouts(plan: Plan, baseline: Layout | None) -> list[LayoutExplanation]:
    """Explanations of the plan's first layout and, if different, of the baseline."""
    found = [LayoutExplanation.of(plan, "first", 0)]
    if baseline is not None and baseline != plan.layouts[0]:
        found.append(LayoutExplanation.of(plan, "baseline", plan.layouts.index(baseline)))
    return found


def time_saved_s(plan: Plan, baseline: Layout | None) -> dict[str, float] | None:
    """Seconds per step that the first layout saves against the baseline, by parts; None without a baseline, or where
    seconds are only ratios."""
    if baseline is None or not plan.speed_is_known:
        return None
    row = plan.layouts.index(baseline)
    return {name: float(seconds[row] - seconds[0]) for name, seconds in plan.estimates.time_s.items()}


def count_fits(plan: Plan) -> dict[str, int] | None:
    """Number of layouts that fit, may fit and do not fit; None if the memory size is unknown."""
    if plan.fits(0) is None:
        return None
    return {word.value: plan.all_fits.count(word) for word in Fits}


def _hfu(plan: Plan, row: int) -> float | None:
    model, mfu = plan.task.model, plan.mfu(row)
    if mfu is None or not plan.speed_is_known:
        return None
    hardware_flops = model.hardware_flops_per_token(plan.layouts[row])
    return mfu * hardware_flops / model.model_flops_per_token
