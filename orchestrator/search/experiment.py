"""Sampler and limits of a search, and of an experiment of two software stacks (`search.against`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.config.spec import SearchSpec
from orchestrator.search.samplers.base import Sampler, TrialFeedback
from orchestrator.search.samplers.factory import make_sampler
from orchestrator.search.stopping import Limits
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.settings import IMAGE, PYTHON
from trials.analysis.setting_failures import SettingValue

if TYPE_CHECKING:
    from orchestrator.search.samplers.cost_model_posterior import TuningTask


def other_software(spec: SearchSpec) -> Mapping[str, str]:
    """The software of the other side, as settings have it; empty without an experiment."""
    if spec.search.against is None:
        return {}
    container = spec.launcher.slurm.container if spec.launcher.uses_slurm else None
    return {PYTHON if container is None else IMAGE: spec.search.against}


def sampler_of(spec: SearchSpec, candidates: Sequence[Layout], task: TuningTask) -> Sampler:
    """The sampler of the search file; of an experiment the layouts predicted to be the fastest, with both stacks."""
    software = other_software(spec)
    if not software:
        return make_sampler(spec.search.sampler, candidates, task, spec.search.seed)
    own = [layout.with_software({}) for layout in candidates]
    return PairedSampler(make_sampler("cost_model", own, task, spec.search.seed), software, spec.search.against_layouts)


def without(failing: frozenset[SettingValue], candidates: Sequence[Layout]) -> Sequence[Layout]:
    """The candidates without these values of settings, which fail."""
    return [layout for layout in candidates if failing.isdisjoint(layout.of_trial.by_axis.items())]


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


def limits_of(spec: SearchSpec) -> Limits:
    """The limits of the search file."""
    wanted = spec.search
    return Limits(
        wanted.max_trials,
        wanted.parallel_trials,
        wanted.budget_node_hours,
        wanted.max_wall_time_s,
        wanted.idle_limit_s,
        finalists=wanted.finalists,
        finalist_repeats=wanted.finalist_repeats,
        finals=wanted.finals,
        are_paired=wanted.against is not None,
    )
