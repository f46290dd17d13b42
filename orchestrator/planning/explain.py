"""Why a plan says what it says: of its first layout, and of the one that runs today, where a step's time goes and what
fills a rank's memory; how many layouts fit. Pure."""

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
"""What a rank's memory goes to."""


@dataclass(frozen=True)
class LayoutExplanation:
    """A layout of a plan, the `first` or the `baseline`, which stands in row `row` of it.

    `hfu` is the share of the peak that its ranks reach, what they compute again counted, as a fraction; None where
    nobody knows it. `parts_gib` are GiB of a rank of the fullest stage by what they are for, before what allocators
    add.
    """

    what: str
    row: int
    hfu: float | None
    fullest_stage: int
    parts_gib: Mapping[str, float]

    @classmethod
    def of(cls, plan: Plan, what: str, row: int) -> LayoutExplanation:
        model, layout = plan.task.model, plan.layouts[row]
        parts = stage_memory(model, plan.table.take(np.array([row])), StageTable.of_layout(model, layout))
        stage = int(parts.total[0].argmax())
        gib = {name: float(getattr(parts, name)[0, stage]) for name in MEMORY_PARTS}
        return cls(what, row, _hfu(plan, row), stage, gib)

    def to_json(self, plan: Plan) -> dict[str, Any]:
        """The contract's `explained`."""
        [row] = plan.rows_json(np.array([self.row]))
        about = {"what": self.what, "place": self.row + 1}
        return about | row | {"hfu": self.hfu, "fullest_stage": self.fullest_stage, "parts_gib": dict(self.parts_gib)}


def explain_layouts(plan: Plan, baseline: Layout | None) -> list[LayoutExplanation]:
    """The plan's first layout, and the baseline where it is another."""
    found = [LayoutExplanation.of(plan, "first", 0)]
    if baseline is not None and baseline != plan.layouts[0]:
        found.append(LayoutExplanation.of(plan, "baseline", plan.layouts.index(baseline)))
    return found


def time_saved_s(plan: Plan, baseline: Layout | None) -> dict[str, float] | None:
    """Seconds of a step that the first layout takes less than the baseline, by what they go to; None where there is
    nothing to compare, or where seconds are ratios only."""
    if baseline is None or not plan.speed_is_known:
        return None
    row = plan.layouts.index(baseline)
    return {name: float(seconds[row] - seconds[0]) for name, seconds in plan.estimates.time_s.items()}


def count_fits(plan: Plan) -> dict[str, int] | None:
    """How many layouts fit, do not, and may; None where nobody knows how much memory there is."""
    if plan.fits(0) is None:
        return None
    found = [plan.fits(row) for row in range(len(plan.layouts))]
    return {word.value: found.count(word) for word in Fits}


def _hfu(plan: Plan, row: int) -> float | None:
    model, mfu = plan.task.model, plan.mfu(row)
    if mfu is None or not plan.speed_is_known:
        return None
    again = model.hardware_flops_per_token(plan.layouts[row].activation_checkpointing)
    return mfu * again / model.model_flops_per_token
