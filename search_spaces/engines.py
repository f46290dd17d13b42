"""What each engine can run: the rules that refuse a layout, each named `<engine>.<rule>`. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from search_spaces.errors import Problem
from search_spaces.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.trainer_rules import OWN_ENGINES, TRAINER_RULES, Broken, Rule, not_ours


def broken_engine_rules(layout: Layout, model: ModelShape, engines: tuple[str, ...] = OWN_ENGINES) -> Iterator[Problem]:
    """Every rule of the layout's engine that it breaks, with the numbers; `Problem.code` is the rejection id.

    The layout is judged in its canonical form: a field without effect breaks no rule. `engines` are those of the
    search's trainer; a layout for another one breaks that rule alone.
    """
    canonical = layout.canonical()
    rules = _RULES[layout.engine] if layout.engine in engines else ()
    found = chain(not_ours(layout, engines), *(rule(canonical, model) for rule in rules))
    for name, message, rule, fix in found:
        yield Problem(f"{layout.engine}.{name}", message, rule=rule, fix=fix)


def _stages(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    if layout.pipeline_parallel > model.num_layers:
        yield (
            "layers",
            f"{layout.pipeline_parallel} pipeline stages for {model.num_layers} layers",
            "every stage holds at least one layer; stages need not be equal",
            f"set pipeline_parallel to {model.num_layers} or less",
        )


def _torch_schedule(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    stages, micro_batches = layout.pipeline_parallel, layout.grad_accum_steps
    if layout.pipeline_schedule == "1f1b" and micro_batches < stages:
        yield (
            "micro_batches",
            f"{micro_batches} micro-batches for {stages} stages",
            "torch's 1F1B needs at least as many micro-batches a step as stages",
            "use a smaller micro_batch_size, fewer stages, or the gpipe schedule",
        )
    rounds = max(1, micro_batches // stages)
    if layout.pipeline_schedule == "interleaved_1f1b" and micro_batches % rounds:
        yield (
            "rounds",
            f"{micro_batches} micro-batches in {rounds} rounds over {stages} stages",
            "torch's interleaved 1F1B deals a step's micro-batches to equal rounds, one for each full set of stages",
            f"use a micro_batch_size that makes grad_accum_steps a multiple of {stages}",
        )


def _deepspeed_schedule(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    yield from _one_of(layout.engine, layout, "pipeline_schedule", ("none", "1f1b"))


def _torch_fsdp(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    """ZeRO 2 and 3 are FSDP2, which decides by itself when and in what portions it communicates."""
    given = ["overlap_comm true"] * layout.overlap_comm
    given += [] if layout.bucket_mib is None else [f"bucket_mib {layout.bucket_mib}"]
    if layout.zero_stage >= 2 and given:
        yield (
            "fsdp",
            f"zero_stage is {layout.zero_stage} with {' and '.join(given)}",
            "torch's ZeRO 2 and 3 overlap block by block in any case, and have no buckets",
            "leave overlap_comm false and bucket_mib out, or set zero_stage to 0 or 1",
        )


def _deepspeed_zero(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    if layout.pipeline_parallel > 1 and layout.zero_stage > 1:
        yield (
            "zero_stage",
            f"zero_stage is {layout.zero_stage} with {layout.pipeline_parallel} pipeline stages",
            "DeepSpeed's pipeline runs with ZeRO 0 and 1",
            "set zero_stage to 0 or 1, or pipeline_parallel to 1",
        )
    if layout.offload != "none" and layout.zero_stage == 0:
        yield (
            "offload",
            f"offload is {layout.offload} with zero_stage 0",
            "DeepSpeed offloads the optimizer with ZeRO 1, 2 and 3",
            "set zero_stage to 1, 2 or 3, or offload to none",
        )


def _deepspeed_precision(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    """With one data rank ZeRO 1 does what ZeRO 0 would."""
    if layout.precision != "fp32" and layout.zero_stage == 0 and layout.data_parallel > 1:
        yield (
            "precision",
            f"precision is {layout.precision} with zero_stage 0 over {layout.data_parallel} data ranks",
            "DeepSpeed trains right in bf16 and fp16 with ZeRO 1, 2 and 3: without, it begins with Adam's second step, "
            "or in a pipeline shards the optimizer all the same",
            "set zero_stage to 1, 2 or 3, or precision to fp32",
        )


def _deepspeed_overlap(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    """What DeepSpeed takes without a word, and does nothing with."""
    if layout.overlap_comm and (reason := _why_nothing_overlaps(layout)) is not None:
        yield (
            "overlap_comm",
            f"overlap_comm is true {reason}",
            "DeepSpeed overlaps the backward pass with ZeRO's own reductions only, and without a pipeline",
            "set overlap_comm to false",
        )
    if layout.bucket_mib is not None and layout.zero_stage == 0:
        yield (
            "bucket_mib",
            f"bucket_mib is {layout.bucket_mib} with zero_stage 0",
            "DeepSpeed's buckets are those of ZeRO 1, 2 and 3",
            "leave bucket_mib out, or set zero_stage to 1, 2 or 3",
        )


def _why_nothing_overlaps(layout: Layout) -> str | None:
    if layout.zero_stage == 0:
        return "with zero_stage 0"
    if layout.pipeline_parallel > 1:
        return f"with {layout.pipeline_parallel} pipeline stages"
    if (layout.zero_stage, layout.precision, layout.offload) == (1, "bf16", "none"):
        return "with zero_stage 1 in bf16, which is another optimizer of DeepSpeed's"
    return None


def _deepspeed_compile(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    if layout.torch_compile and layout.zero_stage == 3:
        yield (
            "torch_compile",
            "torch_compile is true with zero_stage 3",
            "DeepSpeed's ZeRO 3 gathers weights between the parts of a block, which torch.compile would take as one",
            "set torch_compile to false, or zero_stage to 0, 1 or 2",
        )


def _sequence(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    if layout.sequence_parallel and model.seq_length % layout.tensor_parallel:
        yield (
            "sequence",
            f"sequences of {model.seq_length} for {layout.tensor_parallel} tensor ranks",
            "with sequence_parallel each tensor rank holds as many positions as any other",
            "use a tensor_parallel that divides seq_length, or set sequence_parallel to false",
        )


def _rotary(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    if model.position_embedding == "rotary" and model.head_size % 2:
        yield (
            "rotary",
            f"heads of size {model.head_size}",
            "rotary positions turn pairs of a head's elements",
            "use a hidden_size that makes hidden_size / num_attention_heads even, or learned positions",
        )


def _one_of(engine: str, owner: Layout | ModelShape, name: str, runs: tuple) -> Iterator[Broken]:
    value = getattr(owner, name)
    if value not in runs:
        choices = " or ".join(str(v).lower() for v in runs)
        rule = f"the {engine} engine runs {name} {choices}"
        yield name, f"{name} is {str(value).lower()}; {rule}", rule, f"set {name} to {choices}"


_RULES: dict[str, tuple[Rule, ...]] = TRAINER_RULES | {
    "torch": (_stages, _torch_schedule, _torch_fsdp, _sequence, _rotary),
    "deepspeed": (
        _stages,
        _deepspeed_schedule,
        _deepspeed_zero,
        _deepspeed_precision,
        _deepspeed_overlap,
        _deepspeed_compile,
        _sequence,
        _rotary,
    ),
}
