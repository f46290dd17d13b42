"""Parity cases with names of their own: those that a covering array need not contain.

A line is a case: its name, its model (`parity_models.SHAPES`), its engine, and fields of its layout by short names. A
field without a value is switched on. torchtitan's cases have FlexAttention, which it trains on a CPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_WORDS = {
    "precision": "precision",
    "zero": "zero_stage",
    "ac": "activation_checkpointing",
    "modules": "recompute_modules",
    "kernel": "attention_kernel",
    "sp": "sequence_parallel",
    "compiled": "torch_compile",
    "schedule": "pipeline_schedule",
    "vpp": "virtual_pipeline_stages",
    "split": "pipeline_split",
    "first": "first_stage_layers",
    "last": "last_stage_layers",
    "dispatcher": "expert_dispatcher",
    "overlap": "overlap_comm",
    "bucket": "bucket_mib",
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "cp": "context_parallel",
    "dp": "data_parallel",
    "replicas": "data_parallel_replicas",
    "ep": "expert_parallel",
    "etp": "expert_tensor_parallel",
}
"""Short names of a layout's fields."""

_WORD = re.compile(r"([a-z]+)=?(.*)")

NamedCases = Mapping[str, tuple[str, Mapping[str, Any]]]
"""Model and layout fields by a case's name."""


def _cases(table: str) -> NamedCases:
    lines = (line.split() for line in table.splitlines())
    return {words[0]: (words[1], _fields(*words[2:])) for words in lines if words and words[0] != "#"}


def _fields(engine: str, *words: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"engine": engine}
    if engine == "torchtitan":
        fields["attention_kernel"] = "flex"
    for word in words:
        name, value = _WORD.findall(word)[0]
        fields[_WORDS[name]] = int(value) if value.isdigit() else value or True
    return fields


SILENT_ERRORS = _cases("""
# DeepSpeed's norm leaves out later stages without ZeRO, and counts a tied table twice.
clipping-zero0-pipeline gpt2 deepspeed pp2
clipping-zero0-tensor-pipeline gpt2 deepspeed tp2 pp2
clipping-zero0-pipeline-data llama deepspeed pp2 dp2
clipping-zero0-tied gpt2-tied deepspeed pp2
# DeepSpeed's bf16 optimizer without ZeRO begins at Adam's second step; a rule refuses it.
bf16-zero0-deepspeed gpt2 deepspeed precision=bf16 dp2
bf16-zero0-torch gpt2 torch precision=bf16 dp2
bf16-zero0-pipeline gpt2 deepspeed precision=bf16 pp2
tied-zero1-pipeline gpt2-tied deepspeed zero1 pp2 dp2
tied-tensor-pipeline llama-tied torch tp2 pp2
tied-zero1-tensor llama-tied deepspeed zero1 tp2 dp2
tied-zero3 llama-tied torch zero3 dp2
# Sharding replaces the parameters' objects and loses their attributes: reductions are then skipped.
attributes-zero3-sequence gpt2 torch zero3 sp tp2 dp2
attributes-zero3-deepspeed gpt2 deepspeed zero3 sp tp2 dp2
""")
"""Known cases in which an engine silently trained something else."""

TIED = _cases("""
torchtitan-tied-zero3 llama-tied torchtitan zero3 dp2
torchtitan-tied-sequence llama-tied torchtitan sp tp2
""")
"""Tied weights of an engine that has none in a pipeline, for which its models are therefore not drawn."""

FEATURES = _cases("""
qkv-bias-sequence qwen2 torch sp tp2
qkv-bias-zero3 qwen2 torch zero3 dp2
qkv-bias-deepspeed qwen2 deepspeed tp2 pp2
qk-norm-tensor qwen3 torch zero1 tp2 dp2
qk-norm-sequence qwen3 torch zero3 sp tp2 dp2
qk-norm-pipeline qwen3 torch tp2 pp2
qk-norm-deepspeed qwen3 deepspeed zero3 tp2 dp2
windows-sequence gemma torch sp tp2
windows-pipeline gemma torch zero2 pp2 dp2
windows-deepspeed gemma deepspeed zero1 pp2 dp2
sinks-tensor gpt-oss torch ac=selective tp2 pp2
sinks-zero3 gpt-oss torch zero3 dp2
sinks-deepspeed gpt-oss deepspeed zero3 tp2 dp2
activation-deepspeed nemotron deepspeed tp2
activation-zero2 nemotron torch zero2 dp2
experts-zero3 mixtral torch zero3 dp2
experts-tensor mixtral torch zero1 tp2 dp2 etp2
experts-pipeline mixtral torch zero2 ac=full pp2 dp2
experts-sequence deepseek-moe torch sp tp2 pp2 etp2
experts-biases-sequence gpt-oss-moe torch sp tp2 etp2
experts-deepspeed gpt-oss-moe deepspeed zero3 tp2 dp2 etp2
experts-pipeline-deepspeed deepseek-moe deepspeed zero1 pp2 dp2
documents-one-rank gpt2-documents torch kernel=flash
documents-sequence llama-documents torch zero1 sp tp2 dp2
documents-zero3 gpt2-documents torch zero3 ac=full dp2
documents-interleaved llama-documents torch schedule=interleaved_1f1b vpp2 pp2
documents-windows gpt-oss-documents torch ac=selective tp2 pp2
documents-deepspeed gpt2-documents deepspeed zero3 tp2 dp2
documents-pipeline-deepspeed llama-documents deepspeed zero1 kernel=flash pp2 dp2
qkv-bias-megatron-core qwen2 megatron-core sp tp2
qk-norm-megatron-core qwen3 megatron-core tp2
qk-norm-sequence-megatron-core qwen3 megatron-core sp tp2 pp2
activation-megatron-core nemotron megatron-core zero1 dp2
gated-gelu-megatron-core geglu megatron-core pp2
qkv-bias-accelerate qwen2 accelerate zero2 dp2
qk-norm-accelerate qwen3 accelerate zero3 dp2
gated-gelu-accelerate geglu accelerate dp2
qk-norm-torchtitan qwen3 torchtitan tp2
qk-norm-sequence-torchtitan qwen3 torchtitan zero3 sp tp2 dp2
qk-norm-pipeline-torchtitan qwen3 torchtitan schedule=zbv vpp2 tp2 pp2
experts-megatron-core mixtral megatron-core zero1 dp2
expert-parallel-megatron-core mixtral megatron-core zero1 dp2 ep2
expert-parallel-tensor-megatron-core deepseek-moe megatron-core sp tp2 dp2 ep2
expert-parallel-split-megatron-core deepseek-moe megatron-core zero1 sp tp2 dp2 ep2 etp2
expert-parallel-pipeline-megatron-core mixtral megatron-core pp2 dp2 ep2
split-counted-megatron-core gpt2 megatron-core split=embedding+loss pp4
split-counted-chunks-megatron-core gpt2 megatron-core sp schedule=interleaved_1f1b vpp2 split=embedding+loss tp2 pp2
split-given-megatron-core gpt2-tied megatron-core zero1 first1 last3 pp2 dp2
split-counted-torchtitan llama torchtitan split=embedding pp3
split-given-torchtitan llama torchtitan first3 last5 pp2
recomputed-experts-megatron-core deepseek-moe megatron-core ac=selective modules=layernorm+core_attn+moe sp tp2 dp2 ep2
recomputed-shared-experts-megatron-core deepseek-moe megatron-core zero1 ac=selective modules=mlp+shared_experts pp2 dp2
gathered-experts-megatron-core deepseek-moe megatron-core sp dispatcher=allgather tp2 dp2 ep2
aux-loss-megatron-core balanced-moe megatron-core zero1 dp2 ep2
aux-loss-sequence-megatron-core balanced-moe megatron-core sp tp2 dp2 ep2
aux-loss-pipeline-megatron-core balanced-moe megatron-core pp2
experts-torchtitan mixtral torchtitan zero3 tp2 dp2 etp2
expert-parallel-torchtitan mixtral torchtitan zero3 dp2 ep2
expert-parallel-tensor-torchtitan deepseek-moe torchtitan zero2 sp tp2 dp2 ep2
expert-parallel-four-torchtitan deepseek-moe torchtitan zero3 sp tp2 dp2 ep4
expert-parallel-pipeline-torchtitan mixtral torchtitan zero2 pp2 dp2 ep2
expert-parallel-replicas-torchtitan mixtral torchtitan zero3 dp4 replicas2 ep2
context-torchtitan llama-long torchtitan zero2 cp2
context-four-torchtitan qwen3-long torchtitan zero3 cp4
context-tensor-torchtitan llama-long torchtitan zero3 tp2 cp2
context-sequence-torchtitan llama-long torchtitan zero3 sp tp2 cp2 dp2
context-pipeline-torchtitan llama-long torchtitan zero2 pp2 cp2
context-pipeline-zbv-torchtitan llama-long torchtitan zero2 schedule=zbv vpp2 pp2 cp2
context-replicas-torchtitan llama-long torchtitan zero3 cp2 dp2 replicas2
context-recomputed-torchtitan llama-long torchtitan zero3 ac=full cp2 dp2
context-experts-torchtitan mixtral-long torchtitan zero3 cp2 dp2 ep2
documents-torchtitan llama-documents torchtitan zero3 sp tp2 dp2
documents-pipeline-torchtitan llama-documents torchtitan zero2 pp2 dp2
documents-context-torchtitan llama-long-documents torchtitan zero2 cp2
head-size-torchtitan mistral torchtitan zero2 dp2
""")
"""Models whose features are not drawn. Gains of `qk_norm` have their own reduction over the tensor-parallel ranks."""

QUICK = ("tied-zero3", "activation-zero2", "qkv-bias-sequence", "documents-interleaved", "bf16-zero0-torch")
"""Five cases of one engine on two ranks: sharding, tensor and sequence parallelism, a pipeline, and 16 bits."""

COMPILED = _cases("""
compiled-one-rank llama-tied torch compiled
compiled-tensor-pipeline gpt2-tied torch compiled tp2 pp2
compiled-documents llama-documents torch kernel=flash compiled
compiled-data-deepspeed gpt2-tied deepspeed zero1 compiled dp2
compiled-sequence gpt2-tied torch sp compiled tp2
compiled-zero3 llama-tied torch zero3 compiled dp2
compiled-data-accelerate gpt2-tied accelerate compiled dp2
compiled-zero3-accelerate llama-tied accelerate zero3 compiled dp2
compiled-overlap gpt2 torch zero1 compiled overlap bucket1 dp2
""")
