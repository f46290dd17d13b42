"""Rules of layouts that several trainers share. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.engine_rules import RuleViolation, ineffective_overlap


def even_stages(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    stages, chunks = layout.pipeline_parallel, layout.virtual_pipeline_stages
    if model.num_layers % (stages * chunks):
        yield RuleViolation(
            "layers",
            f"num_layers {model.num_layers} is not a multiple of pipeline_parallel {stages}"
            f" x virtual_pipeline_stages {chunks}",
            f"{layout.engine} splits the layers evenly over all model chunks",
            "use a pipeline_parallel x virtual_pipeline_stages that divides num_layers",
        )


def half_precision_flash(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if layout.attention_kernel == "flash" and layout.precision == "fp32":
        yield RuleViolation(
            "attention_kernel",
            "attention_kernel is flash with precision fp32",
            f"{layout.engine}'s flash attention supports only bf16 and fp16",
            "set precision to bf16, or attention_kernel to math",
        )


def bf16_reductions(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """Settings of reductions that DeepSpeed's BF16_Optimizer ignores. It takes that one for ZeRO 1 in bf16 where
    gradients are summed in fp32 on the device (runtime/engine.py, _do_optimizer_sanity_check)."""
    if (layout.zero_stage, layout.precision, layout.offload) != (1, "bf16", "none"):
        return
    condition = "with zero_stage 1 in bf16, which DeepSpeed runs with its BF16_Optimizer"
    if layout.overlap_comm:
        yield ineffective_overlap(condition)
    if layout.bucket_mib is not None:
        yield RuleViolation(
            "bucket_mib",
            f"bucket_mib is {layout.bucket_mib} {condition}",
            "DeepSpeed's BF16_Optimizer reduces all gradients at once",
            "leave bucket_mib out, or set zero_stage to 2",
        )
