"""Rules of engine accelerate: transformers' models under accelerate. Standard library only.

transformers 5.23: models/gpt2, models/llama, models/qwen2 and models/qwen3; accelerate 1.15: accelerator.py and
utils/fsdp_utils.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces.engines import ACCELERATE
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.engine_rules import Rule, RuleViolation, clashes, engine_limits, sharded_replicas

_SHAPES = (("rotary", "rmsnorm", True), ("learned", "layernorm", False))
"""Positions, norm and gated MLP of transformers' Llama and Qwen, and of its GPT-2."""


def _shape(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    found = (model.position_embedding, model.norm, model.gated_mlp)
    if found not in _SHAPES:
        yield RuleViolation(
            "model",
            f"the model has {found[0]} positions, {found[1]} and gated_mlp {str(found[2]).lower()}",
            "engine accelerate builds transformers' Llama, Qwen2 and Qwen3 (rotary, rmsnorm, gated_mlp true) or GPT-2"
            " (learned, layernorm, gated_mlp false)",
            "use one of these shapes, or another engine",
        )
    elif model.position_embedding == "learned":
        yield from _gpt2(model)
    else:
        yield from _llama(model)


def _gpt2(model: ModelShape) -> Iterator[RuleViolation]:
    if model.num_key_value_heads != model.num_attention_heads:
        yield RuleViolation(
            "kv_heads",
            f"num_key_value_heads is {model.num_key_value_heads} with {model.num_attention_heads} attention heads",
            "transformers' GPT-2 has a key-value head for each attention head",
            f"set num_key_value_heads to {model.num_attention_heads}, or use a Llama's shape",
        )
    if model.query_size != model.hidden_size:
        yield RuleViolation(
            "attention_head_size",
            f"attention_head_size is {model.head_size} with hidden_size {model.hidden_size} and"
            f" {model.num_attention_heads} attention heads",
            "transformers' GPT-2 has heads of hidden_size / num_attention_heads",
            "leave attention_head_size out, or use a Llama's shape",
        )


def _llama(model: ModelShape) -> Iterator[RuleViolation]:
    is_llama = not (model.qk_norm or model.qkv_bias)
    if is_llama and model.hidden_size % model.num_attention_heads:
        yield RuleViolation(
            "attention_head_size",
            f"hidden_size {model.hidden_size} is not a multiple of num_attention_heads {model.num_attention_heads}",
            "transformers' Llama takes only a hidden_size that is one, whatever the size of its heads",
            "use another num_attention_heads, or another engine",
        )


ACCELERATE_RULES: tuple[Rule, ...] = (
    _shape,
    clashes(
        "model.qk_norm",
        {"model.position_embedding": ("learned",)},
        "transformers' GPT-2 does not normalise queries and keys",
    ),
    clashes(
        "model.qk_norm",
        {"model.qkv_bias": (True,)},
        "transformers' Qwen3 normalises queries and keys and has no biases of these alone; its Qwen2 has the biases and"
        " normalises nothing",
    ),
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
