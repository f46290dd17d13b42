"""Rules of the engines of Parlay's own trainer: which layouts they cannot run. Standard library only.

Rules of DeepSpeed, torch and megatron-core themselves are in `engine_rules.py`, those of other trainers in their
packages (trials/trainers).
"""

from __future__ import annotations

from typing import Any

from search_spaces.adapters import TRANSFORMERS
from search_spaces.engines import ACCELERATE, MEGATRON_CORE, TORCHTITAN
from search_spaces.layouts.layout import V_SCHEDULES
from search_spaces.layouts.matmul_recipes import TORCHAO_RECIPES
from search_spaces.rules.engine_rules import (
    DEEPSPEED_RULES,
    MEGATRON_RULES,
    MEGATRON_SCHEDULES,
    TORCH_RULES,
    TORCH_SCHEDULE_RULES,
    bf16_reductions,
    flash_heads,
    given_stages,
    names_modules_as,
    overlap_in_pipeline,
    quantized_products,
    sharded_replicas,
    some_layers_recomputed,
)
from search_spaces.rules.rule import (
    Clash,
    EngineRules,
    Rule,
    at_least,
    clashes,
    engine_limits,
    has_feature,
    is_given,
    is_not,
)

_sequence = Rule(
    ("model.seq_length", "tensor_parallel"),
    lambda length, tensor: length % tensor,
    "sequence_parallel splits the sequence evenly over the tensor-parallel ranks",
    "use a tensor_parallel that divides seq_length, or set sequence_parallel to false",
    beside={"sequence_parallel": (True,)},
    name="sequence",
)
_rotary = Rule(
    ("model.head_size",),
    lambda size: size % 2,
    "rotary embeddings rotate pairs of a head's elements, so the head size is even",
    "use an even head size (attention_head_size, or hidden_size / num_attention_heads), or learned positions",
    beside={"model.position_embedding": ("rotary",)},
    name="rotary",
)
_experts_as_layers = Rule(
    ("expert_tensor_parallel", "tensor_parallel"),
    lambda split, tensor: split != tensor,
    "engine {engine} splits every expert over the tensor-parallel ranks, as all other layers",
    "set expert_tensor_parallel to {tensor_parallel}, or use another engine",
    beside={"model.num_experts": is_given},
)

_MASKED_FLASH = "torch's flash attention has a causal mask over the whole sequence, and no sinks"
_masked_flash: tuple[Rule, ...] = (
    clashes("attention_kernel", {"model.sliding_window": is_given}, _MASKED_FLASH, values=("flash",)),
    clashes("attention_kernel", {"model.attention_sinks": (True,)}, _MASKED_FLASH, values=("flash",)),
)

_GPT2, _LLAMA = ("learned", "layernorm", False), ("rotary", "rmsnorm", True)
"""Positions, norm and gated MLP of transformers' GPT-2, and of its Llama and Qwen."""

_SHAPE = ("model.position_embedding", "model.norm", "model.gated_mlp")


def _is_shape(values: tuple[Any, ...]) -> dict[str, Clash]:
    return {name: (value,) for name, value in zip(_SHAPE, values, strict=True)}


_IS_GPT2 = _is_shape(_GPT2)

# transformers 5.23: models/gpt2, models/llama, models/qwen2 and models/qwen3; accelerate 1.15: accelerator.py and
# utils/fsdp_utils.py.
_ACCELERATE: tuple[Rule, ...] = (
    Rule(
        _SHAPE,
        lambda *shape: shape not in (_GPT2, _LLAMA),
        "engine accelerate builds transformers' Llama, Qwen2 and Qwen3 (rotary, rmsnorm, gated_mlp true) or GPT-2"
        " (learned, layernorm, gated_mlp false)",
        "use one of these shapes, or another engine",
        name="model",
    ),
    Rule(
        ("model.num_key_value_heads", "model.num_attention_heads"),
        lambda groups, heads: groups != heads,
        "transformers' GPT-2 has a key-value head for each attention head",
        "set num_key_value_heads to {num_attention_heads}, or use a Llama's shape",
        beside=_IS_GPT2,
        name="kv_heads",
    ),
    Rule(
        ("model.attention_head_size", "model.num_attention_heads", "model.hidden_size"),
        lambda size, heads, hidden: size * heads != hidden,
        "transformers' GPT-2 has heads of hidden_size / num_attention_heads",
        "leave attention_head_size out, or use a Llama's shape",
        beside=_IS_GPT2,
    ),
    Rule(
        ("model.hidden_size", "model.num_attention_heads"),
        lambda hidden, heads: hidden % heads,
        "transformers' Llama takes only a hidden_size that num_attention_heads divides",
        "use another num_attention_heads, or another engine",
        beside=_is_shape(_LLAMA) | {"model.qk_norm": (False,), "model.qkv_bias": (False,)},
        name="attention_head_size",
    ),
    clashes(
        "model.qk_norm",
        {"model.position_embedding": ("learned",)},
        "transformers' GPT-2 does not normalise queries and keys",
    ),
    clashes(
        "model.qk_norm",
        {"model.qkv_bias": (True,)},
        "transformers' Qwen3 normalises queries and keys and has no biases of these alone; its Qwen2 has the biases and"
        " normalises nothing",
    ),
    sharded_replicas,
    *names_modules_as(TRANSFORMERS),
    clashes(
        "zero_stage",
        {"model.features": has_feature("qlora")},
        "accelerate leaves weights in 4 bits out of FSDP2's shards (accelerate/utils/fsdp_utils.py)",
        values=(2, 3),
        fix="set zero_stage to 0, or adapters.kind to lora",
        name="qlora",
    ),
    *engine_limits(
        ACCELERATE,
        {
            "tensor_parallel": (1,),
            "pipeline_parallel": (1,),
            "zero_stage": (0, 2, 3),
            "offload": ("none",),
            "activation_checkpointing": ("none", "full"),
            "precision": ("fp32", "bf16"),
            "overlap_comm": (False,),
            "bucket_mib": (None,),
        },
    ),
)
"""Transformers' models under accelerate. DDP and FSDP always overlap; their buckets and groups are no keys of
accelerate's configuration."""


# -- torchtitan 0.3: torchtitan/config/configs.py, torchtitan/distributed and torchtitan/models/common/decoder.py;
# torch.distributed.pipelining.schedules


FLEX_BLOCK = 128
"""Positions of a block of FlexAttention's masks; torch 2.13, torch/distributed/tensor/experimental/_context_parallel/
_attention.py, _create_cp_block_mask."""

_SPLITS_BACKWARD = "a V schedule splits the backward pass"
_ASYNC = "the compiler overlaps the all-gathers and reduce-scatters of sequence parallelism (async tensor parallel)"
_V_STAGES = "the first stage of a V schedule has the model's first and last layers"
_TITAN_TOGETHER: tuple[Rule, ...] = (
    clashes("first_stage_layers", {"pipeline_schedule": V_SCHEDULES}, _V_STAGES),
    clashes("last_stage_layers", {"pipeline_schedule": V_SCHEDULES}, _V_STAGES),
    clashes(
        "pipeline_schedule",
        {"virtual_pipeline_stages": is_not(2)},
        "a V schedule has exactly two model chunks a rank, the second ones in reverse order",
        values=V_SCHEDULES,
        fix="set virtual_pipeline_stages to 2",
    ),
    clashes("torch_compile", {"pipeline_schedule": V_SCHEDULES}, f"{_SPLITS_BACKWARD}, not tried with compiled blocks"),
    clashes(
        "zero_stage",
        {"pipeline_schedule": V_SCHEDULES, "shards": at_least(2)},
        f"{_SPLITS_BACKWARD}, which loses gradients of weights that FSDP reshards (torch 2.13)",
        values=(3,),
        fix="set zero_stage to 0 or 2, or pipeline_schedule to 1f1b or interleaved_1f1b",
    ),
    clashes(
        "activation_checkpointing",
        {"pipeline_schedule": V_SCHEDULES},
        f"{_SPLITS_BACKWARD}, and torch gives out a kept result for one backward pass only (2.13)",
        values=("selective",),
        fix="set activation_checkpointing to full or none, or pipeline_schedule to 1f1b or interleaved_1f1b",
    ),
    clashes("tensor_parallel_overlap", {"torch_compile": (False,)}, _ASYNC),
    clashes("tensor_parallel_overlap", {"sequence_parallel": (False,)}, _ASYNC),
    clashes("pipeline_parallel", {"model.tied_embeddings": (True,)}, "torchtitan has no tied embeddings in a pipeline"),
    clashes(
        "attention_kernel",
        {"precision": ("fp32",)},
        "torchtitan's variable-length attention computes in bf16 whatever the precision",
        values=("flash",),
        fix="set precision to bf16, or attention_kernel to flex",
    ),
    clashes(
        "context_parallel",
        {"attention_kernel": ("flash",)},
        "torchtitan's variable-length attention has no context parallelism (models/llama3/model.py)",
        fix="set attention_kernel to flex, or context_parallel to 1",
    ),
    clashes(
        "context_parallel",
        {"zero_stage": (0,)},
        "torchtitan shards the model over context-parallel ranks in any case (distributed/parallel_dims.py)",
        fix="set zero_stage to 2 or 3, or context_parallel to 1",
    ),
    clashes(
        "expert_parallel",
        {"model.num_experts": is_given, "tensor_parallel": at_least(2), "sequence_parallel": (False,)},
        "tensor-parallel ranks route positions of their own to experts (models/common/moe_sharding.py)",
    ),
    clashes(
        "matmul_precision",
        {"model.num_experts": is_given},
        "torchtitan's conversion to mxfp8 names no layers to leave, so it takes routers, too"
        " (components/quantization/mx.py)",
        values=("mxfp8",),
    ),
    clashes(
        "recompute_modules",
        {"activation_checkpointing": ("selective",)},
        "torchtitan recomputes selected operations (ops), not modules",
        values=is_not("ops"),
        fix="leave recompute_modules out, or set activation_checkpointing to full or none",
    ),
)

_TITAN_SIZES: tuple[Rule, ...] = (
    Rule(
        ("grad_accum_steps", "pipeline_parallel"),
        lambda steps, stages: steps < 2 * stages,
        "dualpipev needs at least 2 x pipeline_parallel micro-batches a step",
        "use a smaller micro_batch_size or fewer stages",
        beside={"pipeline_schedule": ("dualpipev",)},
        name="micro_batches",
    ),
    Rule(
        ("model.seq_length", "context_parallel"),
        lambda length, context: context > 1 and length % (FLEX_BLOCK * context),
        f"each context-parallel rank has whole blocks of FlexAttention's mask, {FLEX_BLOCK} positions each",
        "use a smaller context_parallel, or another seq_length",
        name="context_blocks",
    ),
    Rule(
        ("model.seq_length", "context_parallel", "tensor_parallel", "sequence_parallel"),
        lambda length, context, tensor, is_split: context > 1 and length % (2 * context * (tensor if is_split else 1)),
        "2 x context_parallel divides seq_length; with sequence_parallel tensor-parallel ranks split the positions of a"
        " context-parallel rank (trainer.py)",
        "use a smaller context_parallel or tensor_parallel, or set sequence_parallel to false",
        name="context_sequence",
    ),
    Rule(
        ("expert_tensor_parallel", "expert_parallel", "tensor_parallel"),
        lambda split, ranks, tensor: split != (tensor if ranks == 1 else 1),
        "torchtitan splits experts over the tensor-parallel ranks where expert_parallel is 1, and never otherwise",
        "set expert_tensor_parallel to {tensor_parallel} with expert_parallel 1, else to 1",
        beside={"model.num_experts": is_given},
    ),
    Rule(
        ("expert_parallel", "tensor_parallel"),
        lambda ranks, tensor: tensor % ranks,
        "torchtitan distributes experts over ranks that shard, not over replicas",
        "set zero_stage to 2 or 3, or a smaller expert_parallel",
        beside={"model.num_experts": is_given, "zero_stage": (0,)},
    ),
)

_TORCHTITAN: tuple[Rule, ...] = (
    *given_stages,
    *TORCH_SCHEDULE_RULES,
    sharded_replicas,
    *_TITAN_SIZES,
    *_TITAN_TOGETHER,
    flash_heads,
    *quantized_products(TORCHAO_RECIPES),
    some_layers_recomputed,
    *names_modules_as(TORCHTITAN),
    *engine_limits(
        TORCHTITAN,
        {
            "zero_stage": (0, 2, 3),
            "offload": ("none",),
            "precision": ("fp32", "bf16"),
            "attention_kernel": ("flex", "flash"),
            "rank_order": ("tp-dp-pp",),
            "overlap_comm": (False,),
            "bucket_mib": (None,),
            "model.norm": ("rmsnorm",),
            "model.position_embedding": ("rotary",),
            "model.gated_mlp": (True,),
        },
    ),
)
"""Rules of torchtitan's llama3 and qwen3. FSDP always overlaps and has no buckets."""


_WHOLE = "engine torch adds adapters to whole linear modules, as a plain reference for others"
OWN_RULES: EngineRules = {
    ACCELERATE: (*_ACCELERATE, _rotary),
    TORCHTITAN: (*_TORCHTITAN, _sequence, _rotary),
    MEGATRON_CORE: (
        *MEGATRON_RULES,
        clashes("model.num_experts", {"model.linear_biases": (True,)}, "engine {engine} has experts without biases"),
        _sequence,
        _rotary,
        *engine_limits(
            MEGATRON_CORE,
            {
                "zero_stage": (0, 1),
                "offload": ("none",),
                "pipeline_schedule": MEGATRON_SCHEDULES,
                "torch_compile": (False,),
            },
        ),
    ),
    "deepspeed": (
        *DEEPSPEED_RULES,
        # With one data-parallel rank ZeRO 1 does what ZeRO 0 would.
        clashes(
            "precision",
            {"zero_stage": (0,), "data_parallel": at_least(2)},
            "DeepSpeed trains correctly in bf16 and fp16 only with ZeRO stage 1, 2 or 3: without ZeRO it starts at"
            " Adam's second step, and in a pipeline it shards the optimizer anyway",
        ),
        *overlap_in_pipeline,
        *bf16_reductions,
        clashes(
            "torch_compile",
            {"zero_stage": (3,)},
            "DeepSpeed's ZeRO 3 gathers weights module by module within a block, which torch.compile would fuse",
        ),
        _sequence,
        _rotary,
        *_masked_flash,
        _experts_as_layers,
        *engine_limits("deepspeed"),
    ),
    "torch": (
        *TORCH_RULES,
        _sequence,
        _rotary,
        *_masked_flash,
        _experts_as_layers,
        *names_modules_as(TRANSFORMERS),
        clashes("tensor_parallel", {"model.adapters": is_given}, _WHOLE, values=at_least(2)),
        clashes("torch_compile", {"model.adapters": is_given}, _WHOLE),
        *engine_limits("torch"),
    ),
}
"""Rules of the engines of Parlay's trainer."""
