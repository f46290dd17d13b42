"""What DeepSpeed and torch themselves can run, whoever's trainer drives them, and how a rule is told.

Standard library only. DeepSpeed 0.19 deepspeed/runtime/engine.py, runtime/pipe/engine.py and runtime/zero;
torch.distributed.pipelining.schedules and torch.distributed.fsdp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape


class RuleViolation(NamedTuple):
    """A rule that a layout violates: the rule's short name, the finding with its numbers, the rule and the fix."""

    name: str
    message: str
    rule: str
    fix: str


Rule = Callable[[Layout, ModelShape], Iterator[RuleViolation]]


def allows_only(
    fields: Mapping[str, tuple], of_model: Mapping[str, tuple] | None = None, *, who: str | None = None
) -> Rule:
    """The layout's and the model's fields that have only these values in `who`, by default the engine of that name."""

    def rule(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
        for owner, choices in ((layout, fields), (model, of_model or {})):
            for name, values in choices.items():
                value = getattr(owner, name)
                if value not in values:
                    told = " or ".join(_word(v) for v in values)
                    sentence = f"{who or layout.engine} runs {name} {told}"
                    message = f"{name} is {_word(value)}; {sentence}"
                    yield RuleViolation(name, message, sentence, f"set {name} to {told}")

    return rule


def _word(value: object) -> str:
    return "the engine's own" if value is None else str(value).lower()


def zero_in_pipeline(layout: Layout, rule: str) -> Iterator[RuleViolation]:
    """ZeRO 2 and 3 in a pipeline, for who cannot."""
    if layout.zero_stage > 1 and layout.pipeline_parallel > 1:
        yield RuleViolation(
            "zero_stage",
            f"zero_stage is {layout.zero_stage} with {layout.pipeline_parallel} pipeline stages",
            rule,
            "set zero_stage to 0 or 1, or pipeline_parallel to 1",
        )


def too_few_micro_batches(layout: Layout, least: int, rule: str) -> Iterator[RuleViolation]:
    """Fewer than `least` micro-batches a step in 1F1B, for who needs as many."""
    if layout.pipeline_schedule == "1f1b" and layout.grad_accum_steps < least:
        yield RuleViolation(
            "micro_batches",
            f"{layout.grad_accum_steps} micro-batches for {layout.pipeline_parallel} stages",
            rule,
            "use a smaller micro_batch_size, fewer stages, or the gpipe schedule",
        )


# -- DeepSpeed


def _deepspeed_pipeline(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    yield from zero_in_pipeline(layout, "DeepSpeed's pipeline runs with ZeRO 0 and 1")


def _deepspeed_without_zero(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """What DeepSpeed's section on ZeRO says counts for nothing with ZeRO 0, and DeepSpeed says no word of it."""
    if layout.zero_stage > 0:
        return
    if layout.offload != "none":
        yield RuleViolation(
            "offload",
            f"offload is {layout.offload} with zero_stage 0",
            "DeepSpeed offloads the optimizer with ZeRO 1, 2 and 3",
            "set zero_stage to 1, 2 or 3, or offload to none",
        )
    if layout.overlap_comm:
        yield ineffective_overlap("with zero_stage 0")
    if layout.bucket_mib is not None:
        yield RuleViolation(
            "bucket_mib",
            f"bucket_mib is {layout.bucket_mib} with zero_stage 0",
            "DeepSpeed's buckets are those of ZeRO 1, 2 and 3",
            "leave bucket_mib out, or set zero_stage to 1, 2 or 3",
        )


def ineffective_overlap(why: str) -> RuleViolation:
    """An overlap_comm that DeepSpeed takes without a word, and does nothing with."""
    return RuleViolation(
        "overlap_comm",
        f"overlap_comm is true {why}",
        "DeepSpeed overlaps the backward pass with ZeRO's own reductions only, and without a pipeline",
        "set overlap_comm to false",
    )


DEEPSPEED_RULES: tuple[Rule, ...] = (
    allows_only({"pipeline_schedule": ("none", "1f1b")}, who="DeepSpeed"),
    _deepspeed_pipeline,
    _deepspeed_without_zero,
)
"""What every trainer on DeepSpeed has to keep to."""


# -- torch


def _torch_schedule(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    stages, micro_batches = layout.pipeline_parallel, layout.grad_accum_steps
    yield from too_few_micro_batches(
        layout, stages, "torch's 1F1B needs at least as many micro-batches a step as stages"
    )
    rounds = max(1, micro_batches // stages)
    if layout.pipeline_schedule == "interleaved_1f1b" and micro_batches % rounds:
        yield RuleViolation(
            "rounds",
            f"{micro_batches} micro-batches in {rounds} rounds over {stages} stages",
            "torch's interleaved 1F1B deals a step's micro-batches to equal rounds, one for each full set of stages",
            f"use a micro_batch_size that makes grad_accum_steps a multiple of {stages}",
        )


def _torch_fsdp(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """ZeRO 2 and 3 are FSDP2, which decides by itself when and in what portions it communicates."""
    given = ["overlap_comm true"] * layout.overlap_comm
    given += [] if layout.bucket_mib is None else [f"bucket_mib {layout.bucket_mib}"]
    if layout.zero_stage >= 2 and given:
        yield RuleViolation(
            "fsdp",
            f"zero_stage is {layout.zero_stage} with {' and '.join(given)}",
            "torch's ZeRO 2 and 3 overlap block by block in any case, and have no buckets",
            "leave overlap_comm false and bucket_mib out, or set zero_stage to 0 or 1",
        )


TORCH_RULES: tuple[Rule, ...] = (_torch_schedule, _torch_fsdp)
"""What torch's pipelines and FSDP2 rule out."""
