"""Arithmetic of a layout's matrix products, and the peak that bounds it. Standard library only."""

from __future__ import annotations

import math

from search_spaces.hardware.cluster import BLACKWELL, Accelerator, chip_of
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.matmul_recipes import MATMUL_RECIPES, recipe_of


def arithmetic_of(layout: Layout) -> str:
    """The fastest arithmetic among a layout's matrix products, as `Accelerator.peak_flops` names it."""
    recipe = recipe_of(layout.matmul_precision, layout.engine)
    return layout.precision if recipe is None else recipe.arithmetic


def peak_flops_of(accelerator: Accelerator, layout: Layout) -> float | None:
    """Dense peak, FLOP/s, of the layout's arithmetic: what MFU and HFU are relative to. None where it is unknown."""
    return accelerator.peak_flops_for(arithmetic_of(layout))


def has_recipe(accelerator: Accelerator, matmul_precision: str) -> bool:
    """True if the accelerator multiplies by this recipe. Those with 4 bits scale blocks of 8 bits, too (mxfp8)."""
    needed = "fp4" if matmul_precision == "mxfp8" else MATMUL_RECIPES[matmul_precision].arithmetic
    is_nvidias = matmul_precision == "nvfp4"
    known = accelerator.peak_flops_for(needed) is not None
    return known and (not is_nvidias or chip_of(accelerator.name) in BLACKWELL)


def speedup_over_fp16(accelerator: Accelerator | None, arithmetic: str) -> float:
    """Ratio of an arithmetic's peak to that of fp16, at least 1, and 1 where one of them is unknown: a measured product
    of fp16 bounds others by it."""
    peaks = accelerator.peak_flops if accelerator is not None else {}
    return max(1.0, peaks.get(arithmetic, 0.0) / peaks.get("fp16", math.inf))
