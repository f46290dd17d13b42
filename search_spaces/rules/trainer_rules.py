"""Rules of Parlay's own trainer: which layouts its engines cannot run. Standard library only.

Rules of DeepSpeed, torch and megatron-core themselves are in `engine_rules.py`, those of other trainers in their
packages (trials/trainers).
"""

from __future__ import annotations

from typing import Any

from search_spaces.engines import ACCELERATE, MEGATRON_CORE, TORCHTITAN
from search_spaces.rules.engine_rules import (
    DEEPSPEED_RULES,
    MEGATRON_RULES,
    MEGATRON_SCHEDULES,
    TORCH_RULES,
    bf16_reductions,
    overlap_in_pipeline,
    sharded_replicas,
)
from search_spaces.rules.rule import Clash, EngineRules, Rule, at_least, clashes, engine_limits, is_given
from search_spaces.rules.torchtitan_rules import TORCHTITAN_RULES

_sequence = Rule(
    ("model.seq_length", "tensor_parallel"),
    lambda length, tensor: length % tensor,
    "sequence_parallel splits the sequence evenly over the tensor-parallel ranks",
    "use a tensor_parallel that divides seq_length, or set sequence_parallel to false",
    beside={"sequence_parallel": (True,)},
    name="sequence",
)
_rotary = Rule(
    ("model.head_size",),
    lambda size: size % 2,
    "rotary embeddings rotate pairs of a head's elements, so the head size is even",
    "use an even head size (attention_head_size, or hidden_size / num_attention_heads), or learned positions",
    beside={"model.position_embedding": ("rotary",)},
    name="rotary",
)
_experts_as_layers = Rule(
    ("expert_tensor_parallel", "tensor_parallel"),
    lambda split, tensor: split != tensor,
    "engine {engine} splits every expert over the tensor-parallel ranks, as all other layers",
    "set expert_tensor_parallel to {tensor_parallel}, or use another engine",
    beside={"model.num_experts": is_given},
)

_MASKED_FLASH = "torch's flash attention has a causal mask over the whole sequence, and no sinks"
_masked_flash: tuple[Rule, ...] = (
    clashes("attention_kernel", {"model.sliding_window": is_given}, _MASKED_FLASH, values=("flash",)),
    clashes("attention_kernel", {"model.attention_sinks": (True,)}, _MASKED_FLASH, values=("flash",)),
)

_GPT2, _LLAMA = ("learned", "layernorm", False), ("rotary", "rmsnorm", True)
"""Positions, norm and gated MLP of transformers' GPT-2, and of its Llama and Qwen."""

_SHAPE = ("model.position_embedding", "model.norm", "model.gated_mlp")


def _is_shape(values: tuple[Any, ...]) -> dict[str, Clash]:
    return {name: (value,) for name, value in zip(_SHAPE, values, strict=True)}


_IS_GPT2 = _is_shape(_GPT2)

# transformers 5.23: models/gpt2, models/llama, models/qwen2 and models/qwen3; accelerate 1.15: accelerator.py and
# utils/fsdp_utils.py.
_ACCELERATE: tuple[Rule, ...] = (
    Rule(
        _SHAPE,
        lambda *shape: shape not in (_GPT2, _LLAMA),
        "engine accelerate builds transformers' Llama, Qwen2 and Qwen3 (rotary, rmsnorm, gated_mlp true) or GPT-2"
        " (learned, layernorm, gated_mlp false)",
        "use one of these shapes, or another engine",
        name="model",
    ),
    Rule(
        ("model.num_key_value_heads", "model.num_attention_heads"),
        lambda groups, heads: groups != heads,
        "transformers' GPT-2 has a key-value head for each attention head",
        "set num_key_value_heads to {num_attention_heads}, or use a Llama's shape",
        beside=_IS_GPT2,
        name="kv_heads",
    ),
    Rule(
        ("model.attention_head_size", "model.num_attention_heads", "model.hidden_size"),
        lambda size, heads, hidden: size * heads != hidden,
        "transformers' GPT-2 has heads of hidden_size / num_attention_heads",
        "leave attention_head_size out, or use a Llama's shape",
        beside=_IS_GPT2,
    ),
    Rule(
        ("model.hidden_size", "model.num_attention_heads"),
        lambda hidden, heads: hidden % heads,
        "transformers' Llama takes only a hidden_size that num_attention_heads divides",
        "use another num_attention_heads, or another engine",
        beside=_is_shape(_LLAMA) | {"model.qk_norm": (False,), "model.qkv_bias": (False,)},
        name="attention_head_size",
    ),
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
    *engine_limits(
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
"""Transformers' models under accelerate. DDP and FSDP always overlap; their buckets and groups are no keys of
accelerate's configuration."""


OWN_RULES: EngineRules = {
    ACCELERATE: (*_ACCELERATE, _rotary),
    TORCHTITAN: (*TORCHTITAN_RULES, _sequence, _rotary),
    MEGATRON_CORE: (
        *MEGATRON_RULES,
        clashes("model.num_experts", {"model.linear_biases": (True,)}, "engine {engine} has experts without biases"),
        _sequence,
        _rotary,
        *engine_limits(
            MEGATRON_CORE,
            {
                "zero_stage": (0, 1),
                "offload": ("none",),
                "pipeline_schedule": MEGATRON_SCHEDULES,
                "torch_compile": (False,),
            },
        ),
    ),
    "deepspeed": (
        *DEEPSPEED_RULES,
        # With one data-parallel rank ZeRO 1 does what ZeRO 0 would.
        clashes(
            "precision",
            {"zero_stage": (0,), "data_parallel": at_least(2)},
            "DeepSpeed trains correctly in bf16 and fp16 only with ZeRO stage 1, 2 or 3: without ZeRO it starts at"
            " Adam's second step, and in a pipeline it shards the optimizer anyway",
        ),
        *overlap_in_pipeline,
        *bf16_reductions,
        clashes(
            "torch_compile",
            {"zero_stage": (3,)},
            "DeepSpeed's ZeRO 3 gathers weights module by module within a block, which torch.compile would fuse",
        ),
        _sequence,
        _rotary,
        *_masked_flash,
        _experts_as_layers,
        *engine_limits("deepspeed"),
    ),
    "torch": (*TORCH_RULES, _sequence, _rotary, *_masked_flash, _experts_as_layers, *engine_limits("torch")),
}
"""Rules of the engines of Parlay's trainer."""
