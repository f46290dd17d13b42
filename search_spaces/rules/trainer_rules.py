"""What each trainer can run: the rules that refuse a layout for it, by the engine's name. Standard library only.

What its engine allows stands in `engine_rules.py`. The rest is what a trainer's own options and checks
rule out: ours, Megatron-LM megatron/training/arguments.py, Megatron-DeepSpeed megatron/arguments.py, GPT-NeoX
megatron/neox_arguments, nanotron src/nanotron/config and parallel/pipeline_parallel/engine.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces.layouts.layout import OWN_ENGINES, Layout
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
    """A layout for an engine that is none of the search's trainer."""
    if layout.engine not in engines:
        trainer = (
            "Parlay's trainer has the engines" if engines == OWN_ENGINES else "the search's trainer has the engine"
        )
        choices = " and ".join(reversed(engines))
        yield RuleViolation(
            "engine_mismatch",
            f"engine is {layout.engine}",
            f"{trainer} {choices}",
            f"set engine to {choices.replace(' and ', ' or ')}, or launcher.kind to simulated",
        )


# -- Parlay's own


def _stages(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if layout.pipeline_parallel > model.num_layers:
        yield RuleViolation(
            "layers",
            f"{layout.pipeline_parallel} pipeline stages for {model.num_layers} layers",
            "every stage holds at least one layer; stages need not be equal",
            f"set pipeline_parallel to {model.num_layers} or less",
        )


def _sequence(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if layout.sequence_parallel and model.seq_length % layout.tensor_parallel:
        yield RuleViolation(
            "sequence",
            f"sequences of {model.seq_length} for {layout.tensor_parallel} tensor ranks",
            "with sequence_parallel each tensor rank holds as many positions as any other",
            "use a tensor_parallel that divides seq_length, or set sequence_parallel to false",
        )


def _rotary(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if model.position_embedding == "rotary" and model.head_size % 2:
        yield RuleViolation(
            "rotary",
            f"heads of size {model.head_size}",
            "rotary positions turn pairs of a head's elements",
            "use a hidden_size that makes hidden_size / num_attention_heads even, or learned positions",
        )


def _deepspeed_precision(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """With one data rank ZeRO 1 does what ZeRO 0 would."""
    if layout.precision != "fp32" and layout.zero_stage == 0 and layout.data_parallel > 1:
        yield RuleViolation(
            "precision",
            f"precision is {layout.precision} with zero_stage 0 over {layout.data_parallel} data ranks",
            "DeepSpeed trains right in bf16 and fp16 with ZeRO 1, 2 and 3: without, it begins with Adam's second step, "
            "or in a pipeline shards the optimizer all the same",
            "set zero_stage to 1, 2 or 3, or precision to fp32",
        )


def _deepspeed_overlap(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """Where DeepSpeed, driven as our trainer does, overlaps nothing although ZeRO is on."""
    if not layout.overlap_comm or layout.zero_stage == 0:
        return
    if layout.pipeline_parallel > 1:
        yield ineffective_overlap(f"with {layout.pipeline_parallel} pipeline stages")
    elif (layout.zero_stage, layout.precision, layout.offload) == (1, "bf16", "none"):
        yield ineffective_overlap("with zero_stage 1 in bf16, which is another optimizer of DeepSpeed's")


def _deepspeed_compile(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if layout.torch_compile and layout.zero_stage == 3:
        yield RuleViolation(
            "torch_compile",
            "torch_compile is true with zero_stage 3",
            "DeepSpeed's ZeRO 3 gathers weights between the parts of a block, which torch.compile would take as one",
            "set torch_compile to false, or zero_stage to 0, 1 or 2",
        )


# -- somebody else's


def _even_stages(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    stages, chunks = layout.pipeline_parallel, layout.virtual_pipeline_stages
    if model.num_layers % (stages * chunks):
        yield RuleViolation(
            "layers",
            f"{model.num_layers} layers for {stages} stages x {chunks} chunks",
            f"{layout.engine} gives every chunk of every stage the same number of layers",
            "use a pipeline_parallel x virtual_pipeline_stages that divides the layers",
        )


def _whole_rounds(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if layout.virtual_pipeline_stages > 1 and layout.grad_accum_steps % layout.pipeline_parallel:
        yield RuleViolation(
            "micro_batches",
            f"{layout.grad_accum_steps} micro-batches for {layout.pipeline_parallel} interleaved stages",
            f"{layout.engine} interleaves whole rounds: the micro-batches are a multiple of the stages",
            "use another micro_batch_size, or one chunk a stage",
        )


def _megatron_sharding(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """ZeRO 1 is the distributed optimizer; 2 and 3 are Megatron-FSDP, which has no stages."""
    yield from zero_in_pipeline(layout, f"{layout.engine} runs a pipeline with zero_stage 0 or 1")
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
            f"{layout.engine}'s flash attention computes in bf16 and fp16",
            "set precision to bf16, or attention_kernel to math",
        )


def _nanotron_batches(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    rule = "nanotron's 1F1B needs at least as many micro-batches a step as stages less one"
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
    "command": (),  # what its template says, it can run
}
"""Each trainer's rules by the engine's name."""

BRIDGE_RULES: tuple[Rule, ...] = (
    *TRAINER_RULES["megatron-lm"],
    allows_only({"attention_kernel": ("flash",), "precision": ("bf16",)}, who="Megatron-Bridge"),
)
"""NeMo's Megatron-Bridge drives Megatron-LM's core, and is no trainer of a search. Its attention backend is an enum and
fp32 a dtype, which no override in text gives: it takes a flash kernel where it can, and a precision by name, whose fp16
keeps gradients in fp16."""
