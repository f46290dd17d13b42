"""Configurations that torchtitan 0.3.0 comes with: torchtitan/models/llama3, and the defaults of its classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.importers import reasons

Values = Mapping[str, Any]

DEFAULTS: Values = {
    "activation_checkpoint": "selective",
    "compile.components": ["model", "loss"],
    "compile.enable": False,
    "compile.enable_async_tensor_parallel": False,
    "parallelism.data_parallel_replicate_degree": 1,
    "parallelism.data_parallel_shard_degree": -1,
    "parallelism.enable_sequence_parallel": True,
    "parallelism.fsdp_reshard_after_forward": "default",
    "parallelism.pipeline_parallel_degree": 1,
    "parallelism.pipeline_parallel_first_stage_less_layers": 1,
    "parallelism.pipeline_parallel_last_stage_less_layers": 1,
    "parallelism.pipeline_parallel_microbatch_size": 1,
    "parallelism.pipeline_parallel_schedule": "1F1B",
    "parallelism.tensor_parallel_degree": 1,
    "training.disable_cuda_graphs": False,
    "training.dtype": "float32",
    "training.global_batch_size": -1,
    "training.local_batch_size": 8,
    "training.mixed_precision_param": "bfloat16",
    "training.seq_len": 2048,
}
"""Values that count where a whole configuration does not say it."""

_NAMES = ("n_layers", "dim", "n_heads", "n_kv_heads", "hidden_dim", "vocab_size", "enable_weight_tying")
_SIZES = {
    "debugmodel": (6, 256, 16, 16, 768, 2048, False),
    "1B": (16, 2048, 32, 8, 8192, 128256, True),
    "3B": (28, 3072, 24, 8, 8192, 128256, True),
    "8B": (32, 4096, 32, 8, 14336, 128256, False),
    "70B": (80, 8192, 64, 8, 28672, 128256, False),
    "405B": (126, 16384, 128, 8, 53248, 128256, False),
}


def flavor(name: str, attn_backend: str = "flex") -> Values:
    """The model of this flavor; KeyError for an unknown one."""
    sizes = dict(zip(_NAMES, _SIZES[name], strict=True))
    llama3 = {"name": "llama3", **sizes, "rope_theta": 500_000, "attn_backend": attn_backend}
    return {f"model_spec.{key}": value for key, value in llama3.items()}


FLAVORS = tuple(_SIZES)
_DEBUG = {
    **flavor("debugmodel"),
    "loss.num_chunks": 8,
    "parallelism.pipeline_parallel_schedule": "Interleaved1F1B",
}
CONFIGS: Mapping[str, Values] = {
    "llama3_debugmodel": _DEBUG,
    "llama3_debugmodel_varlen_attn": {
        **_DEBUG,
        "model_spec.attn_backend": "varlen",
        "training.disable_cuda_graphs": True,
    },
    "llama3_debugmodel_dist_gemm": {**_DEBUG, "model_spec.tp_gemm_backend": "dist_gemm"},
    "llama3_debugmodel_ce_loss": {name: value for name, value in _DEBUG.items() if name != "loss.num_chunks"},
    "llama3_debugmodel_float8": {**_DEBUG, "model_spec.float8.recipe_name": "rowwise"},
    "llama3_8b": {
        **flavor("8B"),
        "loss.num_chunks": 8,
        "training.local_batch_size": 1,
        "training.seq_len": 8192,
    },
    "llama3_8b_mxfp8": {
        **flavor("8B"),
        "model_spec.mxfp8.fqns": [],
        "loss.num_chunks": 8,
        "compile.enable": True,
        "compile.components": ["model"],
        "training.local_batch_size": 1,
        "training.seq_len": 8192,
    },
    "llama3_70b": {
        **flavor("70B"),
        "loss.num_chunks": 8,
        "activation_checkpoint": "full",
        "parallelism.tensor_parallel_degree": 8,
        "training.seq_len": 8192,
    },
    "llama3_405b": {
        **flavor("405B"),
        "model_spec.float8.recipe_name": "rowwise",
        "model_spec.float8.filter_fqns": ["lm_head"],
        "loss.num_chunks": 8,
        "activation_checkpoint": "full",
        "compile.enable": True,
        "compile.enable_async_tensor_parallel": True,
        "parallelism.tensor_parallel_degree": 8,
        "training.local_batch_size": 2,
        "training.seq_len": 8192,
    },
}
"""Functions of llama3's registry: what they set beside the defaults."""

REFUSED_CONFIGS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("llama3_8b_first_85_pct_layers_nvfp4", "llama3_debugmodel_nvfp4"),
            *("llama3_debugmodel_first_85_pct_layers_nvfp4", "llama3_debugmodel_float8_emulate_lora"),
        ),
        reasons.LOW_PRECISION,
    ),
    "sft_debugmodel": reasons.WHOLE_GPT,
}
"""Functions of llama3's registry that no search file expresses."""

_EXPERIMENTS = {
    "graph_trainer": ("llama3", "deepseek_v3", "qwen3", "muse_glimmer"),
    "autoparallel": ("llama3", "local_map_deepseek_v3"),
    "torchft": ("llama3",),
}
OTHER_MODULES: Mapping[str, str] = {
    **dict.fromkeys(
        ("deepseek_v3", "flux", "gpt_oss", "kimi_k2_7", "muse_glimmer", "qwen3", "qwen3_5"),
        "a search's model is torchtitan's llama3",
    ),
    **dict.fromkeys(
        (
            *("transformers_modeling_backend", "rl", "alphabet_sort", "dapo_math", "search_r1"),
            *(f"{package}.{name}" for package, names in _EXPERIMENTS.items() for name in names),
        ),
        "trials run torchtitan's own trainer, not one of its experiments",
    ),
}
"""Other modules that torchtitan has a short name for, with the reason why they are refused."""
