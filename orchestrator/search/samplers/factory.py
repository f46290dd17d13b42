"""Samplers by the names of `search.sampler`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.config.schema.search_file import SAMPLERS
from search_spaces.errors import InputError, choice_fix

if TYPE_CHECKING:
    from orchestrator.search.samplers.base import Sampler
    from orchestrator.search.samplers.cost_model_posterior import TuningTask
    from search_spaces.layouts.layout import Layout


def make_sampler(name: str, candidates: Sequence[Layout], task: TuningTask, seed: int) -> Sampler:
    """The sampler of this name over `candidates`, seeded by `seed`; InputError for an unknown name.

    `task` is for samplers with a cost model. One that needs DeepHyper is replaced by a simpler one if it fails or
    hangs.
    """
    from orchestrator.search.samplers.base import GridSampler, RandomSampler
    from orchestrator.search.samplers.deephyper import DeepHyperSampler
    from orchestrator.search.samplers.fallback import FallbackSampler
    from orchestrator.search.samplers.guided import CostModelSampler, GuidedSampler

    match name:
        case "guided":
            first = GuidedSampler(candidates, seed, task)
            return FallbackSampler(first, CostModelSampler(candidates, seed, task))
        case "deephyper":
            return FallbackSampler(DeepHyperSampler(candidates, seed), RandomSampler(candidates, seed))
        case "cost_model":
            return CostModelSampler(candidates, seed, task)
        case "random":
            return RandomSampler(candidates, seed)
        case "grid":
            return GridSampler(candidates)
    rule, fix = "one of " + ", ".join(SAMPLERS), choice_fix(name, SAMPLERS)
    raise InputError.of("sampler", f"unknown sampler {name!r}", key="search.sampler", value=name, rule=rule, fix=fix)


def import_for_sampler(name: str) -> None:
    """Import what only the answers of this sampler need, which takes seconds. Raises ImportError."""
    if name == "guided":
        import orchestrator.search.samplers.residual_gp  # noqa: F401
    if name in ("guided", "deephyper"):
        from orchestrator.search.samplers.deephyper import import_deephyper

        import_deephyper()
