"""Shares of the layers whose parts are computed again in the backward pass. Pure; numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from search_spaces.layouts.layout import CHOICES, modules_of
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape


@dataclass(frozen=True)
class RecomputedShares:
    """Share of a stage's layers, from 0 to 1, that are recomputed as a whole, and of those whose core attention, MLP or
    cheap operations are; each of shape (layouts,).

    torchtitan's cheap operations (`ops`) are all but attention and matrix multiplications, and every second of these:
    attention's output and the MLP's value (torchtitan/distributed/activation_checkpoint.py, SelectiveAC).
    """

    layers: np.ndarray
    core_attention: np.ndarray
    mlp: np.ndarray
    ops: np.ndarray

    @classmethod
    def of(cls, model: ModelShape, layouts: LayoutTable) -> RecomputedShares:
        is_full = layouts.equals("activation_checkpointing", "full")
        chunks = layouts["pipeline_parallel"] * layouts["virtual_pipeline_stages"]
        of_chunk = layouts["recompute_layers"] * chunks / model.num_layers
        share = np.where(layouts.equals("recompute_layers", None), 1, np.minimum(1, of_chunk))
        return cls(is_full * share, *(_has_module(layouts, module) for module in ("core_attn", "mlp", "ops")))


def _has_module(layouts: LayoutTable, module: str) -> np.ndarray:
    words = [number for number, word in enumerate(CHOICES["recompute_modules"]) if module in modules_of(word)]
    is_selective = layouts.equals("activation_checkpointing", "selective")
    return (is_selective & np.isin(layouts["recompute_modules"], words)).astype(float)
