"""Model types of Hugging Face that a model section can describe, and what makes a config.json another model's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.config.importers.expert_layers import EXPERT_LAYERS, NO_MODEL_FIELD


@dataclass(frozen=True)
class Family:
    """A model type: the keys that are read, with transformers' values of absent ones, and the fields of a model that
    the type itself decides.

    The keys of a nested mapping are dotted. `layer_types` is repeated up to the number of layers. `written` are the
    names that keys have in the type's files, as in transformers' attribute_map; a file may have either.
    """

    defaults: Mapping[str, Any]
    features: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)


_OF_EVERY_TYPE = dict.fromkeys(("architectures", "dtype", "model_type", "torch_dtype"))
OTHER_TYPE = Family(_OF_EVERY_TYPE)
"""A model type that is not read."""
_NESTED_BASE = ("rope_parameters.rope_theta", "rope_scaling.rope_theta")
_NESTED_SHARE = ("rope_parameters.partial_rotary_factor", "rope_scaling.partial_rotary_factor")
ROTARY_BASE = (*_NESTED_BASE, "rotary_emb_base", "rope_theta")
ROTATED_SHARE = (*_NESTED_SHARE, "rotary_pct", "partial_rotary_factor")
"""Keys of the rotation, first the one that prevails."""
_SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"),
    *("vocab_size", "max_position_embeddings"),
)


def _rotary(*sizes: int, **others: Any) -> dict[str, Any]:
    """Defaults of a type with rotary positions."""
    rotation = {**dict.fromkeys(_NESTED_BASE + _NESTED_SHARE), "rope_theta": 10_000.0, "partial_rotary_factor": 1.0}
    usual = {"attention_dropout": 0.0, "hidden_act": "silu", "tie_word_embeddings": False}
    return {**_OF_EVERY_TYPE, **rotation, **usual, **dict(zip(_SIZES, sizes, strict=True)), **others}


def _grouped(*sizes: int, num_key_value_heads: int | None = None, head_dim: int | None = None, **others: Any) -> dict:
    """Defaults of a type with rotary positions and groups of heads."""
    return _rotary(*sizes, num_key_value_heads=num_key_value_heads, head_dim=head_dim, **others)


_LLAMA = {"position_embedding": "rotary", "norm": "rmsnorm", "gated_mlp": True}
_GPT_NEOX = {"position_embedding": "rotary", "norm": "layernorm", "gated_mlp": False}
_BIASES = {"attention_bias": False, "mlp_bias": False}
_QWEN_WINDOW = {"sliding_window": 4096, "use_sliding_window": False, "layer_types": None, "max_window_layers": 28}
_QWEN = _grouped(32, 4096, 32, 22016, 151936, 32768, num_key_value_heads=32, **_QWEN_WINDOW)
_EVERY_SECOND = ["sliding_attention", "full_attention"]

FAMILIES: Mapping[str, Family] = {
    "llama": Family(_grouped(32, 4096, 32, 11008, 32000, 2048, **_BIASES), _LLAMA),
    "gpt2": Family(
        _OF_EVERY_TYPE
        | {**dict(zip(_SIZES, (12, 768, 12, None, 50257, 1024), strict=True)), "n_inner": None}
        | {"activation_function": "gelu_new", "tie_word_embeddings": True}
        | {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
        {**_GPT_NEOX, "position_embedding": "learned"},
        {"num_hidden_layers": "n_layer", "hidden_size": "n_embd", "num_attention_heads": "n_head"}
        | {"max_position_embeddings": "n_positions"},
    ),
    "gpt_neox": Family(
        _rotary(44, 6144, 64, 24576, 50432, 2048, hidden_act="gelu", rotary_emb_base=10_000, rotary_pct=0.25)
        | {"attention_bias": True, "hidden_dropout": 0.0, "use_parallel_residual": True},
        _GPT_NEOX,
    ),
    "qwen2": Family(_QWEN, {**_LLAMA, "qkv_bias": True}),
    "qwen3": Family(_QWEN | {"head_dim": 128, "attention_bias": False}, {**_LLAMA, "qk_norm": True}),
    "mistral": Family(_grouped(32, 4096, 32, 14336, 32000, 131072, num_key_value_heads=8, sliding_window=4096), _LLAMA),
    "gemma2": Family(
        _grouped(26, 2304, 8, 9216, 256000, 8192, num_key_value_heads=4, head_dim=256, attention_bias=False)
        | {"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
        | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
        | {"sliding_window": 4096, "layer_types": _EVERY_SECOND},
        {**_LLAMA, "post_norms": True},
    ),
    "phi3": Family(
        _grouped(32, 3072, 32, 8192, 32064, 4096, sliding_window=None, embd_pdrop=0.0, resid_pdrop=0.0), _LLAMA
    ),
    "nemotron": Family(
        _grouped(32, 6144, 48, 24576, 256000, 4096, hidden_act="relu2", partial_rotary_factor=0.5, **_BIASES),
        _GPT_NEOX,
    ),
    "mixtral": Family(
        _grouped(32, 4096, 32, 14336, 32000, 131072, num_key_value_heads=8, rope_theta=1_000_000.0, sliding_window=None)
        | {"num_experts": 8, "num_experts_per_tok": 2},
        _LLAMA,
        {"num_experts": "num_local_experts"},
    ),
    "qwen3_moe": Family(
        _grouped(24, 2048, 32, 6144, 151936, 32768, num_key_value_heads=4, attention_bias=False)
        | {"sliding_window": 4096, "use_sliding_window": False, "decoder_sparse_step": 1, "mlp_only_layers": None}
        | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": False},
        {**_LLAMA, "qk_norm": True},
        {"num_experts": "num_local_experts"},
    ),
    "gpt_oss": Family(
        _grouped(36, 2880, 64, 2880, 201088, 131072, num_key_value_heads=8, head_dim=64, rope_theta=150_000.0)
        | {"sliding_window": 128, "layer_types": _EVERY_SECOND, "attention_bias": True, "quantization_config": None}
        | {"num_experts": 128, "num_experts_per_tok": 4},
        {**_LLAMA, "linear_biases": True, "attention_sinks": True, "activation": "clamped_swiglu"},
        {"num_experts": "num_local_experts"},
    ),
    "deepseek_v3": Family(
        _rotary(61, 7168, 128, 18432, 129280, 4096, attention_bias=False, quantization_config=None)
        | {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
        | {"v_head_dim": 128, "first_k_dense_replace": 3, "num_mtp_layers": 1, "moe_intermediate_size": 2048}
        | {"num_local_experts": 256, "n_group": 8, "num_experts_per_tok": 8, "n_shared_experts": 1},
        _LLAMA,
        {"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    ),
}

_DECODER = "a model is a decoder, without an encoder and cross-attention"
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
ANOTHER_MODEL: Mapping[str, str] = {
    **dict.fromkeys(("is_encoder_decoder", "add_cross_attention", "cross_attention_hidden_size"), _DECODER),
    **dict.fromkeys(("text_config", "vision_config", "audio_config"), "images and sound are no part of a model"),
    **dict.fromkeys(_EXPERT_KEYS, "experts of this model type are not read"),
    **dict.fromkeys(("*state_size", "*d_state", "lru_width"), "layers without attention are no part of a model"),
    "use_bidirectional_attention": "a model attends to earlier tokens only",
    "moe_layer_freq": EXPERT_LAYERS,
    **dict.fromkeys(("compression_config", "quantization_config"), "8-bit and 4-bit weights are no precision"),
    **dict.fromkeys(("per_layer_config", "pruned_heads"), NO_MODEL_FIELD),
}
"""Patterns of keys that no model section describes, with the reason. A type's own keys are none of them."""
