"""Models that are trained to show parity with a plain GPT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from search_spaces.model_shape import ModelShape

_GPT2 = ModelShape(
    num_layers=6,
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=4,
    ffn_hidden_size=256,
    gated_mlp=False,
    vocab_size=32,
    seq_length=32,
    tied_embeddings=False,
    position_embedding="learned",
    norm="layernorm",
)
_LLAMA = replace(
    _GPT2,
    num_layers=8,
    num_attention_heads=8,
    ffn_hidden_size=192,
    gated_mlp=True,
    position_embedding="rotary",
    norm="rmsnorm",
)
DRAWN_SHAPES = {
    "gpt2": _GPT2,
    "gpt2-tied": replace(_GPT2, num_layers=4, tied_embeddings=True),
    "llama": _LLAMA,
    "llama-tied": replace(_LLAMA, num_layers=4, num_key_value_heads=8, tied_embeddings=True),
}
"""Smallest models that show everything: six layers are not a multiple of four stages, eight are two chunks on each of
four; an untied one has more than one bucket of 1 MiB; `llama` shares each key-value head between two heads."""

SHAPES = {
    **DRAWN_SHAPES,
    "mistral": replace(_LLAMA, num_layers=4, attention_head_size=16, rotary_base=1_000_000),
    "geglu": replace(_LLAMA, num_layers=4, attention_head_size=16, activation="gelu", rotary_base=500_000),
    "llama-long": replace(_LLAMA, num_layers=4, seq_length=256),
    "qwen3-long": replace(_LLAMA, num_layers=2, attention_head_size=16, qk_norm=True, seq_length=512),
    "mixtral-long": replace(
        _LLAMA, num_layers=2, num_experts=4, experts_per_token=2, expert_ffn_hidden_size=32, seq_length=256
    ),
    "qwen2": replace(_LLAMA, num_layers=4, qkv_bias=True),
    "qwen3": replace(_LLAMA, num_layers=4, attention_head_size=16, qk_norm=True, rotary_base=1_000_000),
    "gemma": replace(
        _LLAMA,
        num_layers=2,
        qk_norm=True,
        activation="gelu",
        tied_embeddings=True,
        sliding_window=8,
        full_attention_every=2,
        post_norms=True,
    ),
    "gpt-oss": replace(
        _LLAMA, num_layers=4, linear_biases=True, sliding_window=8, full_attention_every=2, attention_sinks=True
    ),
    "gpt2-documents": replace(_GPT2, num_layers=4, document_length=16.0),
    "llama-documents": replace(_LLAMA, num_layers=4, document_length=16.0),
    "llama-long-documents": replace(_LLAMA, num_layers=2, seq_length=256, document_length=128.0),
    "gpt-oss-documents": replace(
        _LLAMA, num_layers=4, sliding_window=8, full_attention_every=2, attention_sinks=True, document_length=16.0
    ),
    "mixtral": replace(
        _LLAMA, num_layers=4, num_experts=4, experts_per_token=2, expert_ffn_hidden_size=96, num_dense_layers=2
    ),
    "deepseek-moe": replace(
        _LLAMA,
        num_layers=4,
        num_experts=8,
        experts_per_token=2,
        expert_ffn_hidden_size=64,
        shared_expert_ffn_hidden_size=64,
        num_dense_layers=1,
        expert_layer_every=3,
    ),
    "balanced-moe": replace(
        _LLAMA,
        num_layers=4,
        num_experts=4,
        experts_per_token=2,
        expert_ffn_hidden_size=96,
        aux_loss_coefficient=0.1,
    ),
    "gpt-oss-moe": replace(
        _LLAMA,
        num_layers=2,
        linear_biases=True,
        activation="clamped_swiglu",
        num_experts=4,
        experts_per_token=2,
        expert_ffn_hidden_size=64,
    ),
    "nemotron": replace(_LLAMA, num_layers=4, ffn_hidden_size=256, gated_mlp=False, activation="squared_relu"),
}
"""Those, and models with features that not every engine builds. Two layers of `gemma`: with four, ten steps of one rank
differ by 9e-6 from those of the plain GPT, since norms on small outputs amplify what is rounded. With `documents` each
sequence is several, which the plain GPT trains one by one."""

SHAPE_CHANGES_BY_PRECISION: Mapping[str, Mapping[str, Any]] = {
    "fp32": {},
    "bf16": {"num_layers": 4, "hidden_size": 32, "ffn_hidden_size": 128, "vocab_size": 128, "seq_length": 256},
    "fp16": {"num_layers": 4},
}
"""Changes to the shapes in each precision. A gradient norm of 2 is not reproducible to 1e-3 where each of eight layers
rounds to 8 bits: bf16 weights and autocast differ by that much. With four narrow layers, a large vocabulary and many
tokens the norm is 0.5, and they differ by half of 1e-3. fp16 is slow on a CPU."""


@cache
def model_of(shape: str, precision: str) -> ModelShape:
    """The model of this name, as it is trained in this precision."""
    return replace(SHAPES[shape], **SHAPE_CHANGES_BY_PRECISION[precision])
