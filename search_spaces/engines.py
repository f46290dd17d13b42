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
    yield from _one_of(layout.engine, layout, "pipeline_schedule", ("none", "gpipe", "1f1b"))
    if layout.pipeline_schedule == "1f1b" and layout.grad_accum_steps < layout.pipeline_parallel:
        yield (
            "micro_batches",
            f"{layout.grad_accum_steps} micro-batches for {layout.pipeline_parallel} stages",
            "torch's 1F1B needs at least as many micro-batches a step as stages",
            "use a smaller micro_batch_size, fewer stages, or the gpipe schedule",
        )


def _deepspeed_schedule(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    yield from _one_of(layout.engine, layout, "pipeline_schedule", ("none", "1f1b"))


def _torch_zero(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    yield from _one_of(layout.engine, layout, "zero_stage", (0,))


def _deepspeed_zero(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    yield from _one_of(layout.engine, layout, "zero_stage", (0, 1))


def _torch_precision(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    """bf16 is autocast: matrix products in bf16; weights, gradients, optimizer and the residual stream in fp32."""
    yield from _one_of(layout.engine, layout, "precision", ("fp32", "bf16"))


def _deepspeed_precision(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    yield from _one_of(layout.engine, layout, "precision", ("fp32",))


def _knobs(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    yield from _one_of(layout.engine, layout, "offload", ("none",))
    yield from _one_of(layout.engine, layout, "activation_checkpointing", ("none", "full"))
    yield from _one_of(layout.engine, layout, "sequence_parallel", (False,))
    yield from _one_of(layout.engine, layout, "torch_compile", (False,))
    yield from _one_of(layout.engine, layout, "rank_order", ("tp-dp-pp",))
    yield from _one_of(layout.engine, layout, "overlap_comm", (False,))
    yield from _one_of(layout.engine, layout, "bucket_mib", (None,))


def _model(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    yield from _one_of(layout.engine, model, "norm", ("layernorm",))
    yield from _one_of(layout.engine, model, "position_embedding", ("learned",))
    yield from _one_of(layout.engine, model, "gated_mlp", (False,))
    yield from _one_of(layout.engine, model, "num_key_value_heads", (model.num_attention_heads,))


def _one_of(engine: str, owner: Layout | ModelShape, name: str, runs: tuple) -> Iterator[Broken]:
    value = getattr(owner, name)
    if value not in runs:
        choices = " or ".join(str(v).lower() for v in runs)
        rule = f"the {engine} engine runs {name} {choices}"
        yield name, f"{name} is {str(value).lower()}; {rule}", rule, f"set {name} to {choices}"


_RULES: dict[str, tuple[Rule, ...]] = TRAINER_RULES | {
    "torch": (_stages, _torch_schedule, _torch_zero, _torch_precision, _knobs, _model),
    "deepspeed": (_stages, _deepspeed_schedule, _deepspeed_zero, _deepspeed_precision, _knobs, _model),
}
