"""Rules of torchtitan, whichever trainer drives it. Standard library only.

torchtitan 0.3: torchtitan/config/configs.py, torchtitan/distributed and torchtitan/models/common/decoder.py;
torch.distributed.pipelining.schedules.
"""

from __future__ import annotations

from search_spaces.engines import TORCHTITAN
from search_spaces.layouts.layout import V_SCHEDULES
from search_spaces.layouts.matmul_recipes import TORCHAO_RECIPES
from search_spaces.rules.engine_rules import (
    TORCH_SCHEDULE_RULES,
    flash_heads,
    given_stages,
    quantized_products,
    sharded_replicas,
    some_layers_recomputed,
)
from search_spaces.rules.rule import Rule, at_least, clashes, engine_limits, is_given, is_not

FLEX_BLOCK = 128
"""Positions of a block of FlexAttention's masks; torch 2.13, torch/distributed/tensor/experimental/_context_parallel/
_attention.py, _create_cp_block_mask."""

_SPLITS_BACKWARD = "a V schedule splits the backward pass"
_ASYNC = "the compiler overlaps the all-gathers and reduce-scatters of sequence parallelism (async tensor parallel)"
_V_STAGES = "the first stage of a V schedule has the model's first and last layers"
_TOGETHER: tuple[Rule, ...] = (
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

_SIZES: tuple[Rule, ...] = (
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

TORCHTITAN_RULES: tuple[Rule, ...] = (
    *given_stages,
    *TORCH_SCHEDULE_RULES,
    sharded_replicas,
    *_SIZES,
    *_TOGETHER,
    flash_heads,
    *quantized_products(TORCHAO_RECIPES),
    some_layers_recomputed,
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
