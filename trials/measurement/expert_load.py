"""Load of experts in measured steps: tokens of the most loaded one and their mean, and the routing that was asked for.

Pure; standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from search_spaces.engines import ENGINE_PROFILES
from search_spaces.routing import BALANCED, Routing
from trials.trial import TrialSpec

MOST_DEVIATIONS = 6
"""Standard deviations by which the most loaded of some thousand experts may exceed the mean."""


@dataclass(frozen=True)
class ExpertLoad:
    """Tokens of a layer's experts in one step over all ranks: the mean, and the most of any expert of any layer."""

    mean: float
    most: float

    @property
    def skew(self) -> float:
        return self.most / self.mean

    @classmethod
    def of(cls, spec: TrialSpec, counted: Sequence[Sequence[float]]) -> ExpertLoad:
        """The load by these counts: a row a layer with experts, summed over ranks and measured steps. Recomputed passes
        and ranks that give the same tokens to theirs are counted alike for all experts of a layer."""
        tokens = spec.global_batch_size * spec.model.seq_length * (spec.model.experts_per_token or 0)
        return cls(tokens / len(counted[0]), max(max(layer) / sum(layer) for layer in counted) * tokens)


def load_error(spec: TrialSpec, counted: Sequence[Sequence[float]], samples: int) -> str | None:
    """Error where experts had other loads than asked, or not all tokens of these samples; None where they had.

    Each micro-batch of each rank may round by a token. Where the routing is drawn at random, with the same draws on all
    ranks at worst, loads also deviate as those of binomial distributions.
    """
    given = samples * spec.model.seq_length * (spec.model.experts_per_token or 0)
    for layer in counted:
        if not sum(layer) or sum(layer) % given:
            return f"experts of a layer were given {sum(layer):g} tokens in measured steps, not a multiple of {given}"
    skew, load = Routing.of(spec.measure.routing).skew, ExpertLoad.of(spec, counted)
    if skew is None:
        return None
    allowed = load.mean * _allowed_deviation(spec, samples)
    if abs(load.most - skew * load.mean) <= allowed:
        return None
    return (
        f"the most loaded expert had {load.most:.0f} tokens a step, {load.skew:.3g} times the mean of {load.mean:.0f};"
        f" measure.routing is {spec.measure.routing}, which allows {skew * load.mean:.0f} and a deviation of"
        f" {allowed:.0f}"
    )


def _allowed_deviation(spec: TrialSpec, samples: int) -> float:
    """Deviation of the most loaded expert from what was asked, over the mean."""
    layout, model = spec.layout, spec.model
    mean = samples * model.seq_length * (model.experts_per_token or 0) / (model.num_experts or 1)
    rounded = samples / layout.micro_batch_size * layout.num_gpus / layout.data_parallel
    is_drawn = ENGINE_PROFILES[layout.engine].draws_balanced_routing and spec.measure.routing == BALANCED
    drawn = MOST_DEVIATIONS * math.sqrt(mean * spec.num_gpus) if is_drawn else 0.0
    return (rounded + drawn) / mean
