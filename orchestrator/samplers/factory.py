"""Samplers by the names of `search.sampler`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from search_spaces.errors import InputError, choice_fix

if TYPE_CHECKING:
    from orchestrator.samplers.base import Sampler
    from orchestrator.samplers.cost_model_posterior import TuningTask
    from search_spaces.layouts.layout import Layout


@dataclass(frozen=True)
class SamplerEntry:
    """A value of `search.sampler`. `make` gets candidates, the task of a cost model, and the seed.

    `import_packages` imports what only the sampler's answers need, which takes seconds.
    """

    description: str
    make: Callable[[Sequence[Layout], TuningTask, int], Sampler]
    import_packages: Callable[[], object] = lambda: None


def make_sampler(name: str, candidates: Sequence[Layout], task: TuningTask, seed: int) -> Sampler:
    """The sampler of this name over `candidates`, seeded by `seed`; InputError for an unknown name.

    `task` is for samplers with a cost model. It is logged once when a sampler failed or hung and was replaced by
    a simpler one.
    """
    if name not in SAMPLERS:
        raise _unknown(name)
    entry = SAMPLERS[name]
    if not any(layout.settings for layout in candidates):
        return entry.make(candidates, task, seed)
    from orchestrator.samplers.failing_settings import FailingSettingsSampler

    return FailingSettingsSampler(candidates, lambda remaining: entry.make(remaining, task, seed))


def _guided(candidates: Sequence[Layout], task: TuningTask, seed: int) -> Sampler:
    from orchestrator.samplers.fallback import FallbackSampler
    from orchestrator.samplers.guided import CostModelSampler, GuidedSampler

    return FallbackSampler(GuidedSampler(candidates, seed, task), CostModelSampler(candidates, seed, task))


def _deephyper(candidates: Sequence[Layout], task: TuningTask, seed: int) -> Sampler:
    from orchestrator.samplers.deephyper import DeepHyperSampler
    from orchestrator.samplers.fallback import FallbackSampler
    from orchestrator.samplers.model_free import RandomSampler

    return FallbackSampler(DeepHyperSampler(candidates, seed), RandomSampler(candidates, seed))


def _cost_model(candidates: Sequence[Layout], task: TuningTask, seed: int) -> Sampler:
    from orchestrator.samplers.guided import CostModelSampler

    return CostModelSampler(candidates, seed, task)


def _random(candidates: Sequence[Layout], task: TuningTask, seed: int) -> Sampler:
    from orchestrator.samplers.model_free import RandomSampler

    return RandomSampler(candidates, seed)


def _grid(candidates: Sequence[Layout], task: TuningTask, seed: int) -> Sampler:
    from orchestrator.samplers.model_free import GridSampler

    return GridSampler(candidates)


def _import_for_guided() -> None:
    import orchestrator.samplers.residual_gp  # noqa: F401

    _import_deephyper()


def _import_deephyper() -> None:
    from orchestrator.samplers.deephyper import import_deephyper

    import_deephyper()


def _unknown(name: str) -> InputError:
    return InputError.of(
        "sampler",
        f"unknown sampler {name!r}",
        key="search.sampler",
        value=name,
        rule="one of " + ", ".join(SAMPLERS),
        fix=choice_fix(name, SAMPLERS),
    )


SAMPLERS: Mapping[str, SamplerEntry] = {
    "guided": SamplerEntry(
        "Bayesian optimisation with a cost model; the search ends once no remaining layout is likely to be faster",
        _guided,
        _import_for_guided,
    ),
    "deephyper": SamplerEntry(
        "Bayesian optimisation by DeepHyper, without a cost model", _deephyper, _import_deephyper
    ),
    "cost_model": SamplerEntry("in the order of the uncalibrated cost model", _cost_model),
    "random": SamplerEntry("in random order", _random),
    "grid": SamplerEntry("in the order of enumeration", _grid),
}
"""Samplers by name; the first is the default."""

SamplerName: TypeAlias = Literal[tuple(SAMPLERS)]  # type: ignore[valid-type]
"""A name in SAMPLERS, for pydantic."""
