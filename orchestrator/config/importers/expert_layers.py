"""Layers with experts, as a search file says them, and the rules of what it cannot say."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

EXPERT_LAYERS = "experts are in each expert_layer_every-th layer after the first num_dense_layers"
ROUTING = "a token's experts are weighted by the softmax of their logits"
NO_MODEL_FIELD = "no field of the model section expresses it"


def expert_pattern(has_experts: Sequence[bool]) -> tuple[int, int] | None:
    """(num_dense_layers, expert_layer_every) of a model whose layers have experts or an MLP as said; None where no two
    numbers say it."""
    layers = range(len(has_experts))
    for every, dense in product((number + 1 for number in layers), layers):
        if all(has_experts[layer] == (layer >= dense and (layer - dense + 1) % every == 0) for layer in layers):
            return dense, every
    return None
