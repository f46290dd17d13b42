"""Choices of the options and keys that a recipe's exports use, as the trainers declare them, and the source of that."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

Choices = Mapping[str, tuple[str, ...]]

_BOTH: Choices = {"recompute-granularity": ("full", "selective"), "recompute-method": ("uniform", "block")}

# NVIDIA/Megatron-LM megatron/training/arguments.py at 000c4ac24f61159c138b0975def722c65245983c; those of 8 and 4 bits
# by the parser of d98e8a64 (2026-08).
MEGATRON_LM: Choices = {
    **_BOTH,
    "data-parallel-sharding-strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
    "ckpt-format": ("torch", "torch_dist", "zarr", "torch_dcp", "fsdp_dtensor"),
    "cuda-graph-impl": ("none", "local", "transformer_engine"),
    "attention-backend": ("flash", "fused", "unfused", "local", "auto"),
    "normalization": ("LayerNorm", "RMSNorm"),
    "position-embedding-type": ("learned_absolute", "rope", "mrope", "relative", "none"),
    "fp8-format": ("e4m3", "hybrid"),
    "fp8-recipe": ("tensorwise", "delayed", "mxfp8", "blockwise", "custom"),
    "fp4-format": ("e2m1",),
    "exp-avg-dtype": ("fp32", "fp16", "bf16", "fp8"),
    "exp-avg-sq-dtype": ("fp32", "fp16", "bf16", "fp8"),
    "softmax-type": ("vanilla", "off-by-one", "learnable"),
    "moe-router-load-balancing-type": ("aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"),
    "moe-router-dtype": ("fp32", "fp64"),
    "moe-flex-dispatcher-backend": ("deepep", "hybridep"),
    "moe-token-dispatcher-type": ("allgather", "alltoall", "flex"),
    "rope-type": ("rope", "yarn"),
}

# microsoft/Megatron-DeepSpeed megatron/arguments.py at c84829e577dc4f3914c8f8071c95643795c700cc, and what
# deepspeed.add_config_arguments of DeepSpeed 0.19.8 adds to it.
MEGATRON_DEEPSPEED: Choices = {**_BOTH, "normalization": ("layernorm", "rmsnorm")}

# EleutherAI/gpt-neox megatron/neox_arguments/neox_args.py at 8ee67f4697ba03a618961c2bbd020ce8f9542fac; what a gated MLP
# is made of by model/transformer.py at ea7aefd8 (2026-05).
GPT_NEOX: Choices = {
    "activation": ("gelu", "geglu", "relu", "silu", "reglu", "swiglu"),
    "norm": ("layernorm", "rmsnorm", "non_parametric_layernorm", "scalenorm", "te_rmsnorm", "te_layernorm"),
    "pos_emb": ("learned", "rotary", "sinusoidal", "rpe", "alibi", "none"),
    "precision": ("fp16", "fp32", "bfloat16"),
}

# huggingface/nanotron src/nanotron/config: config.py at 00708b80c88ee7c05c89502e80c3201df916d774, parallelism_config.py
# at 19f88fbe454691f9bfcf98d6e3433dd7bcb82389.
NANOTRON: Choices = {
    "model.dtype": ("float32", "bfloat16", "float16"),
    "parallelism.pp_engine": ("1f1b", "afab"),
    "parallelism.tp_mode": ("ALL_REDUCE", "REDUCE_SCATTER"),
}

_IN_8_OR_4_BITS = ("fp8_delayed_scaling", "fp8_current_scaling", "fp8_subchannel_scaling", "mxfp8", "nvfp4")
# The packages megatron-bridge 0.6.0 (training/config.py, models/gpt_provider.py, training/mixed_precision.py) and
# megatron-core 0.16.1 (transformer_config.py, distributed_data_parallel_config.py).
MEGATRON_BRIDGE: Choices = {
    **{f"model.{name.replace('-', '_')}": choices for name, choices in MEGATRON_LM.items()},
    "model.position_embedding_type": ("learned_absolute", "rope", "yarn"),
    "model.moe_router_load_balancing_type": ("none",),
    "model.moe_router_score_function": ("softmax", "sigmoid"),
    "mixed_precision": ("bf16_mixed", *(f"bf16_with_{recipe}_mixed" for recipe in _IN_8_OR_4_BITS)),
    "ddp.data_parallel_sharding_strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
    "checkpoint.ckpt_format": ("torch_dist", "zarr", "fsdp_dtensor"),
}

_SEVERAL = ("recompute-modules", "cuda-graph-scope", "cp-comm-type", "hierarchical-context-parallel-sizes")
"""Options with any number of values."""


def given_options(words: Sequence[str], choices: Choices) -> dict[str, Any]:
    """The options of a command line by their names with underscores; None for one that is not given. AssertionError for
    a value that the trainer's parser would reject."""
    found: dict[str, Any] = defaultdict(lambda: None)
    for option, *values in _split(words):
        name = option.removeprefix("--")
        assert {*values} <= {*choices.get(name, values)}, f"{option} is {values}"
        read = [*map(_value, values)]
        found[name.replace("-", "_")] = read if name in _SEVERAL else read[0] if read else True
    return found


def _split(words: Sequence[str]) -> list[list[str]]:
    """Each option with its values."""
    found: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            found.append([])
        found[-1].append(word)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def require_declared(config: Mapping[str, Any], choices: Choices) -> None:
    """AssertionError for a value that is none of the trainer's choices."""
    for key, known in choices.items():
        assert _at(config, key) in (None, *known), f"{key} is {_at(config, key)!r}"


def _at(config: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key, in a flat or a nested configuration."""
    section, _, inner = key.partition(".")
    return config[key] if key in config else _at(config.get(section) or {}, inner) if inner else config.get(key)
