"""Arithmetic of a layout's matrix products, and the peak that bounds it. Standard library only."""

from __future__ import annotations

import math

from search_spaces.hardware.cluster import Accelerator
from search_spaces.layouts.layout import FP8_RECIPES, Layout


def arithmetic_of(layout: Layout) -> str:
    """The fastest arithmetic among a layout's matrix products, as `Accelerator.peak_flops` names it."""
    return "fp8" if layout.matmul_precision in FP8_RECIPES else layout.precision


def peak_flops_of(accelerator: Accelerator, layout: Layout) -> float | None:
    """Dense peak, FLOP/s, of the layout's arithmetic: what MFU and HFU are relative to. None where it is unknown."""
    return accelerator.peak_flops_for(arithmetic_of(layout))


def speedup_over_fp16(accelerator: Accelerator | None, arithmetic: str) -> float:
    """Ratio of an arithmetic's peak to that of fp16, at least 1, and 1 where one of them is unknown: a measured product
    of fp16 bounds others by it."""
    peaks = dict(accelerator.peak_flops) if accelerator is not None else {}
    return max(1.0, peaks.get(arithmetic, 0.0) / peaks.get("fp16", math.inf))
