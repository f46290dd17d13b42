"""Recipes by which linear layers multiply floats of 8 and 4 bits. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from search_spaces.engines import TORCHTITAN


@dataclass(frozen=True)
class MatmulRecipe:
    """Recipe of a word of `matmul_precision`.

    `arithmetic` is the products', as `Accelerator.peak_flops` names it; `products_in_16_bits` of a layer's three stay.
    `multiple` divides the dimensions of a rank's products. Scaling an element moves `moved_bytes`. `kept_bytes` are
    those of an element that is stored for the backward pass, its scale included; None where it is stored in 16 bits.
    Unless it `has_experts`, those that tokens are routed to stay in 16 bits.
    """

    arithmetic: str
    multiple: int
    moved_bytes: float
    kept_bytes: float | None = None
    products_in_16_bits: int = 0
    has_experts: bool = True


_TWO_READS, _ONE_READ = 6, 4
"""Bytes moved for an element in 16 bits: read, where its scale is not known yet twice, and written in 8 bits, as it is
and transposed."""

TORCHAO_RECIPES: Mapping[str, MatmulRecipe] = {
    # A scale for each row. The second has the products for the weights' gradients in 16 bits.
    "fp8_rowwise": MatmulRecipe("fp8", 16, _TWO_READS, has_experts=False),
    "fp8_rowwise_with_gw_hp": MatmulRecipe("fp8", 16, _TWO_READS, products_in_16_bits=1, has_experts=False),
    "fp8_tensorwise": MatmulRecipe("fp8", 16, _TWO_READS, has_experts=False),
    "mxfp8": MatmulRecipe("fp8", 32, _ONE_READ, has_experts=False),
}
"""Recipes of torchao for engine torchtitan: torchao/float8/config.py, prototype/moe_training/mxfp8_linear.py. Inputs
are stored in 16 bits, weights converted for each product. torchtitan has nvfp4 with its backend spmd_types alone
(models/llama3/config_registry.py), for which torch 2.13 has no FSDP2."""

TRANSFORMER_ENGINE_RECIPES: Mapping[str, MatmulRecipe] = {
    # A scale for each tensor, from the history of its largest values, or from its present ones.
    "fp8_delayed": MatmulRecipe("fp8", 16, _ONE_READ, 1),
    "fp8_tensorwise": MatmulRecipe("fp8", 16, _TWO_READS, 1),
    # An fp32 scale for 128 values of an input and for 128 x 128 of a weight.
    "fp8_blockwise": MatmulRecipe("fp8", 16, _ONE_READ, 1 + 4 / 128),
    # An 8-bit scale for 32 values.
    "mxfp8": MatmulRecipe("fp8", 32, _ONE_READ, 1 + 1 / 32),
    # An 8-bit scale for 16 values, and one for the tensor.
    "nvfp4": MatmulRecipe("fp4", 32, 2 + 2 + 1, 1 / 2 + 1 / 16),
}
"""Recipes of Transformer Engine (transformer_engine/common/recipe/__init__.py). Multiples: megatron-core,
megatron/core/fp8_utils.py, get_fp8_align_size, and fp4_utils.py, get_fp4_align_size."""

MATMUL_RECIPES: Mapping[str, MatmulRecipe] = {**TORCHAO_RECIPES, **TRANSFORMER_ENGINE_RECIPES}
"""Every recipe by its word, as engines other than torchtitan have it."""


def recipe_of(matmul_precision: str, engine: str) -> MatmulRecipe | None:
    """The engine's recipe of a word; None for products in 16 bits or more."""
    recipes = TORCHAO_RECIPES if engine == TORCHTITAN else MATMUL_RECIPES
    return recipes.get(matmul_precision)
