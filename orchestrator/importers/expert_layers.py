"""Layers with experts, as a search file says them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product


def expert_pattern(has_experts: Sequence[bool]) -> tuple[int, int] | None:
    """(num_dense_layers, expert_layer_every) of a model whose layers have experts or an MLP as said; None where no two
    numbers say it."""
    layers = range(len(has_experts))
    for every, dense in product((number + 1 for number in layers), layers):
        if all(has_experts[layer] == (layer >= dense and (layer - dense + 1) % every == 0) for layer in layers):
            return dense, every
    return None
