"""Rules of the engines: what DeepSpeed, torch and megatron-core support whichever trainer drives them.

Standard library only. DeepSpeed 0.19 deepspeed/runtime/engine.py, runtime/pipe/engine.py and runtime/zero;
torch.distributed.pipelining.schedules and torch.distributed.fsdp; megatron-core 0.16 megatron/core/pipeline_parallel
and megatron/core/distributed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from search_spaces.adapters import ALL_LINEAR, EMBEDDING, HEAD, NAMES_OF_LIBRARY, NORMS, TRANSFORMERS
from search_spaces.layouts.matmul_recipes import MATMUL_RECIPES, MatmulRecipe
from search_spaces.layouts.pipeline_split import DECIDING_FIELDS, SPLIT_FIELDS, GivenSplit
from search_spaces.model_shape import ModelShape
from search_spaces.rules.rule import (
    MLP_LAYERS,
    Clashes,
    Rule,
    allows_only,
    always,
    at_least,
    clashes,
    finding,
    has_part,
    is_given,
    is_not,
)


def zero_in_pipeline(rule: str) -> Rule:
    """Rule against ZeRO 2 and 3 in a pipeline, for engines that do not support it."""
    return clashes("zero_stage", {"pipeline_parallel": at_least(2)}, rule, values=(2, 3), fix=_ZERO_IN_PIPELINE)


_ZERO_IN_PIPELINE = "set zero_stage to 0 or 1, or pipeline_parallel to 1"


def names_modules_as(library: str) -> tuple[Rule, ...]:
    """Rules that adapters, and modules that train, have the names of the library that builds them."""
    known = NAMES_OF_LIBRARY[library] + ((ALL_LINEAR, NORMS, EMBEDDING, HEAD) if library == TRANSFORMERS else ())
    return tuple(_names_in(known, library, *field) for field in _NAMING_FIELDS)


def _names_in(known: tuple[str, ...], library: str, field: str, names_of: Callable[[Any], Sequence[str]]) -> Rule:
    return Rule(
        (f"model.{field}",),
        lambda given: not {*names_of(given)} <= {*known},
        f"{{engine}} has the modules of {library}: {', '.join(known)}",
        "name these",
        name=f"{field}_names",
        only={f"model.{field}": is_given},
        told=lambda found, task: f"modules are {', '.join(names_of(*found.values()))}",
    )


_NAMING_FIELDS: tuple[tuple[str, Callable[[Any], Sequence[str]]], ...] = (
    ("adapters", lambda adapters: adapters.target_modules),
    ("trainable", tuple),
)


def too_few_micro_batches(fewer: int, rule: str) -> Rule:
    """Rule that a step in 1F1B has as many micro-batches as stages, or `fewer`."""
    return Rule(
        ("grad_accum_steps", "pipeline_parallel"),
        lambda steps, stages: steps < stages - fewer,
        rule,
        "use a smaller micro_batch_size, fewer stages, or the gpipe schedule",
        beside={"pipeline_schedule": ("1f1b",)},
        name="micro_batches",
    )


def quantized_products(recipes: Mapping[str, MatmulRecipe] = MATMUL_RECIPES) -> tuple[Rule, ...]:
    """Products of 8 and 4 bits whose inputs are not in 16 bits, or with dimensions that their kernels do not take.

    torch/_meta_registrations.py, _check_scaled_mm_sizes; transformer_engine/pytorch/utils.py, assert_dim_for_fp8_exec.
    torchtitan multiplies linear layers of other dimensions in 16 bits, without an error
    (torchtitan/components/quantization/utils.py, module_filter_fn).
    """
    in_16_bits = "products in 8 and 4 bits have inputs and outputs of 16 bits"
    of_fp32 = clashes("matmul_precision", {"precision": ("fp32",)}, in_16_bits, values=tuple(recipes))
    return (of_fp32, *(_divisible_products(word, recipe) for word, recipe in recipes.items()))


def _divisible_products(word: str, recipe: MatmulRecipe) -> Rule:
    def undivided(f: Mapping[str, Any], task: Any) -> str | None:
        others = {name: n for name, n in _product_dimensions(f, task.model, recipe) if n % recipe.multiple}
        return finding({"matmul_precision": word} | others) if others else None

    return Rule(
        ("tensor_parallel", "expert_tensor_parallel", "micro_batch_size"),
        always,
        f"each dimension of a rank's products in {word} is a multiple of {recipe.multiple}",
        "use a smaller tensor_parallel or another shape, or set matmul_precision to same",
        {"matmul_precision": (word,)},
        "matmul_dimensions",
        told=undivided,
    )


def _product_dimensions(f: Mapping[str, Any], model: ModelShape, recipe: MatmulRecipe) -> Iterator[tuple[str, int]]:
    """Dimensions of a rank's products. Tokens are summed over in those for the weights' gradients."""
    yield "hidden_size", model.hidden_size
    for name, size in (
        ("size of all queries", model.query_size),
        ("size of all queries, keys and values", model.query_size + 2 * model.key_value_size),
        ("ffn_hidden_size", model.ffn_hidden_size),
        ("shared_expert_ffn_hidden_size", model.shared_expert_ffn_hidden_size or 0),
    ):
        yield f"{name} / tensor_parallel", size // f["tensor_parallel"]
    if model.num_experts is not None and recipe.has_experts:
        yield "expert width / expert_tensor_parallel", model.expert_width // f["expert_tensor_parallel"]
    if not recipe.products_in_16_bits:
        yield "micro_batch_size x seq_length", f["micro_batch_size"] * model.seq_length


_SPLIT = ("model.num_layers", *DECIDING_FIELDS)
even_stages = Rule(
    _SPLIT,
    lambda layers, stages, chunks, *split: GivenSplit(stages, chunks, *split).is_own and layers % (stages * chunks),
    "{engine} splits the layers evenly over all model chunks",
    "use a pipeline_parallel x virtual_pipeline_stages that divides num_layers, or give another split",
    name="layers",
)
"""Layers that do not divide over the model chunks, for engines that split them evenly."""


def _undivided(layers: int, stages: int, chunks: int, *split: Any) -> bool:
    given = GivenSplit(stages, chunks, *split)
    is_one = given.split == "own" or given.gives_no_stage
    return is_one and not given.is_own and given.chunk_layers(layers) is None


given_stages: tuple[Rule, ...] = (
    Rule(
        SPLIT_FIELDS,
        lambda split, first, last: split != "own" and (first is not None or last is not None),
        "either the embedding and the loss count as layers, or the layers of the first and last stage are given"
        " (megatron/core/transformer/transformer_config.py)",
        "leave pipeline_split out, or first_stage_layers and last_stage_layers",
    ),
    Rule(
        _SPLIT,
        _undivided,
        "with the embedding and the loss that count as layers, or without the first and last stage that are given, all"
        " chunks have the same number of layers, at least one",
        "use another pipeline_split, or other numbers of layers",
        name="pipeline_split",
    ),
)
"""Splits that a layout gives, and which do not divide."""
some_layers_recomputed = Rule(
    ("model.num_layers", "pipeline_parallel", "virtual_pipeline_stages", "recompute_layers"),
    lambda layers, stages, chunks, recomputed: recomputed * stages * chunks >= layers,
    "recompute_layers is less than num_layers / (pipeline_parallel x virtual_pipeline_stages)",
    "leave recompute_layers out to recompute all layers, or use a smaller number",
    beside={"recompute_layers": is_given},
    name="recompute_layers",
)
"""Recomputing every layer of a chunk is full recomputation."""
sharded_replicas = Rule(
    ("data_parallel_replicas", "data_parallel", "context_parallel"),
    lambda replicas, data, context: replicas > 1 and (data % replicas or data * context == replicas),
    "each replica shards the model over data_parallel / data_parallel_replicas x context_parallel ranks, whole numbers,"
    " more than 1 rank",
    "use a smaller divisor of data_parallel, or set zero_stage to 0",
)
"""Replicas that do not divide the data-parallel ranks, or that shard nothing."""
half_precision_flash = clashes(
    "attention_kernel",
    {"precision": ("fp32",)},
    "{engine}'s flash attention supports only bf16 and fp16",
    values=("flash",),
)
"""Rule of engines whose flash attention has only 16 bits."""

LARGEST_FLASH_HEAD = 256
"""Elements of a head; transformer_engine/pytorch/attention/dot_product_attention/utils.py, get_attention_backend, and
torch's aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_varlen_fwd and mha_varlen_bwd."""


flash_heads = Rule(
    ("model.head_size",),
    lambda size: size % 8 or size > LARGEST_FLASH_HEAD,
    f"{{engine}}'s flash attention supports head sizes that are multiples of 8, at most {LARGEST_FLASH_HEAD}",
    "set attention_kernel to math, or use another number of heads",
    beside={"attention_kernel": ("flash",)},
    name="flash_head_size",
)
"""Heads for which flash attention has no kernel, for engines that do not pad them."""


# -- DeepSpeed


_OVERLAPS = "DeepSpeed overlaps communication with the backward pass only in ZeRO's reductions, and not in a pipeline"
_HAS_BUCKETS = "DeepSpeed has reduction buckets only with ZeRO stage 1, 2 or 3"
_BF16_OPTIMIZER: Clashes = {"zero_stage": (1,), "precision": ("bf16",), "offload": ("none",)}
"""Layouts of DeepSpeed's BF16_Optimizer, where gradients are summed in fp32 (runtime/engine.py,
_do_optimizer_sanity_check)."""

bf16_reductions: tuple[Rule, ...] = (
    clashes("overlap_comm", _BF16_OPTIMIZER, f"{_OVERLAPS}; its BF16_Optimizer overlaps nothing"),
    clashes(
        "bucket_mib",
        _BF16_OPTIMIZER,
        "DeepSpeed's BF16_Optimizer reduces gradients after the backward pass in buffers of a fixed size",
        fix="leave bucket_mib out, or set zero_stage to 2",
    ),
)
"""Settings of reductions that DeepSpeed's BF16_Optimizer ignores (runtime/engine.py, _bf16_reduce_grads)."""

overlap_in_pipeline: tuple[Rule, ...] = tuple(
    clashes("overlap_comm", {"pipeline_parallel": at_least(2), "zero_stage": (1,), **other}, _OVERLAPS)
    for other in ({"precision": ("fp32", "fp16")}, {"offload": ("optimizer",)})
)
"""Overlap in a pipeline, where `bf16_reductions` does not refuse it already."""

DEEPSPEED_RULES: tuple[Rule, ...] = (
    *allows_only({"pipeline_schedule": ("none", "1f1b")}, owner="DeepSpeed"),
    zero_in_pipeline("DeepSpeed's pipeline engine supports ZeRO stages 0 and 1"),
    clashes("offload", {"zero_stage": (0,)}, "DeepSpeed offloads the optimizer only with ZeRO stage 1, 2 or 3"),
    clashes("overlap_comm", {"zero_stage": (0,)}, _OVERLAPS),
    clashes("bucket_mib", {"zero_stage": (0,)}, _HAS_BUCKETS),
)
"""Rules of every trainer on DeepSpeed."""


# -- torch


_FSDP = "torch's FSDP2 (ZeRO 2 and 3) always overlaps block by block, and has no buckets"

TORCH_SCHEDULE_RULES: tuple[Rule, ...] = (
    too_few_micro_batches(0, "torch's 1F1B needs at least pipeline_parallel micro-batches a step"),
    Rule(
        ("grad_accum_steps", "pipeline_parallel"),
        lambda steps, stages: steps % max(1, steps // stages),
        "torch's interleaved 1F1B splits a step's micro-batches into max(1, micro-batches // stages) equal rounds",
        "use a micro_batch_size that makes grad_accum_steps a multiple of {pipeline_parallel}",
        beside={"pipeline_schedule": ("interleaved_1f1b",)},
        name="rounds",
    ),
)
"""Rules of torch's pipelining."""
TORCH_RULES: tuple[Rule, ...] = (
    *TORCH_SCHEDULE_RULES,
    clashes("overlap_comm", {"zero_stage": (2, 3)}, _FSDP),
    clashes("bucket_mib", {"zero_stage": (2, 3)}, _FSDP),
)
"""Rules of torch's pipelining and FSDP2 as Parlay's own engine uses them."""


# -- megatron-core


_NO_LATENT: Clashes = {"model.key_value_latent_size": (None,)}
NO_MLP: Clashes = {MLP_LAYERS: (0,)}
_NO_EXPERTS: Clashes = {"model.num_experts": (None,)}
_MODULE_NEEDS: Mapping[str, tuple[str, Clashes]] = {
    "layernorm": (
        "experts or latent attention, whose norms are no part of the product after them",
        {"model.num_expert_layers": (0,), **_NO_LATENT},
    ),
    "mla_up_proj": ("latent attention", _NO_LATENT),
    "mlp": ("a layer that has an MLP", NO_MLP),
    "moe": ("experts", _NO_EXPERTS),
    "moe_act": ("experts", _NO_EXPERTS),
    "shared_experts": ("a shared expert", {"model.shared_expert_ffn_hidden_size": (None,)}),
}
"""Part of a model that a module recomputes, and values of models without it."""
_recomputed_parts = tuple(
    clashes(
        "recompute_modules",
        lacking,
        f"megatron-core recomputes {module} in models with {needed} (megatron/core/transformer)",
        values=has_part(module),
        fix=f"take {module} out of recompute_modules",
        name="recomputed_part",
    )
    for module, (needed, lacking) in _MODULE_NEEDS.items()
)


MEGATRON_RULES: tuple[Rule, ...] = (
    even_stages,
    *given_stages,
    Rule(
        ("grad_accum_steps", "pipeline_parallel"),
        lambda steps, stages: steps % stages,
        "{engine}'s interleaved 1F1B needs grad_accum_steps to be a multiple of pipeline_parallel",
        "use another micro_batch_size, or virtual_pipeline_stages 1",
        beside={"virtual_pipeline_stages": at_least(2)},
        name="micro_batches",
    ),
    *_recomputed_parts,
    clashes(
        "bucket_mib",
        {"overlap_comm": (False,)},
        "Megatron reduces gradients in buckets only while it overlaps them (--overlap-grad-reduce)",
    ),
    clashes(
        "recompute_modules",
        {"activation_checkpointing": ("selective",), "precision": ("fp32",)},
        "megatron-core recomputes moe_act where Transformer Engine groups the products of experts, in 16 bits"
        " (transformer/transformer_config.py)",
        values=has_part("moe_act"),
        fix="set precision to bf16, or take moe_act out of recompute_modules",
    ),
    clashes(
        "recompute_modules",
        {"activation_checkpointing": ("selective",), "model.linear_biases": (True,)},
        "megatron-core's backward pass of a recomputed MLP with biases, which becomes its output, calls itself without"
        " end (megatron/core/tensor_parallel/random.py, CheckpointFunction)",
        values=has_part("mlp"),
        fix="set recompute_modules to core_attn",
    ),
    some_layers_recomputed,
    half_precision_flash,
    flash_heads,
    clashes(
        "tensor_parallel",
        {"model.num_experts": is_given, "sequence_parallel": (False,)},
        "megatron-core trains experts on several tensor-parallel ranks with sequence parallelism alone"
        " (transformer/moe/moe_layer.py)",
    ),
    Rule(
        ("engine", "model.aux_loss_coefficient"),
        lambda engine, loss: engine != "megatron-lm" or loss is not None,
        "the softmax over one chosen expert has no gradient, so megatron-core refuses it"
        " (transformer/transformer_config.py); Megatron-LM chooses one by sinkhorn, without aux_loss_coefficient",
        "use an experts_per_token of 2 or more, or another engine",
        beside={"model.experts_per_token": (1,)},
        name="experts_per_token",
    ),
    Rule(
        ("expert_tensor_parallel", "tensor_parallel"),
        lambda split, tensor: split != tensor,
        "with expert_parallel 1 megatron-core 0.16 reduces experts' gradients over the data-parallel ranks of other"
        " layers, which have other slices of them (tensor_parallel/layers.py, allreduce)",
        "set expert_tensor_parallel to {tensor_parallel}, or expert_parallel to 2 or more",
        beside={"model.num_experts": is_given, "expert_parallel": (1,)},
        name="expert_groups",
    ),
    Rule(
        ("expert_parallel", "expert_tensor_parallel", "tensor_parallel", "context_parallel"),
        lambda ranks, split, tensor, context: ranks * split != tensor * context,
        "in an order that does not end in pp, experts have as many data-parallel ranks as other layers:"
        " expert_parallel x expert_tensor_parallel is tensor_parallel x context_parallel (parallel_state.py,"
        " initialize_model_parallel)",
        "set rank_order to tp-dp-pp, or the two products to the same number",
        beside={"model.num_experts": is_given, "rank_order": is_not("tp-dp-pp")},
        name="expert_rank_order",
    ),
)
"""Rules of every trainer on megatron-core."""
MEGATRON_SCHEDULES = ("none", "1f1b", "interleaved_1f1b")
