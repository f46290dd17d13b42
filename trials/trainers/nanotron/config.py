"""Nanotron configurations for a layout, based on one of the user's. Standard library only.

Key names: nanotron src/nanotron/config/{config,parallelism_config,models_config}.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.trainers.common.steps import NEVER, train_iterations
from trials.trial import TrialSpec

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_ACTIVATIONS = {"gelu": "gelu_pytorch_tanh", "squared_relu": "relu2"}
"""nanotron's names of activations that have another one here."""
_OF_OTHER_MODELS = ("sliding_window_size", "rope_scaling", "moe_config", "no_rope_layer")
_SCHEDULES = {"none": "1f1b", "1f1b": "1f1b", "gpipe": "afab"}


def nanotron_config(spec: TrialSpec, template: Mapping[str, Any]) -> dict[str, Any]:
    """The template with the values of layout, model and rules."""
    ours = {
        "general": {"seed": spec.seed},
        "checkpoints": {"checkpoint_interval": NEVER, "save_initial_state": False, "save_final_state": False},
        "logging": {"iteration_step_info_interval": 1},
        "tokens": {"train_steps": train_iterations(spec)},
    }
    return _merged(nanotron_layout(spec, template), ours)


def nanotron_layout(spec: TrialSpec, template: Mapping[str, Any]) -> dict[str, Any]:
    """The template with the values of layout, model and batch, and its own length and checkpoints."""
    layout = spec.layout
    ours = {
        "model": {"dtype": _DTYPES[layout.precision], "model_config": _model(spec.model)},
        "optimizer": {"zero_stage": layout.zero_stage},
        "parallelism": _parallelism(layout),
        "tokens": {
            "sequence_length": spec.model.seq_length,
            "micro_batch_size": layout.micro_batch_size,
            "batch_accumulation_per_replica": layout.grad_accum_steps,
        },
    }
    merged = _merged(template, ours)
    if spec.model.qkv_bias:
        merged["model"]["model_config"] = _as_qwen2(merged["model"]["model_config"])
    if not layout.sequence_parallel:
        merged["parallelism"]["tp_linear_async_communication"] = False  # it requires reduce_scatter
    return merged


def nanotron_model_keys(model: ModelShape) -> dict[str, Any]:
    """Keys of a template by which nanotron would train another model, with the values for this one."""
    said = {
        "hidden_act": _activation(model),
        "attention_bias": model.qkv_bias,
        **dict.fromkeys(_OF_OTHER_MODELS),
    }
    return {f"model.model_config.{name}": value for name, value in said.items()}


def _parallelism(layout: Layout) -> dict[str, Any]:
    return {
        "dp": layout.data_parallel,
        "pp": layout.pipeline_parallel,
        "tp": layout.tensor_parallel,
        "pp_engine": _SCHEDULES[layout.pipeline_schedule],
        "tp_mode": "REDUCE_SCATTER" if layout.sequence_parallel else "ALL_REDUCE",
        "recompute_layer": layout.activation_checkpointing == "full",
    }


def _model(model: ModelShape) -> dict[str, Any]:
    return {
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.seq_length,
        "tie_word_embeddings": model.tied_embeddings,
        "rope_theta": float(model.rotary_base),
        "hidden_act": _activation(model),
    }


def _activation(model: ModelShape) -> str:
    return _ACTIVATIONS.get(model.mlp_activation, model.mlp_activation)


def _as_qwen2(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as Qwen2Config, with biases of queries, keys and values: a Llama ignores them
    (models/llama.py)."""
    kept = {key: value for key, value in config.items() if key != "is_llama_config"}
    return {**kept, "is_qwen2_config": True, "attention_bias": True}


def _merged(base: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Nested merge; `ours` override `base`."""
    merged = dict(base)
    for key, value in ours.items():
        inner = base.get(key)
        merged[key] = _merged(inner, value) if isinstance(value, Mapping) and isinstance(inner, Mapping) else value
    return merged
