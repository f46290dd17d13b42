"""Configurations that torchtitan 0.3.0 comes with: torchtitan/models/llama3, and the defaults of its classes."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from trials.trainers.table import Values

DEFAULTS: Values = {
    "activation_checkpoint.policy": "selective",
    "compile.components": ["model", "loss"],
    "compile.enable": False,
    "compile.enable_async_tensor_parallel": False,
    "parallelism.context_parallel_degree": 1,
    "parallelism.data_parallel_replicate_degree": 1,
    "parallelism.data_parallel_shard_degree": -1,
    "parallelism.enable_sequence_parallel": True,
    "parallelism.expert_parallel_degree": 1,
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
    "8B": (32, 4096, 32, 8, 14336, 128256, False),
    "70B": (80, 8192, 64, 8, 28672, 128256, False),
    "405B": (126, 16384, 128, 8, 53248, 128256, False),
}


def _llama3(flavor: str, **others: Any) -> Values:
    """A model of this flavor, and options of the training."""
    sizes = zip(_NAMES, _SIZES[flavor], strict=True)
    model = {"name": "llama3", **dict(sizes), "rope_theta": 500_000, "attn_backend": "flex"}
    return {
        **{f"model_spec.{name}": value for name, value in model.items()},
        "loss.num_chunks": 8,
        **{f"training.{name}": value for name, value in others.items()},
    }


_DEBUG = {**_llama3("debugmodel"), "parallelism.pipeline_parallel_schedule": "Interleaved1F1B"}
_8B = _llama3("8B", local_batch_size=1, seq_len=8192)
_LARGE = {"activation_checkpoint.policy": "full", "parallelism.tensor_parallel_degree": 8}
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
    "llama3_8b": _8B,
    "llama3_8b_mxfp8": {**_8B, "model_spec.mxfp8.fqns": [], "compile.enable": True, "compile.components": ["model"]},
    "llama3_70b": {**_llama3("70B", seq_len=8192), **_LARGE},
    "llama3_405b": {
        **_llama3("405B", local_batch_size=2, seq_len=8192),
        **_LARGE,
        "model_spec.float8.recipe_name": "rowwise",
        "model_spec.float8.filter_fqns": ["lm_head"],
        "compile.enable": True,
        "compile.enable_async_tensor_parallel": True,
    },
}
"""Functions of llama3's registry: what they set beside the defaults."""

MODULES = ("llama3", "torchtitan.models.llama3", "torchtitan.models.llama3.config_registry")
"""Names of the module with these functions."""

_OTHERS = {
    "a search's model is torchtitan's llama3, trained by torchtitan's own trainer": (
        *("deepseek_v3", "flux", "gpt_oss", "kimi_k2_7", "muse_glimmer", "qwen3", "qwen3_5"),
        *("transformers_modeling_backend", "rl", "alphabet_sort", "dapo_math", "search_r1"),
        *("graph_trainer.*", "autoparallel.*", "torchft.*"),
    ),
    "trials with torchtitan have no 4-bit products: torch 2.13 has no FSDP2 for its backend spmd_types": ("*_nvfp4",),
    "trials train all weights of a model, on whole sequences": ("*_lora", "sft_*"),
}


def refusal(name: str) -> str | None:
    """The reason why a module that torchtitan has a short name for, or a function of llama3's, is refused."""
    return next((why for why, names in _OTHERS.items() if any(fnmatchcase(name, other) for other in names)), None)
