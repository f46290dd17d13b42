"""Activations of MLPs and experts, gated or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F

from search_spaces.model_shape import ModelShape

Activation = Callable[[torch.Tensor], torch.Tensor]

SWIGLU_SCALE, SWIGLU_LIMIT = 1.702, 7.0
"""Constants of `clamped_swiglu`; openai/gpt-oss, gpt_oss/torch/model.py, swiglu."""


def activation_of(model: ModelShape) -> Activation:
    """The model's activation: (..., 2 F) -> (..., F) of a gated MLP, whose gate comes first, else elementwise."""
    if model.mlp_activation == "clamped_swiglu":
        return _clamped_swiglu
    activation = _ACTIVATIONS[model.mlp_activation]
    return partial(_gated, activation) if model.gated_mlp else activation


def _gated(activation: Activation, x: torch.Tensor) -> torch.Tensor:
    gate, value = x.chunk(2, -1)
    return activation(gate) * value


def _clamped_swiglu(x: torch.Tensor) -> torch.Tensor:
    gate, value = x.chunk(2, -1)
    gate, value = gate.clamp(max=SWIGLU_LIMIT), value.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
    return gate * torch.sigmoid(SWIGLU_SCALE * gate) * (value + 1)


def _squared_relu(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x).square()


_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "squared_relu": _squared_relu,
}
