"""Predicted pay-back of a search: its expected cost against what its first layout saves the training. Pure."""

from __future__ import annotations

import numpy as np

from orchestrator.planning.plan import Plan
from search_spaces.cost_model.posterior import LAYOUT_RESIDUAL_SHARE, MODEL_ERROR
from search_spaces.layouts.layout import Layout
from trials.analysis.ranking import Speedup
from trials.analysis.search_cost import PayBack

_DRAWS = 1000
_DEGREES_OF_FREEDOM = 4
_INTERVAL = (0.025, 0.975)
_SEED = 1


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
