"""Routing: the assignment of tokens to experts, forced in a measurement or the router's own. Standard library only."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from search_spaces.errors import InputError, did_you_mean
from search_spaces.model_shape import ModelShape

BALANCED, SKEWED, LEARNED = "balanced", "skewed", "learned"
"""Kinds of routing."""
_SKEWED = re.compile(r"skewed\(\s*([0-9]+(?:\.[0-9]+)?)\s*\)")


@dataclass(frozen=True)
class Routing:
    """`skew` is the number of tokens of a layer's most loaded expert, over the mean of its experts: 1 is balanced, None
    is whatever the router chooses. The other experts have equally many."""

    skew: float | None = None

    @classmethod
    def of(cls, text: str | None) -> Routing:
        """Parse `balanced`, `skewed(s)` or `learned`, the last for None, too; InputError for anything else."""
        if text in (None, LEARNED):
            return cls()
        if text == BALANCED:
            return cls(1.0)
        given = _SKEWED.fullmatch(text)
        if given is None or not 1 < float(given[1]) < math.inf:
            raise InputError.of(
                "choice",
                f"is {text!r:.80}",
                rule=f"{BALANCED}, {LEARNED}, or {SKEWED}(s) with s above 1: tokens of the most loaded expert over the"
                " mean",
                fix=did_you_mean(text, (BALANCED, LEARNED)) or "for example skewed(2)",
                value=text,
            )
        return cls(float(given[1]))

    @property
    def kind(self) -> str:
        return LEARNED if self.skew is None else BALANCED if self.skew == 1 else SKEWED

    def __str__(self) -> str:
        return f"{SKEWED}({self.skew:g})" if self.kind == SKEWED else self.kind


def load_of_fullest_rank(skew: float, num_experts: int, expert_parallel: Any) -> Any:
    """Tokens of the rank that has the most loaded expert, over the mean of the ranks that experts are distributed over;
    a number or a column. The other experts share the rest of the tokens evenly."""
    if num_experts == 1:
        return 1.0
    held, others = num_experts / expert_parallel, (num_experts - skew) / (num_experts - 1)
    return (skew + (held - 1) * others) / held


def largest_skew(model: ModelShape) -> float:
    """Skew where every token passes the most loaded expert. The model has experts."""
    assert model.num_experts is not None
    assert model.experts_per_token is not None
    return model.num_experts / model.experts_per_token


def micro_batches_of_losses(micro_batch_sizes: Iterable[int]) -> str | None:
    """Sentence on layouts that train different losses, for a model with `aux_loss_coefficient`: those with different
    micro-batches, over whose tokens that loss is. None where all train the same."""
    sizes = sorted({*micro_batch_sizes})
    if len(sizes) < 2:
        return None
    named = ", ".join(map(str, sizes[:-1])) + f" and {sizes[-1]}"
    return (
        f"layouts with {named} sequences in a micro-batch train different losses: model.aux_loss_coefficient balances"
        " experts over the tokens of a micro-batch"
    )


ROUTERS_CHOICE = Routing()
"""Routing that is not forced."""
