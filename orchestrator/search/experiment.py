"""Experiment of two software stacks (`search.against`): its other side, sampler and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.config.spec import SearchSpec
from orchestrator.samplers.base import Sampler
from orchestrator.samplers.factory import make_sampler
from orchestrator.samplers.paired import PairedSampler
from orchestrator.search.stopping import Limits
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.settings import IMAGE, PYTHON

if TYPE_CHECKING:
    from orchestrator.samplers.cost_model_posterior import TuningTask


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
