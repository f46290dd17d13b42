"""Explanation of a plan: step time and memory of its first layout and of the baseline by parts, what the first layout
saves against its search's cost, and how many layouts fit. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Literal

import numpy as np

from orchestrator.config.answer import AnswerPart
from orchestrator.planning.plan import Fits, Plan, PlannedLayout
from search_spaces.cost_model.memory import StageMemory, stage_memory
from search_spaces.cost_model.posterior import LAYOUT_RESIDUAL_SHARE, MODEL_ERROR
from search_spaces.cost_model.stage_table import StageTable
from search_spaces.layouts.layout import Layout
from trials.analysis.ranking import Speedup
from trials.analysis.search_cost import PayBack

MEMORY_PARTS = tuple(field.name for field in fields(StageMemory))
"""Parts of a rank's memory."""

_DRAWS = 1000
_DEGREES_OF_FREEDOM = 4
_INTERVAL = (0.025, 0.975)
_SEED = 1


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


def expected_pay_back(plan: Plan, baseline: Layout | None) -> PayBack | None:
    """Pay-back of the expected cost of a guided search by a training with the plan's first layout instead of the
    baseline's.

    None without a baseline, where it is the first layout or has another batch, and where seconds are unknown.
    """
    cost, first = plan.expected.guided, plan.layouts[0]
    if baseline is None or cost is None or baseline not in plan.layouts:
        return None
    row = plan.layouts.index(baseline)
    if row == 0 or baseline.global_batch_size != first.global_batch_size:
        return None
    return PayBack.of(cost, _predicted_speedup(plan, row), first.num_nodes, baseline.num_nodes)


def _predicted_speedup(plan: Plan, row: int) -> Speedup:
    """Speedup of the first layout over that in `row`, with the 95 % interval of the cost model: over constants that
    both share, and each layout's own residual."""
    task, rng = plan.task, np.random.default_rng(_SEED)
    draws = task.priors.time.draws(_DRAWS, rng)
    logs = np.log(plan.estimates.terms.take(np.array([0, row])).seconds(np.exp(draws)))
    logs += LAYOUT_RESIDUAL_SHARE * MODEL_ERROR * rng.standard_t(_DEGREES_OF_FREEDOM, logs.shape)
    low, high = np.exp(np.quantile(logs[:, 1] - logs[:, 0], _INTERVAL)).tolist()
    return Speedup(float(plan.tokens_per_sec[0] / plan.tokens_per_sec[row]), low, high)


def count_fits(plan: Plan) -> FitCounts | None:
    """Number of layouts that fit, may fit and do not fit; None if the memory size is unknown."""
    if plan.task.capacity_gib is None:
        return None
    return FitCounts(**{word.value: plan.fits.count(word) for word in Fits})
