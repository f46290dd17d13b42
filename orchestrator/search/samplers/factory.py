"""Samplers by the names of `search.sampler`, and that of an experiment of two software stacks (`search.against`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from search_spaces.layouts.settings import IMAGE, PYTHON

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from orchestrator.search.samplers.base import Sampler
    from orchestrator.search.samplers.cost_model_posterior import TuningTask
    from search_spaces.layouts.layout import Layout


def sampler_of(spec: SearchSpec, candidates: Sequence[Layout], task: TuningTask) -> Sampler:
    """The sampler of the search file; of an experiment the layouts predicted to be the fastest, with both stacks."""
    from orchestrator.search.samplers.base import PairedSampler

    software = other_software(spec)
    if not software:
        return make_sampler(spec.search.sampler, candidates, task, spec.search.seed)
    own = [layout.with_software({}) for layout in candidates]
    return PairedSampler(make_sampler("cost_model", own, task, spec.search.seed), software, spec.search.against_layouts)


def other_software(spec: SearchSpec) -> Mapping[str, str]:
    """The software of the other side, as settings have it; empty without an experiment."""
    if spec.search.against is None:
        return {}
    container = spec.launcher.slurm.container if spec.launcher.uses_slurm else None
    return {PYTHON if container is None else IMAGE: spec.search.against}


def make_sampler(name: str, candidates: Sequence[Layout], task: TuningTask, seed: int) -> Sampler:
    """The sampler of this name over `candidates`, seeded by `seed`.

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
    raise ValueError(f"unknown sampler {name!r}")


def import_for_sampler(name: str) -> None:
    """Import what only the answers of this sampler need, which takes seconds. Raises ImportError."""
    if name == "guided":
        import orchestrator.search.samplers.residual_gp  # noqa: F401
    if name in ("guided", "deephyper"):
        from orchestrator.search.samplers.deephyper import import_deephyper

        import_deephyper()
