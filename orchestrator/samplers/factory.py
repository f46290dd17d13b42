"""Samplers by the names of `search.sampler`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from orchestrator.samplers.base import Sampler
from orchestrator.samplers.cost_model_posterior import TuningTask
from orchestrator.samplers.deephyper import DeepHyperSampler
from orchestrator.samplers.fallback import FallbackSampler
from orchestrator.samplers.feasibility_filter import FilteredSampler
from orchestrator.samplers.guided import CostModelSampler, GuidedSampler
from orchestrator.samplers.model_free import GridSampler, RandomSampler
from search_spaces.errors import InputError, choice_fix
from search_spaces.layouts.layout import Layout

SAMPLERS = ("guided", "deephyper", "deephyper_filtered", "cost_model", "random", "grid")
"""Values of `search.sampler`."""

_log = logging.getLogger(__name__)


def make_sampler(name: str, candidates: Sequence[Layout], task: TuningTask, seed: int) -> Sampler:
    """The sampler of this name over `candidates`, seeded by `seed`; InputError for an unknown name.

    `task` is for samplers with a cost model. It is logged once when a sampler failed or hung and was replaced by
    a simpler one.
    """
    if name == "grid":
        return GridSampler(candidates)
    if name == "random":
        return RandomSampler(candidates, seed)
    if name == "cost_model":
        return CostModelSampler(candidates, seed, task)
    if name == "guided":
        return FallbackSampler(GuidedSampler(candidates, seed, task), CostModelSampler(candidates, seed, task))
    if name == "deephyper":
        return FallbackSampler(DeepHyperSampler(candidates, seed), RandomSampler(candidates, seed))
    if name == "deephyper_filtered":
        without_priors = replace(task, prior_trials=())  # to show what the filter alone contributes
        return FallbackSampler(FilteredSampler(candidates, seed, without_priors), RandomSampler(candidates, seed))
    raise _unknown(name)


def _unknown(name: str) -> InputError:
    return InputError.of(
        "sampler",
        f"unknown sampler {name!r}",
        key="search.sampler",
        value=name,
        rule="one of " + ", ".join(SAMPLERS),
        fix=choice_fix(name, SAMPLERS),
    )
