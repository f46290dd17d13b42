"""Parity cases with names of their own, as a model and layout fields: those that a covering array need not contain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TP2, PP2, DP2 = {"tensor_parallel": 2}, {"pipeline_parallel": 2}, {"data_parallel": 2}
PP3, PP4 = {"pipeline_parallel": 3}, {"pipeline_parallel": 4}
EP2 = {"expert_parallel": 2}
CP2 = {"context_parallel": 2}
ETP2 = {"expert_tensor_parallel": 2}
SILENT_ERRORS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    # DeepSpeed's norm leaves out later stages without ZeRO, and counts a tied table twice.
    "clipping-zero0-pipeline": ("gpt2", {"engine": "deepspeed", **PP2}),
    "clipping-zero0-tensor-pipeline": ("gpt2", {"engine": "deepspeed", **TP2, **PP2}),
    "clipping-zero0-pipeline-data": ("llama", {"engine": "deepspeed", **PP2, **DP2}),
    "clipping-zero0-tied": ("gpt2-tied", {"engine": "deepspeed", **PP2}),
    # DeepSpeed's bf16 optimizer without ZeRO begins at Adam's second step; a rule refuses it.
    "bf16-zero0-deepspeed": ("gpt2", {"engine": "deepspeed", "precision": "bf16", **DP2}),
    "bf16-zero0-torch": ("gpt2", {"precision": "bf16", **DP2}),
    "bf16-zero0-pipeline": ("gpt2", {"engine": "deepspeed", "precision": "bf16", **PP2}),
    "tied-zero1-pipeline": ("gpt2-tied", {"engine": "deepspeed", "zero_stage": 1, **PP2, **DP2}),
    "tied-tensor-pipeline": ("llama-tied", {**TP2, **PP2}),
    "tied-zero1-tensor": ("llama-tied", {"engine": "deepspeed", "zero_stage": 1, **TP2, **DP2}),
    "tied-zero3": ("llama-tied", {"zero_stage": 3, **DP2}),
    # Sharding replaces the parameters' objects and loses their attributes: reductions are then skipped.
    "attributes-zero3-sequence": ("gpt2", {"zero_stage": 3, "sequence_parallel": True, **TP2, **DP2}),
    "attributes-zero3-deepspeed": (
        "gpt2",
        {"engine": "deepspeed", "zero_stage": 3, "sequence_parallel": True, **TP2, **DP2},
    ),
}
"""Known cases in which an engine silently trained something else."""

_ACCELERATE = {"engine": "accelerate"}
_MEGATRON = {"engine": "megatron-core"}
_SELECTIVE = {"activation_checkpointing": "selective", **_MEGATRON}
_TITAN = {"engine": "torchtitan", "attention_kernel": "flex"}
TIED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "torchtitan-tied-zero3": ("llama-tied", {"zero_stage": 3, **_TITAN, **DP2}),
    "torchtitan-tied-sequence": ("llama-tied", {"sequence_parallel": True, **_TITAN, **TP2}),
}
"""Tied weights of an engine that has none in a pipeline, for which its models are therefore not drawn."""

FEATURES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "qkv-bias-sequence": ("qwen2", {"sequence_parallel": True, **TP2}),
    "qkv-bias-zero3": ("qwen2", {"zero_stage": 3, **DP2}),
    "qkv-bias-deepspeed": ("qwen2", {"engine": "deepspeed", **TP2, **PP2}),
    "qk-norm-tensor": ("qwen3", {"zero_stage": 1, **TP2, **DP2}),
    "qk-norm-sequence": ("qwen3", {"zero_stage": 3, "sequence_parallel": True, **TP2, **DP2}),
    "qk-norm-pipeline": ("qwen3", {**TP2, **PP2}),
    "qk-norm-deepspeed": ("qwen3", {"engine": "deepspeed", "zero_stage": 3, **TP2, **DP2}),
    "windows-sequence": ("gemma", {"sequence_parallel": True, **TP2}),
    "windows-pipeline": ("gemma", {"zero_stage": 2, **PP2, **DP2}),
    "windows-deepspeed": ("gemma", {"engine": "deepspeed", "zero_stage": 1, **PP2, **DP2}),
    "sinks-tensor": ("gpt-oss", {"activation_checkpointing": "selective", **TP2, **PP2}),
    "sinks-zero3": ("gpt-oss", {"zero_stage": 3, **DP2}),
    "sinks-deepspeed": ("gpt-oss", {"engine": "deepspeed", "zero_stage": 3, **TP2, **DP2}),
    "activation-deepspeed": ("nemotron", {"engine": "deepspeed", **TP2}),
    "activation-zero2": ("nemotron", {"zero_stage": 2, **DP2}),
    "experts-zero3": ("mixtral", {"zero_stage": 3, **DP2}),
    "experts-tensor": ("mixtral", {"zero_stage": 1, **TP2, **ETP2, **DP2}),
    "experts-pipeline": ("mixtral", {"activation_checkpointing": "full", "zero_stage": 2, **PP2, **DP2}),
    "experts-sequence": ("deepseek-moe", {"sequence_parallel": True, **TP2, **ETP2, **PP2}),
    "experts-biases-sequence": ("gpt-oss-moe", {"sequence_parallel": True, **TP2, **ETP2}),
    "experts-deepspeed": ("gpt-oss-moe", {"engine": "deepspeed", "zero_stage": 3, **TP2, **ETP2, **DP2}),
    "experts-pipeline-deepspeed": ("deepseek-moe", {"engine": "deepspeed", "zero_stage": 1, **PP2, **DP2}),
    "documents-one-rank": ("gpt2-documents", {"attention_kernel": "flash"}),
    "documents-sequence": ("llama-documents", {"sequence_parallel": True, "zero_stage": 1, **TP2, **DP2}),
    "documents-zero3": ("gpt2-documents", {"activation_checkpointing": "full", "zero_stage": 3, **DP2}),
    "documents-interleaved": (
        "llama-documents",
        {"virtual_pipeline_stages": 2, "pipeline_schedule": "interleaved_1f1b", **PP2},
    ),
    "documents-windows": ("gpt-oss-documents", {"activation_checkpointing": "selective", **TP2, **PP2}),
    "documents-deepspeed": ("gpt2-documents", {"engine": "deepspeed", "zero_stage": 3, **TP2, **DP2}),
    "documents-pipeline-deepspeed": (
        "llama-documents",
        {"engine": "deepspeed", "zero_stage": 1, "attention_kernel": "flash", **PP2, **DP2},
    ),
    "qkv-bias-megatron-core": ("qwen2", {"sequence_parallel": True, **_MEGATRON, **TP2}),
    "qk-norm-megatron-core": ("qwen3", {**_MEGATRON, **TP2}),
    "qk-norm-sequence-megatron-core": ("qwen3", {"sequence_parallel": True, **_MEGATRON, **TP2, **PP2}),
    "activation-megatron-core": ("nemotron", {"zero_stage": 1, **_MEGATRON, **DP2}),
    "gated-gelu-megatron-core": ("geglu", {**_MEGATRON, **PP2}),
    "qkv-bias-accelerate": ("qwen2", {"zero_stage": 2, **_ACCELERATE, **DP2}),
    "qk-norm-accelerate": ("qwen3", {"zero_stage": 3, **_ACCELERATE, **DP2}),
    "gated-gelu-accelerate": ("geglu", {**_ACCELERATE, **DP2}),
    "qk-norm-torchtitan": ("qwen3", {**_TITAN, **TP2}),
    "qk-norm-sequence-torchtitan": ("qwen3", {"zero_stage": 3, "sequence_parallel": True, **_TITAN, **TP2, **DP2}),
    "qk-norm-pipeline-torchtitan": (
        "qwen3",
        {"pipeline_schedule": "zbv", "virtual_pipeline_stages": 2, **_TITAN, **TP2, **PP2},
    ),
    "experts-megatron-core": ("mixtral", {"zero_stage": 1, **_MEGATRON, **DP2}),
    "expert-parallel-megatron-core": ("mixtral", {"zero_stage": 1, **_MEGATRON, **EP2, **DP2}),
    "expert-parallel-tensor-megatron-core": (
        "deepseek-moe",
        {"sequence_parallel": True, **_MEGATRON, **EP2, **TP2, **DP2},
    ),
    "expert-parallel-split-megatron-core": (
        "deepseek-moe",
        {"zero_stage": 1, "sequence_parallel": True, **_MEGATRON, **EP2, **ETP2, **TP2, **DP2},
    ),
    "expert-parallel-pipeline-megatron-core": ("mixtral", {**_MEGATRON, **EP2, **PP2, **DP2}),
    "split-counted-megatron-core": ("gpt2", {"pipeline_split": "embedding+loss", **_MEGATRON, **PP4}),
    "split-counted-chunks-megatron-core": (
        "gpt2",
        {
            "pipeline_split": "embedding+loss",
            "virtual_pipeline_stages": 2,
            "pipeline_schedule": "interleaved_1f1b",
            "sequence_parallel": True,
            **_MEGATRON,
            **TP2,
            **PP2,
        },
    ),
    "split-given-megatron-core": (
        "gpt2-tied",
        {"first_stage_layers": 1, "last_stage_layers": 3, "zero_stage": 1, **_MEGATRON, **PP2, **DP2},
    ),
    "split-counted-torchtitan": ("llama", {"pipeline_split": "embedding", **_TITAN, **PP3}),
    "split-given-torchtitan": ("llama", {"first_stage_layers": 3, "last_stage_layers": 5, **_TITAN, **PP2}),
    "recomputed-experts-megatron-core": (
        "deepseek-moe",
        {"recompute_modules": "layernorm+core_attn+moe", "sequence_parallel": True, **_SELECTIVE, **EP2, **TP2, **DP2},
    ),
    "recomputed-shared-experts-megatron-core": (
        "deepseek-moe",
        {"recompute_modules": "mlp+shared_experts", "zero_stage": 1, **_SELECTIVE, **PP2, **DP2},
    ),
    "gathered-experts-megatron-core": (
        "deepseek-moe",
        {"expert_dispatcher": "allgather", "sequence_parallel": True, **_MEGATRON, **EP2, **TP2, **DP2},
    ),
    "aux-loss-megatron-core": ("balanced-moe", {"zero_stage": 1, **_MEGATRON, **EP2, **DP2}),
    "aux-loss-sequence-megatron-core": ("balanced-moe", {"sequence_parallel": True, **_MEGATRON, **EP2, **TP2, **DP2}),
    "aux-loss-pipeline-megatron-core": ("balanced-moe", {**_MEGATRON, **PP2}),
    "experts-torchtitan": ("mixtral", {"zero_stage": 3, **_TITAN, **TP2, **ETP2, **DP2}),
    "expert-parallel-torchtitan": ("mixtral", {"zero_stage": 3, **_TITAN, **EP2, **DP2}),
    "expert-parallel-tensor-torchtitan": (
        "deepseek-moe",
        {"zero_stage": 2, "sequence_parallel": True, **_TITAN, **EP2, **TP2, **DP2},
    ),
    "expert-parallel-four-torchtitan": (
        "deepseek-moe",
        {"zero_stage": 3, "sequence_parallel": True, "expert_parallel": 4, **_TITAN, **TP2, **DP2},
    ),
    "expert-parallel-pipeline-torchtitan": ("mixtral", {"zero_stage": 2, **_TITAN, **EP2, **PP2, **DP2}),
    "expert-parallel-replicas-torchtitan": (
        "mixtral",
        {"zero_stage": 3, "data_parallel": 4, "data_parallel_replicas": 2, **_TITAN, **EP2},
    ),
    "context-torchtitan": ("llama-long", {"zero_stage": 2, **_TITAN, **CP2}),
    "context-four-torchtitan": ("qwen3-long", {"zero_stage": 3, "context_parallel": 4, **_TITAN}),
    "context-tensor-torchtitan": ("llama-long", {"zero_stage": 3, **_TITAN, **CP2, **TP2}),
    "context-sequence-torchtitan": (
        "llama-long",
        {"zero_stage": 3, "sequence_parallel": True, **_TITAN, **CP2, **TP2, **DP2},
    ),
    "context-pipeline-torchtitan": ("llama-long", {"zero_stage": 2, **_TITAN, **CP2, **PP2}),
    "context-pipeline-zbv-torchtitan": (
        "llama-long",
        {"zero_stage": 2, "pipeline_schedule": "zbv", "virtual_pipeline_stages": 2, **_TITAN, **CP2, **PP2},
    ),
    "context-replicas-torchtitan": (
        "llama-long",
        {"zero_stage": 3, "data_parallel_replicas": 2, **_TITAN, **CP2, **DP2},
    ),
    "context-recomputed-torchtitan": (
        "llama-long",
        {"zero_stage": 3, "activation_checkpointing": "full", **_TITAN, **CP2, **DP2},
    ),
    "context-experts-torchtitan": ("mixtral-long", {"zero_stage": 3, **_TITAN, **CP2, **EP2, **DP2}),
    "documents-torchtitan": ("llama-documents", {"zero_stage": 3, "sequence_parallel": True, **_TITAN, **TP2, **DP2}),
    "documents-pipeline-torchtitan": ("llama-documents", {"zero_stage": 2, **_TITAN, **PP2, **DP2}),
    "documents-context-torchtitan": ("llama-long-documents", {"zero_stage": 2, **_TITAN, **CP2}),
    "head-size-torchtitan": ("mistral", {"zero_stage": 2, **_TITAN, **DP2}),
}
"""Models whose features are not drawn. Gains of `qk_norm` have their own reduction over the tensor-parallel ranks."""

COMPILED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "compiled-one-rank": ("llama-tied", {"torch_compile": True}),
    "compiled-tensor-pipeline": ("gpt2-tied", {"torch_compile": True, **TP2, **PP2}),
    "compiled-documents": ("llama-documents", {"torch_compile": True, "attention_kernel": "flash"}),
    "compiled-data-deepspeed": ("gpt2-tied", {"torch_compile": True, "engine": "deepspeed", "zero_stage": 1, **DP2}),
    "compiled-sequence": ("gpt2-tied", {"torch_compile": True, "sequence_parallel": True, **TP2}),
    "compiled-zero3": ("llama-tied", {"torch_compile": True, "zero_stage": 3, **DP2}),
    "compiled-data-accelerate": ("gpt2-tied", {"torch_compile": True, "engine": "accelerate", **DP2}),
    "compiled-zero3-accelerate": (
        "llama-tied",
        {"torch_compile": True, "engine": "accelerate", "zero_stage": 3, **DP2},
    ),
    "compiled-overlap": (
        "gpt2",
        {"torch_compile": True, "zero_stage": 1, "overlap_comm": True, "bucket_mib": 1, **DP2},
    ),
}
