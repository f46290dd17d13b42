"""Rules of the trainers by engine name: which layouts each cannot run. Standard library only.

Rules of the engines below them are in `engine_rules.py`. The rest follows from a trainer's own options and checks:
ours, Megatron-LM megatron/training/arguments.py, Megatron-DeepSpeed megatron/arguments.py, GPT-NeoX
megatron/neox_arguments, nanotron src/nanotron/config and parallel/pipeline_parallel/engine.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces.engines import OWN_ENGINES
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.engine_rules import (
    DEEPSPEED_RULES,
    TORCH_RULES,
    Rule,
    RuleViolation,
    allows_only,
    ineffective_overlap,
    too_few_micro_batches,
    zero_in_pipeline,
)


def engine_mismatch(layout: Layout, engines: tuple[str, ...]) -> Iterator[RuleViolation]:
    """A layout for an engine that the search's trainer does not have."""
    if layout.engine not in engines:
        trainer = (
            "Parlay's trainer supports the engines"
            if engines == OWN_ENGINES
            else "the search's trainer supports the engine"
        )
        choices = " and ".join(reversed(engines))
        yield RuleViolation(
            "engine_mismatch",
            f"engine is {layout.engine}",
            f"{trainer} {choices}",
            f"set engine to {choices.replace(' and ', ' or ')}, or launcher.kind to simulated",
        )


# -- Parlay's trainer


def _stages(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if layout.pipeline_parallel > model.num_layers:
        yield RuleViolation(
            "layers",
            f"{layout.pipeline_parallel} pipeline stages for {model.num_layers} layers",
            "every pipeline stage has at least one layer; stages may be uneven",
            f"set pipeline_parallel to {model.num_layers} or less",
        )


def _sequence(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if layout.sequence_parallel and model.seq_length % layout.tensor_parallel:
        yield RuleViolation(
            "sequence",
            f"seq_length {model.seq_length} is not a multiple of tensor_parallel {layout.tensor_parallel}",
            "sequence_parallel splits the sequence evenly over the tensor-parallel ranks",
            "use a tensor_parallel that divides seq_length, or set sequence_parallel to false",
        )


def _rotary(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if model.position_embedding == "rotary" and model.head_size % 2:
        yield RuleViolation(
            "rotary",
            f"the head size is {model.head_size}",
            "rotary embeddings rotate pairs of a head's elements, so the head size is even",
            "use a hidden_size that makes hidden_size / num_attention_heads even, or learned positions",
        )


def _deepspeed_precision(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """With one data-parallel rank ZeRO 1 does what ZeRO 0 would."""
    if layout.precision != "fp32" and layout.zero_stage == 0 and layout.data_parallel > 1:
        yield RuleViolation(
            "precision",
            f"precision is {layout.precision} with zero_stage 0 and data_parallel {layout.data_parallel}",
            "DeepSpeed trains correctly in bf16 and fp16 only with ZeRO stage 1, 2 or 3: without ZeRO it starts at "
            "Adam's second step, and in a pipeline it shards the optimizer anyway",
            "set zero_stage to 1, 2 or 3, or precision to fp32",
        )


def _deepspeed_overlap(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """Layouts with ZeRO in which DeepSpeed, as our trainer drives it, overlaps nothing."""
    if not layout.overlap_comm or layout.zero_stage == 0:
        return
    if layout.pipeline_parallel > 1:
        yield ineffective_overlap(f"with pipeline_parallel {layout.pipeline_parallel}")
    elif (layout.zero_stage, layout.precision, layout.offload) == (1, "bf16", "none"):
        yield ineffective_overlap("with zero_stage 1 in bf16, which DeepSpeed runs with its BF16_Optimizer")


def _deepspeed_compile(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if layout.torch_compile and layout.zero_stage == 3:
        yield RuleViolation(
            "torch_compile",
            "torch_compile is true with zero_stage 3",
            "DeepSpeed's ZeRO 3 gathers weights module by module within a block, which torch.compile would fuse",
            "set torch_compile to false, or zero_stage to 0, 1 or 2",
        )


# -- third-party trainers


def _even_stages(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    stages, chunks = layout.pipeline_parallel, layout.virtual_pipeline_stages
    if model.num_layers % (stages * chunks):
        yield RuleViolation(
            "layers",
            f"num_layers {model.num_layers} is not a multiple of pipeline_parallel {stages}"
            f" x virtual_pipeline_stages {chunks}",
            f"{layout.engine} splits the layers evenly over all model chunks",
            "use a pipeline_parallel x virtual_pipeline_stages that divides num_layers",
        )


def _whole_rounds(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if layout.virtual_pipeline_stages > 1 and layout.grad_accum_steps % layout.pipeline_parallel:
        yield RuleViolation(
            "micro_batches",
            f"{layout.grad_accum_steps} micro-batches for {layout.pipeline_parallel} interleaved pipeline stages",
            f"{layout.engine}'s interleaved 1F1B needs grad_accum_steps to be a multiple of pipeline_parallel",
            "use another micro_batch_size, or virtual_pipeline_stages 1",
        )


def _megatron_sharding(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """ZeRO 1 is the distributed optimizer; 2 and 3 are Megatron-FSDP, which has no pipeline."""
    yield from zero_in_pipeline(layout, f"{layout.engine} supports zero_stage 0 and 1 in a pipeline")
    if layout.offload == "optimizer" and not (layout.zero_stage == 1 and layout.precision == "bf16"):
        yield RuleViolation(
            "offload",
            f"offload is optimizer with zero_stage {layout.zero_stage} and precision {layout.precision}",
            "--optimizer-cpu-offload needs the precision-aware distributed optimizer: zero_stage 1 and bf16",
            "set zero_stage to 1 and precision to bf16, or offload to none",
        )


def _megatron_buckets(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if layout.bucket_mib is not None and not layout.overlap_comm:
        yield RuleViolation(
            "bucket_mib",
            f"bucket_mib is {layout.bucket_mib} without overlap_comm",
            "Megatron-LM reduces gradients in buckets only with --overlap-grad-reduce",
            "set overlap_comm to true, or leave bucket_mib out",
        )


def _half_precision_flash(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if layout.attention_kernel == "flash" and layout.precision == "fp32":
        yield RuleViolation(
            "attention_kernel",
            "attention_kernel is flash with precision fp32",
            f"{layout.engine}'s flash attention supports only bf16 and fp16",
            "set precision to bf16, or attention_kernel to math",
        )


def _nanotron_batches(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    rule = "nanotron's 1F1B needs at least pipeline_parallel - 1 micro-batches a step"
    yield from too_few_micro_batches(layout, layout.pipeline_parallel - 1, rule)


_OFF = (False,)

TRAINER_RULES: dict[str, tuple[Rule, ...]] = {
    "torch": (_stages, *TORCH_RULES, _sequence, _rotary),
    "deepspeed": (
        _stages,
        *DEEPSPEED_RULES,
        _deepspeed_precision,
        _deepspeed_overlap,
        _deepspeed_compile,
        _sequence,
        _rotary,
    ),
    "megatron-lm": (
        _even_stages,
        _whole_rounds,
        _megatron_sharding,
        _megatron_buckets,
        _half_precision_flash,
        allows_only({"pipeline_schedule": ("none", "1f1b", "interleaved_1f1b"), "torch_compile": _OFF}),
    ),
    "megatron-deepspeed": (
        _even_stages,
        *DEEPSPEED_RULES,
        _half_precision_flash,
        allows_only({"torch_compile": _OFF, "rank_order": ("tp-dp-pp",)}),
    ),
    "gpt-neox": (
        *DEEPSPEED_RULES,
        _half_precision_flash,
        allows_only(
            {"activation_checkpointing": ("none", "full"), "torch_compile": _OFF, "rank_order": ("tp-dp-pp",)},
        ),
    ),
    "nanotron": (
        _nanotron_batches,
        allows_only(
            {
                "pipeline_schedule": ("none", "1f1b", "gpipe"),
                "zero_stage": (0, 1),
                "offload": ("none",),
                "activation_checkpointing": ("none", "full"),
                "precision": ("bf16", "fp16"),
                "attention_kernel": ("flash",),
                "torch_compile": _OFF,
                "rank_order": ("tp-dp-pp",),
                "overlap_comm": _OFF,
                "bucket_mib": (None,),
            },
            {"gated_mlp": (True,), "norm": ("rmsnorm",), "position_embedding": ("rotary",)},
        ),
    ),
    "command": (),  # its template decides
}
"""Each trainer's rules by engine name."""

BRIDGE_RULES: tuple[Rule, ...] = (
    *TRAINER_RULES["megatron-lm"],
    allows_only({"attention_kernel": ("flash",), "precision": ("bf16",)}, owner="Megatron-Bridge"),
)
"""Rules of NeMo's Megatron-Bridge, which drives Megatron-LM's core and is not a trainer of a search.

Its attention backend is an enum and fp32 a dtype, neither of which a text override can set: it takes a flash kernel
where it can, and a precision by name, whose fp16 keeps gradients in fp16.
"""
