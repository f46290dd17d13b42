"""transformers' causal language model of a search's shape, without dropout: GPT-2's, or Llama's, Qwen2's and Qwen3's.

Written for transformers 5.23: modeling_*.py of models/gpt2, models/llama, models/qwen2 and models/qwen3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_utils import PreTrainedModel

from search_spaces.model_shape import NORM_EPSILON, ModelShape

ATTENTION = {"math": "eager", "flash": "sdpa"}
"""Names of transformers' attention implementations; `sdpa` is torch's scaled_dot_product_attention."""


ACTIVATIONS: Mapping[str, str] = {
    "gelu": "gelu_pytorch_tanh",
    "silu": "silu",
    "relu": "relu",
    "squared_relu": "relu2",
}
"""Names of transformers' activations."""


def build_model(model: ModelShape, attention_kernel: str) -> PreTrainedModel:
    """The model in host memory, its weights allocated and not written: what is then sharded takes no memory whole."""
    if model.position_embedding == "learned":
        return _unwritten(GPT2LMHeadModel, _gpt2_config(model, attention_kernel)).train()
    kind, config_of = _rotary_model(model)
    config = config_of(**_rotary_settings(model, attention_kernel))
    built: Any = _unwritten(kind, config)
    built.model.rotary_emb = type(built.model.rotary_emb)(config)  # its buffers were not written either
    return built.train()


def _rotary_model(model: ModelShape) -> tuple[type[PreTrainedModel], type[PreTrainedConfig]]:
    """Class of a model with rotary positions, and of its configuration."""
    if model.qk_norm:
        return Qwen3ForCausalLM, Qwen3Config
    return (Qwen2ForCausalLM, Qwen2Config) if model.qkv_bias else (LlamaForCausalLM, LlamaConfig)


def _unwritten(kind: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    with torch.device("meta"):
        built = kind(config)
    built.to_empty(device="cpu")
    built.tie_weights()
    return built


def _common(model: ModelShape, attention_kernel: str) -> dict[str, Any]:
    return {
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tied_embeddings,
        "use_cache": False,
        "attn_implementation": ATTENTION[attention_kernel],
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _rotary_settings(model: ModelShape, attention_kernel: str) -> dict[str, Any]:
    """Settings of Llama and Qwen. Qwen2's attention reads `head_dim`, which its configuration does not declare."""
    return {
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_size,
        "hidden_act": ACTIVATIONS[model.mlp_activation],
        "max_position_embeddings": model.seq_length,
        "rms_norm_eps": NORM_EPSILON,
        "rope_parameters": {"rope_type": "default", "rope_theta": float(model.rotary_base)},
        **_common(model, attention_kernel),
    }


def _gpt2_config(model: ModelShape, attention_kernel: str) -> GPT2Config:
    return GPT2Config(
        n_embd=model.hidden_size,
        n_inner=model.ffn_hidden_size,
        n_layer=model.num_layers,
        n_head=model.num_attention_heads,
        n_positions=model.seq_length,
        layer_norm_epsilon=NORM_EPSILON,
        activation_function=ACTIVATIONS[model.mlp_activation],
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        **_common(model, attention_kernel),
    )
