"""Rules of layouts that several trainers share. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.engine_rules import RuleViolation


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
