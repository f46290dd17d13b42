"""Sampler of an experiment: the same few layouts with two software stacks, in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.samplers.base import Sampler, TrialFeedback
from search_spaces.layouts.layout import Layout


class PairedSampler(Sampler):
    """Proposes each layout of another sampler with the search's own software and with `software`, one after the other:
    A B B A. A layout that was tried with one is tried with the other first, whatever has happened in between."""

    name = "paired"

    def __init__(self, layouts: Sampler, software: Mapping[str, str], count: int):
        self._layouts = layouts
        self._software = software
        self._count = count

    def ask(self, count: int, history: Sequence[TrialFeedback]) -> list[Layout]:
        tried = {feedback.layout.key for feedback in history}
        partners = (self._partner(feedback.layout) for feedback in history)
        if missing := next((layout for layout in partners if layout.key not in tried), None):
            return [missing]
        own = {layout.key: layout for feedback in history if (layout := feedback.layout.with_software({}))}
        if len(own) >= self._count:
            return []
        following = self._layouts.ask(1, [TrialFeedback(layout) for layout in own.values()])
        is_even = len(own) % 2 == 0
        return following if is_even else [layout.with_software(self._software) for layout in following]

    def _partner(self, layout: Layout) -> Layout:
        return layout.with_software({} if layout.of_trial.software else self._software)
