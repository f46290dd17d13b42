"""DeepHyper behind the memory filter: shows what the filter alone contributes."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.samplers.base import Sampler, TrialFeedback, distinct
from orchestrator.samplers.cost_model_posterior import CostModelPredictor, TuningTask
from orchestrator.samplers.deephyper import DeepHyperSampler
from search_spaces.layouts.layout import Layout


class FilteredSampler(Sampler):
    """DeepHyper over the candidates that are likely to fit, then over the others."""

    name = "deephyper_filtered"

    def __init__(self, candidates: Sequence[Layout], seed: int, task: TuningTask):
        layouts = list(distinct(candidates).values())
        fits = CostModelPredictor(task, layouts, seed).predict([]).fits >= 0.5
        likely = [layout for layout, fit in zip(layouts, fits, strict=True) if fit]
        others = [layout for layout, fit in zip(layouts, fits, strict=True) if not fit]
        self._parts = [DeepHyperSampler(part, seed) for part in (likely, others) if part]

    def ask(self, count: int, history: Sequence[TrialFeedback]) -> list[Layout]:
        chosen: list[Layout] = []
        for part in self._parts:
            if len(chosen) < count:
                chosen += part.ask(count - len(chosen), history)
        return chosen
