"""Rules of engine accelerate: transformers' models under accelerate. Standard library only.

transformers 5.23: models/gpt2 and models/llama; accelerate 1.15: accelerator.py and utils/fsdp_utils.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces.engines import ACCELERATE
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.engine_rules import Rule, RuleViolation, engine_limits, sharded_replicas

_SHAPES = (("rotary", "rmsnorm", True), ("learned", "layernorm", False))
"""Positions, norm and gated MLP of transformers' Llama and GPT-2."""


def _shape(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    found = (model.position_embedding, model.norm, model.gated_mlp)
    if found not in _SHAPES:
        yield RuleViolation(
            "model",
            f"the model has {found[0]} positions, {found[1]} and gated_mlp {str(found[2]).lower()}",
            "engine accelerate builds transformers' Llama (rotary, rmsnorm, gated_mlp true) or GPT-2 (learned,"
            " layernorm, gated_mlp false)",
            "use one of these shapes, or another engine",
        )
    elif model.position_embedding == "learned" and model.num_key_value_heads != model.num_attention_heads:
        yield RuleViolation(
            "kv_heads",
            f"num_key_value_heads is {model.num_key_value_heads} with {model.num_attention_heads} attention heads",
            "transformers' GPT-2 has a key-value head for each attention head",
            f"set num_key_value_heads to {model.num_attention_heads}, or use a Llama's shape",
        )


ACCELERATE_RULES: tuple[Rule, ...] = (
    _shape,
    sharded_replicas,
    engine_limits(
        ACCELERATE,
        {
            "tensor_parallel": (1,),
            "pipeline_parallel": (1,),
            "zero_stage": (0, 2, 3),
            "offload": ("none",),
            "activation_checkpointing": ("none", "full"),
            "precision": ("fp32", "bf16"),
            "overlap_comm": (False,),
            "bucket_mib": (None,),
        },
    ),
)
"""DDP and FSDP always overlap; their buckets and groups are no keys of accelerate's configuration."""
