"""A layout in torchtitan's words: arguments of its configuration classes. Standard library only.

Names: torchtitan 0.3.0 torchtitan/config/configs.py and torchtitan/models/llama3; torch.distributed.pipelining.
The engine of Parlay's own trainer (trials/train/engines/torchtitan_config.py) and the recipe's export take them from
here.
"""

from __future__ import annotations

from typing import Any

from search_spaces.layouts.layout import Layout
from search_spaces.layouts.pipeline_split import chunk_layers
from search_spaces.model_shape import NORM_EPSILON, ModelShape

SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
"""Names of torch's schedules."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
ATTENTION = {"flex": "flex", "flash": "varlen"}


def parallelism_arguments(model: ModelShape, layout: Layout) -> dict[str, Any]:
    """ParallelismConfig: degrees, schedule and split of the layers; without ZeRO every data-parallel rank is a
    replica. torchtitan's default backend, spmd_types, needs FSDP2 of torch 2.14."""
    replicas = layout.data_parallel if layout.zero_stage == 0 else layout.data_parallel_replicas
    return {
        "data_parallel_replicate_degree": replicas,
        "data_parallel_shard_degree": layout.data_parallel // replicas,
        "fsdp_reshard_after_forward": reshard_policy(layout),
        "tensor_parallel_degree": layout.tensor_parallel,
        "context_parallel_degree": layout.context_parallel,
        "expert_parallel_degree": layout.expert_parallel,
        "enable_sequence_parallel": layout.sequence_parallel,
        "pipeline_parallel_degree": layout.pipeline_parallel,
        "pipeline_parallel_schedule": SCHEDULES.get(layout.pipeline_schedule, "1F1B"),
        "pipeline_parallel_microbatch_size": layout.micro_batch_size,
        "module_fqns_per_model_part": modules_by_chunk(model, layout),
        "spmd_backend": "partial_dtensor",
    }


def reshard_policy(layout: Layout) -> str:
    """ZeRO 3 reshards after the forward pass, which torchtitan does by default without a pipeline."""
    if layout.zero_stage < 3:
        return "never"
    return "default" if layout.pipeline_parallel == 1 else "always"


def modules_by_chunk(model: ModelShape, layout: Layout) -> list[list[str]] | None:
    """Names of the modules of each chunk, in the model's order; None without a pipeline."""
    if layout.pipeline_parallel == 1:
        return None
    names, first = [], 0
    for count in chunk_layers(model, layout):
        names.append([f"layers.{layer}" for layer in range(first, first + count)])
        first += count
    names[0].insert(0, "tok_embeddings")
    names[-1] += ["norm", "lm_head"]
    return names


def training_arguments(model: ModelShape, layout: Layout) -> dict[str, Any]:
    """TrainingConfig: batch and precision. `local_batch_size` is one micro-batch, or in a pipeline a step's, in
    sequences."""
    is_pipeline = layout.pipeline_parallel > 1
    return {
        "local_batch_size": layout.micro_batch_size * (layout.grad_accum_steps if is_pipeline else 1),
        "global_batch_size": layout.global_batch_size,
        "seq_len": model.seq_length,
        "disable_cuda_graphs": True,
        "dtype": "float32",
        "mixed_precision_param": DTYPES[layout.precision],
    }


def compile_arguments(layout: Layout) -> dict[str, Any]:
    """CompileConfig: compilation of blocks and loss, and whether it overlaps tensor-parallel collectives."""
    return {"enable": layout.torch_compile, "enable_async_tensor_parallel": layout.tensor_parallel_overlap}


def recomputation_policy(layout: Layout) -> tuple[str, dict[str, Any]] | None:
    """(policy, its arguments): recomputation of whole layers, or of all but attention and every other matrix
    multiplication; None without. The forward pass has no randomness, so no generator's state is kept."""
    shared = {"preserve_rng_state": False}
    if layout.activation_checkpointing == "none":
        return None
    if layout.activation_checkpointing == "selective":
        return "SelectiveAC", shared
    if layout.recompute_layers is not None:
        return FIRST_LAYERS, {"layers": layout.recompute_layers, **shared}
    return "FullAC", shared


FIRST_LAYERS = "FirstLayersAC"
"""Policy of trials/train/engines/torchtitan_first_layers.py; the others are torchtitan's own."""


def converter(model: ModelShape, layout: Layout) -> tuple[str, dict[str, Any]] | None:
    """(class, its arguments) of the conversion of linear layers to products in 8 bits; None without.

    All but the head, as in torchtitan's llama3_405b, and but routers, as in its deepseek_v3. Routed experts are no
    linear layers. The recipe's name is torchao's, which has tensorwise, too: components/quantization/float8.py hands it
    on.
    """
    word, compiled = layout.matmul_precision, {"model_compile_enabled": layout.torch_compile}
    if word == "same":
        return None
    if word in CONVERTERS:
        return CONVERTERS[word], {"fqns": ["layers."], **compiled}
    kept = ["lm_head", *(["router.gate"] if model.num_experts is not None else [])]
    return FLOAT8, {"recipe_name": word.removeprefix("fp8_"), "filter_fqns": kept, **compiled}


FLOAT8 = "Float8LinearConverter"
CONVERTERS = {"mxfp8": "MXFP8LinearConverter"}
"""Classes of torchtitan/components/quantization: of torchao's float8 recipes, and of recipes of their own."""


def is_qwen3(model: ModelShape) -> bool:
    """True for a model that torchtitan's qwen3 builds, false for one of its llama3."""
    return model.qk_norm or model.num_experts is not None


def router_arguments(model: ModelShape) -> dict[str, Any]:
    """TokenChoiceTopKRouter's configuration, but for its gate: softmax over the experts that were chosen."""
    return {
        "num_experts": model.num_experts,
        "top_k": model.experts_per_token,
        "score_func": "softmax",
        "route_norm": True,
    }


def head_dim(model: ModelShape) -> int | None:
    """Size of a head where torchtitan is to be told: qwen3 has no default."""
    return model.head_size if is_qwen3(model) else model.attention_head_size


def rope_arguments(model: ModelShape) -> dict[str, Any]:
    """ComplexRoPE's configuration: positions of a trial's model, without scaling."""
    return {
        "dim": model.head_size,
        "max_seq_len": model.seq_length,
        "theta": float(model.rotary_base),
        "scaling": "none",
    }


def norm_arguments(model: ModelShape) -> dict[str, Any]:
    """RMSNorm's configuration."""
    return {"normalized_shape": model.hidden_size, "eps": NORM_EPSILON}
