"""Rules of torchtitan, whichever trainer drives it. Standard library only.

torchtitan 0.3: torchtitan/config/configs.py, torchtitan/distributed and torchtitan/models/common/decoder.py;
torch.distributed.pipelining.schedules.
"""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces.engines import TORCHTITAN
from search_spaces.layouts.layout import V_SCHEDULES, Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.engine_rules import (
    TORCH_SCHEDULE_RULES,
    Rule,
    RuleViolation,
    engine_limits,
    flash_heads,
    given_stages,
    quantized_products,
    sharded_replicas,
    some_layers_recomputed,
)


def _v_schedules(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    schedule, chunks = layout.pipeline_schedule, layout.virtual_pipeline_stages
    if schedule not in V_SCHEDULES:
        return
    if chunks != 2:
        yield RuleViolation(
            "virtual_pipeline_stages",
            f"virtual_pipeline_stages is {chunks} with pipeline_schedule {schedule}",
            f"{schedule} has exactly two model chunks a rank, the second ones in reverse order",
            "set virtual_pipeline_stages to 2",
        )
    if layout.torch_compile:
        yield RuleViolation(
            "torch_compile",
            f"torch_compile is true with pipeline_schedule {schedule}",
            f"{schedule} splits the backward pass, which was not tried with compiled blocks",
            "set torch_compile to false, or pipeline_schedule to 1f1b or interleaved_1f1b",
        )
    if layout.zero_stage == 3 and layout.shards > 1:
        yield RuleViolation(
            "zero_stage",
            f"zero_stage is 3 with pipeline_schedule {schedule}",
            f"{schedule} splits the backward pass, which loses gradients of weights that FSDP reshards (torch 2.13)",
            "set zero_stage to 0 or 2, or pipeline_schedule to 1f1b or interleaved_1f1b",
        )
    if layout.activation_checkpointing == "selective":
        yield RuleViolation(
            "activation_checkpointing",
            f"activation_checkpointing is selective with pipeline_schedule {schedule}",
            f"{schedule} splits the backward pass, and torch gives out a kept result for one backward pass only (2.13)",
            "set activation_checkpointing to full or none, or pipeline_schedule to 1f1b or interleaved_1f1b",
        )
    least = 2 * layout.pipeline_parallel
    if schedule == "dualpipev" and layout.grad_accum_steps < least:
        yield RuleViolation(
            "micro_batches",
            f"{layout.grad_accum_steps} micro-batches for {least} model chunks",
            "dualpipev needs at least 2 x pipeline_parallel micro-batches a step",
            "use a smaller micro_batch_size or fewer stages",
        )


def _tensor_overlap(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    lacking = [name for name in ("torch_compile", "sequence_parallel") if not getattr(layout, name)]
    if layout.tensor_parallel_overlap and lacking:
        yield RuleViolation(
            "tensor_parallel_overlap",
            f"tensor_parallel_overlap is true with {' and '.join(f'{name} false' for name in lacking)}",
            "the compiler overlaps the all-gathers and reduce-scatters of sequence parallelism (async tensor parallel)",
            f"set {' and '.join(lacking)} to true, or tensor_parallel_overlap to false",
        )


def _tied_pipeline(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if model.tied_embeddings and layout.pipeline_parallel > 1:
        yield RuleViolation(
            "tied_embeddings",
            f"pipeline_parallel is {layout.pipeline_parallel} with tied_embeddings true",
            "torchtitan has no tied embeddings in a pipeline",
            "set pipeline_parallel to 1, or model.tied_embeddings to false",
        )


def _chunks(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    chunks = layout.pipeline_parallel * layout.virtual_pipeline_stages
    if chunks > model.num_layers:
        yield RuleViolation(
            "layers",
            f"{chunks} model chunks for {model.num_layers} layers",
            "every model chunk has at least one layer",
            "use fewer stages, or virtual_pipeline_stages 1",
        )


def _flash(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if layout.attention_kernel == "flash" and layout.precision == "fp32":
        yield RuleViolation(
            "attention_kernel",
            "attention_kernel is flash with precision fp32",
            "torchtitan's variable-length attention computes in bf16 whatever the precision",
            "set precision to bf16, or attention_kernel to flex",
        )


FLEX_BLOCK = 128
"""Positions of a block of FlexAttention's masks; torch 2.13, torch/distributed/tensor/experimental/_context_parallel/
_attention.py, _create_cp_block_mask."""


def _context(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    context, length = layout.context_parallel, model.seq_length
    if context == 1:
        return
    if layout.attention_kernel == "flash":
        yield RuleViolation(
            "attention_kernel",
            f"attention_kernel is flash with context_parallel {context}",
            "torchtitan's variable-length attention has no context parallelism (models/llama3/model.py)",
            "set attention_kernel to flex, or context_parallel to 1",
        )
    if layout.zero_stage == 0:
        yield RuleViolation(
            "zero_stage",
            f"zero_stage is 0 with context_parallel {context}",
            "torchtitan shards the model over context-parallel ranks in any case (distributed/parallel_dims.py)",
            "set zero_stage to 2 or 3, or context_parallel to 1",
        )
    if length % (FLEX_BLOCK * context):
        yield RuleViolation(
            "context_blocks",
            f"seq_length {length} is not a multiple of {FLEX_BLOCK} x context_parallel {context}",
            f"each context-parallel rank has whole blocks of FlexAttention's mask, {FLEX_BLOCK} positions each",
            "use a smaller context_parallel, or another seq_length",
        )
    split = layout.tensor_parallel if layout.sequence_parallel else 1
    if length % (2 * split * context):
        yield RuleViolation(
            "context_sequence",
            f"seq_length {length} is not a multiple of 2 x context_parallel {context} x tensor_parallel {split}",
            "with sequence_parallel tensor-parallel ranks split the positions of a context-parallel rank (trainer.py)",
            "use a smaller context_parallel or tensor_parallel, or set sequence_parallel to false",
        )


def _experts(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if model.num_experts is None:
        return
    split = layout.tensor_parallel if layout.expert_parallel == 1 else 1
    if layout.expert_tensor_parallel != split:
        yield RuleViolation(
            "expert_tensor_parallel",
            f"expert_tensor_parallel is {layout.expert_tensor_parallel} with expert_parallel {layout.expert_parallel}"
            f" and tensor_parallel {layout.tensor_parallel}",
            "torchtitan splits experts over the tensor-parallel ranks where expert_parallel is 1, and never otherwise",
            f"set expert_tensor_parallel to {split}",
        )
    if layout.expert_parallel > 1 and layout.tensor_parallel > 1 and not layout.sequence_parallel:
        yield RuleViolation(
            "expert_sequence",
            f"expert_parallel is {layout.expert_parallel} and tensor_parallel {layout.tensor_parallel} with"
            " sequence_parallel false",
            "tensor-parallel ranks route positions of their own to experts (models/common/moe_sharding.py)",
            "set sequence_parallel to true",
        )
    if layout.zero_stage == 0 and layout.tensor_parallel % layout.expert_parallel:
        yield RuleViolation(
            "expert_parallel",
            f"expert_parallel {layout.expert_parallel} does not divide tensor_parallel {layout.tensor_parallel} with"
            " zero_stage 0",
            "torchtitan distributes experts over ranks that shard, not over replicas",
            "set zero_stage to 2 or 3, or a smaller expert_parallel",
        )


def _split(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    yield from given_stages(layout, model)
    numbers = [name for name in ("first_stage_layers", "last_stage_layers") if getattr(layout, name) is not None]
    if layout.pipeline_schedule in V_SCHEDULES and numbers:
        yield RuleViolation(
            "pipeline_split",
            f"{numbers[0]} is {getattr(layout, numbers[0])} with pipeline_schedule {layout.pipeline_schedule}",
            "the first stage of a V schedule has the model's first and last layers",
            "use pipeline_split instead, or another schedule",
        )


def _expert_products(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if model.num_experts is not None and layout.matmul_precision == "mxfp8":
        yield RuleViolation(
            "expert_products",
            "matmul_precision is mxfp8 with experts",
            "torchtitan's conversion to mxfp8 names no layers to leave, so it takes routers, too"
            " (components/quantization/mx.py)",
            "set matmul_precision to another recipe, or to same",
        )


def _selective(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """Modules, which are recomputed only where `recompute_modules` has an effect."""
    if layout.activation_checkpointing == "selective" and layout.recompute_modules != "ops":
        yield RuleViolation(
            "recompute_modules",
            f"recompute_modules is {layout.recompute_modules}",
            "torchtitan recomputes selected operations (ops), not modules",
            "leave recompute_modules out, or set activation_checkpointing to full or none",
        )


TORCHTITAN_RULES: tuple[Rule, ...] = (
    _chunks,
    _split,
    *TORCH_SCHEDULE_RULES,
    sharded_replicas,
    _v_schedules,
    _tensor_overlap,
    _tied_pipeline,
    _flash,
    flash_heads,
    quantized_products,
    _context,
    _experts,
    _expert_products,
    _selective,
    some_layers_recomputed,
    engine_limits(
        TORCHTITAN,
        {
            "zero_stage": (0, 2, 3),
            "offload": ("none",),
            "precision": ("fp32", "bf16"),
            "attention_kernel": ("flex", "flash"),
            "rank_order": ("tp-dp-pp",),
            "overlap_comm": (False,),
            "bucket_mib": (None,),
        },
        {"norm": ("rmsnorm",), "position_embedding": ("rotary",), "gated_mlp": (True,)},
    ),
)
"""Rules of torchtitan's llama3 and qwen3. FSDP always overlaps and has no buckets."""
