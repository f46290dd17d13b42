"""GPT-NeoX configurations for a layout, based on one of the user's. Standard library only.

Key names: GPT-NeoX megatron/neox_arguments/{neox_args,deepspeed_args}.py as of 2026-05.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from search_spaces.model_shape import ModelShape
from trials.trainers.common.deepspeed_config import fp32_sums, zero_section
from trials.trainers.common.steps import NEVER, train_iterations
from trials.trial import TrialSpec

_WRITES_CHECKPOINTS = ("save", "extra_save_iters", "checkpoint_factor", "checkpoint_scale")
_GATES = {"silu": "swiglu", "relu": "reglu"}
_PRECISIONS = {"fp32": "fp32", "bf16": "bfloat16", "fp16": "fp16"}


def neox_config(spec: TrialSpec, template: Mapping[str, Any]) -> dict[str, Any]:
    """The template with the values of layout, model and rules; keys with underscores."""
    iterations = train_iterations(spec)
    return {
        **{key: value for key, value in neox_layout(spec, template).items() if key not in _WRITES_CHECKPOINTS},
        "train_iters": iterations,
        "lr_decay_iters": iterations,
        "log_interval": 1,
        "steps_per_print": NEVER,
        "eval_interval": NEVER,
        "seed": spec.seed,
    }


def neox_layout(spec: TrialSpec, template: Mapping[str, Any]) -> dict[str, Any]:
    """The template with the values of layout, model and batch, and its own length and checkpoints."""
    base = {key.replace("-", "_"): value for key, value in template.items()}
    kept = {key: value for key, value in base.items() if key not in ("bf16", "precision")}
    return {**kept, **_model(spec.model), **_layout(spec, base)}


def neox_arguments(config: Mapping[str, Any]) -> list[str]:
    """The arguments of train.py, as deepy.py passes them: the whole configuration in base64."""
    return ["--megatron_config", base64.urlsafe_b64encode(json.dumps(config).encode()).decode()]


def neox_model_keys(model: ModelShape) -> dict[str, Any]:
    """Keys of a template by which GPT-NeoX would train another model, with the values for this one."""
    return {"activation": _activation(model), "sliding_window_width": None, "moe_num_experts": 1}


def _model(model: ModelShape) -> dict[str, Any]:
    return {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_kv_heads": model.num_key_value_heads,
        # A gated MLP gets two thirds, half of it for the gate, rounded up (megatron/model/transformer.py).
        "intermediate_size": model.ffn_hidden_size * (3 if model.gated_mlp else 1),
        "mlp_multiple_of": 1,
        "activation": _activation(model),
        "seq_length": model.seq_length,
        "max_position_embeddings": model.seq_length,
        "norm": model.norm,
        "pos_emb": model.position_embedding,
        "rotary_emb_base": model.rotary_base,
        "no_weight_tying": not model.tied_embeddings,
        "use_bias_in_attn_linear": model.has_biases,
        "use_bias_in_mlp": model.has_biases,
        "use_qk_layernorm": False,
    }


def _activation(model: ModelShape) -> str:
    return _GATES.get(model.mlp_activation, model.mlp_activation) if model.gated_mlp else model.mlp_activation


def _layout(spec: TrialSpec, base: Mapping[str, Any]) -> dict[str, Any]:
    layout = spec.layout
    recompute = layout.activation_checkpointing == "full"
    kernel = "flash" if layout.attention_kernel == "flash" else "global"
    return {
        # 0 disables DeepSpeed's pipeline, which does not support ZeRO 2 and 3.
        "pipe_parallel_size": 0 if layout.zero_stage > 1 else layout.pipeline_parallel,
        "model_parallel_size": layout.tensor_parallel,
        "sequence_parallel": layout.sequence_parallel,
        # The tokenizer's vocabulary is padded to a multiple of this and the tensor degree: here to the model's own.
        "make_vocab_size_divisible_by": spec.model.vocab_size // layout.tensor_parallel,
        "train_batch_size": spec.global_batch_size,
        "train_micro_batch_size_per_gpu": layout.micro_batch_size,
        "gradient_accumulation_steps": layout.grad_accum_steps,
        "zero_optimization": zero_section(layout, base.get("zero_optimization") or {}),
        "checkpoint_activations": recompute,
        **({"checkpoint_num_layers": 1} if recompute else {}),
        "attention_config": [[[kernel], spec.model.num_layers]],
        **_precision(layout.precision, base.get("fp16") or {}),
        **fp32_sums(layout),
    }


def _precision(precision: str, fp16: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the precision; the user's loss scaling stays with fp16."""
    sections = {"bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {**fp16, "enabled": True}}}
    off = {} if precision == "fp16" else {"fp16": {"enabled": False}}
    return {"precision": _PRECISIONS[precision], **off, **sections.get(precision, {})}
