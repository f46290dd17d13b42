"""Adapters of a block's linear modules, by the names that transformers gives these (search_spaces/adapters.py).

A block's matrices hold several of these modules, one below the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from search_spaces.adapters import LINEAR_MODULES, adapted_modules
from search_spaces.model_shape import ModelShape
from trials.train.model.initial_weights import InitialMatrices
from trials.train.parallel.tensor_parallel import TensorParallelRanks, sharded

_MATRICES: Mapping[str, str] = {
    "attention_input": "qkv",
    "attention_output": "attention_out",
    "mlp_input": "mlp.linear_in",
    "mlp_product": "mlp.linear_out",
}
"""Linear module of a block by its input."""


class Adapter(nn.Module):
    """Forward hook of a linear module: adds scale x B A x to its outputs from `first` on."""

    def __init__(self, a: torch.Tensor, b: torch.Tensor, scale: float, first: int):
        super().__init__()
        self.a, self.b = (sharded(matrix, TensorParallelRanks()) for matrix in (a, b))
        self.scale, self.first = scale, first

    def forward(self, linear: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        added = F.linear(F.linear(inputs[0], self.a), self.b)
        output.narrow(-1, self.first, added.shape[-1]).add_(added, alpha=self.scale)
        return output


def add_adapters(block: nn.Module, model: ModelShape, matrices: InitialMatrices) -> None:
    """Freeze a block and add its adapters, on one tensor-parallel rank."""
    assert model.adapters is not None
    block.requires_grad_(False)
    query, key = model.query_size, model.key_value_size
    first_rows = {"k_proj": query, "v_proj": query + key, "up_proj": model.mlp_inner_size - model.ffn_hidden_size}
    for name in adapted_modules(model):
        linear = block.get_submodule(_MATRICES[LINEAR_MODULES[name][0]])
        a, b = matrices.adapter_a(name), matrices.adapter_b(name)
        adapter = Adapter(a, b, model.adapters.scale, first_rows.get(name, 0))
        linear.add_module(name.replace(".", "_"), adapter)
        linear.register_forward_hook(adapter)
