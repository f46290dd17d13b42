"""Shares of the layers whose parts are computed again in the backward pass. Pure; numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from search_spaces.layouts.layout import AXES
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape


@dataclass(frozen=True)
class RecomputedShares:
    """Share of a stage's layers, from 0 to 1, that are recomputed as a whole, and by module 1 where every layer's is;
    each of shape (layouts,).

    torchtitan's cheap operations (`ops`) are all but attention and matrix multiplications, and every second of these:
    attention's output and the MLP's value (torchtitan/distributed/activation_checkpoint.py, SelectiveAC).
    """

    layers: np.ndarray
    modules: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, model: ModelShape, layouts: LayoutTable) -> RecomputedShares:
        is_full = layouts.equals("activation_checkpointing", "full")
        chunks = layouts["pipeline_parallel"] * layouts["virtual_pipeline_stages"]
        of_chunk = layouts["recompute_layers"] * chunks / model.num_layers
        share = np.where(layouts.equals("recompute_layers", None), 1, np.minimum(1, of_chunk))
        is_selective = layouts.equals("activation_checkpointing", "selective")
        words = AXES["recompute_modules"].single_words
        modules = {module: is_selective * layouts.has_part("recompute_modules", module) for module in words}
        return cls(is_full * share, modules)

    @property
    def ops(self) -> np.ndarray:
        return self.modules["ops"]

    def mlps(self, model: ModelShape) -> np.ndarray:
        """Share of the layers whose whole MLP, or router and experts, are recomputed."""
        experts = model.num_expert_layers / model.num_layers
        mlps: np.ndarray = (1 - experts) * self.modules["mlp"] + experts * self.modules["moe"]
        return mlps

    def parameters(self, model: ModelShape) -> np.ndarray:
        """Parameters of a layer's products that modules compute again, a mean over the layers."""
        parts = (share * model.recomputed_parameters(module) for module, share in self.modules.items())
        return sum(parts, np.zeros(1))
