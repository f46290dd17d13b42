"""Specs for other trainers, one with every layout field that each supports."""

from __future__ import annotations

from typing import Any

from search_spaces.engines import engines_of
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from tests import kit
from trials.measure_rules import MeasureRules
from trials.trial import TrialSpec

GPT2 = kit.model(num_layers=8)
LLAMA = kit.model(num_layers=8, num_key_value_heads=2, ffn_hidden_size=192, tied_embeddings=False, **kit.LLAMA)
RULES = MeasureRules(min_steps=5, max_steps=20, max_warmup_steps=10)


def spec_of(kind: str, model: ModelShape = GPT2, trainer: dict[str, Any] | None = None, **fields: Any) -> TrialSpec:
    """A spec on 8 ranks, unless the layout's fields say otherwise."""
    defaults = {"data_parallel": 2, "grad_accum_steps": 4, "precision": "bf16", "attention_kernel": "flash"}
    layout = Layout(**{**defaults, "engine": engines_of(kind)[-1], **fields}).canonical()
    section = {"kind": kind, "script": "/opt/pretrain_gpt.py", **(trainer or {})}
    return kit.trial_of(layout, model=model, gpus_per_node=8, measure=RULES, trainer=section)
