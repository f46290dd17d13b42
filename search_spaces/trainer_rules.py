"""What somebody else's trainer can run: the rules that refuse a layout for it. Standard library only.

They are what a trainer's own options and checks rule out: Megatron-LM megatron/training/arguments.py,
Megatron-DeepSpeed megatron/arguments.py, DeepSpeed deepspeed/runtime/pipe/engine.py, GPT-NeoX megatron/neox_arguments,
nanotron src/nanotron/config and parallel/pipeline_parallel/engine.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from search_spaces.layout import Layout
from search_spaces.model_shape import ModelShape

Broken = tuple[str, str, str, str]
"""Rule's short name, what was found with its numbers, the rule, the fix."""

Rule = Callable[[Layout, ModelShape], Iterator[Broken]]

OWN_ENGINES = ("deepspeed", "torch")
"""The engines of Parlay's own trainer. Every other trainer is an engine of its own name."""


def engines_of(trainer_kind: str) -> tuple[str, ...]:
    return OWN_ENGINES if trainer_kind == "parlay" else (trainer_kind,)


def not_ours(layout: Layout, engines: tuple[str, ...]) -> Iterator[Broken]:
    """A layout for an engine that is none of the search's trainer."""
    if layout.engine not in engines:
        trainer = (
            "Parlay's trainer has the engines" if engines == OWN_ENGINES else "the search's trainer has the engine"
        )
        choices = " and ".join(reversed(engines))
        yield (
            "not_ours",
            f"engine is {layout.engine}",
            f"{trainer} {choices}",
            f"set engine to {choices.replace(' and ', ' or ')}, or launcher.kind to recorded",
        )


def _even_stages(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    stages, chunks = layout.pipeline_parallel, layout.virtual_pipeline_stages
    if model.num_layers % (stages * chunks):
        yield (
            "layers",
            f"{model.num_layers} layers for {stages} stages x {chunks} chunks",
            f"{layout.engine} gives every chunk of every stage the same number of layers",
            "use a pipeline_parallel x virtual_pipeline_stages that divides the layers",
        )


def _whole_rounds(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    if layout.virtual_pipeline_stages > 1 and layout.grad_accum_steps % layout.pipeline_parallel:
        yield (
            "micro_batches",
            f"{layout.grad_accum_steps} micro-batches for {layout.pipeline_parallel} interleaved stages",
            f"{layout.engine} interleaves whole rounds: the micro-batches are a multiple of the stages",
            "use another micro_batch_size, or one chunk a stage",
        )


def _megatron_sharding(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    """ZeRO 1 is the distributed optimizer; 2 and 3 are Megatron-FSDP, which has no stages."""
    if layout.zero_stage > 1 and layout.pipeline_parallel > 1:
        yield _zero_with_stages(layout)
    if layout.offload == "optimizer" and not (layout.zero_stage == 1 and layout.precision == "bf16"):
        yield (
            "offload",
            f"offload optimizer with zero_stage {layout.zero_stage} and precision {layout.precision}",
            "--optimizer-cpu-offload needs the precision-aware distributed optimizer: zero_stage 1 and bf16",
            "set zero_stage to 1 and precision to bf16, or offload to none",
        )


def _megatron_buckets(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    if layout.bucket_mib is not None and not layout.overlap_comm:
        yield (
            "bucket_mib",
            f"bucket_mib {layout.bucket_mib} without overlap_comm",
            "Megatron-LM reduces gradients in buckets only with --overlap-grad-reduce",
            "set overlap_comm to true, or leave bucket_mib out",
        )


def _deepspeed_sharding(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    if layout.zero_stage > 1 and layout.pipeline_parallel > 1:
        yield _zero_with_stages(layout)
    if layout.offload == "optimizer" and layout.zero_stage == 0:
        yield (
            "offload",
            "offload optimizer with zero_stage 0",
            "DeepSpeed offloads the optimizer with ZeRO 1, 2 and 3",
            "set zero_stage to 1 or more",
        )


def _zero_with_stages(layout: Layout) -> Broken:
    return (
        "zero_stage",
        f"zero_stage {layout.zero_stage} with {layout.pipeline_parallel} pipeline stages",
        f"{layout.engine} runs a pipeline with zero_stage 0 or 1",
        "set zero_stage to 1 or less, or pipeline_parallel to 1",
    )


def _half_precision_flash(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    if layout.attention_kernel == "flash" and layout.precision == "fp32":
        yield (
            "attention_kernel",
            "attention_kernel flash with precision fp32",
            f"{layout.engine}'s flash attention computes in bf16 and fp16",
            "set precision to bf16, or attention_kernel to math",
        )


def _nanotron_batches(layout: Layout, model: ModelShape) -> Iterator[Broken]:
    stages = layout.pipeline_parallel
    if layout.pipeline_schedule == "1f1b" and layout.grad_accum_steps < stages - 1:
        yield (
            "micro_batches",
            f"{layout.grad_accum_steps} micro-batches for {stages} stages",
            "nanotron's 1F1B needs at least as many micro-batches a step as stages less one",
            "use a smaller micro_batch_size, fewer stages, or the gpipe schedule",
        )


def _runs(fields: Mapping[str, tuple], of_model: Mapping[str, tuple] | None = None) -> Rule:
    """The fields that have only these values in this trainer."""

    def rule(layout: Layout, model: ModelShape) -> Iterator[Broken]:
        for owner, choices in ((layout, fields), (model, of_model or {})):
            for name, values in choices.items():
                value = getattr(owner, name)
                if value not in values:
                    told = " or ".join(_word(v) for v in values)
                    sentence = f"{layout.engine} runs {name} {told}"
                    yield name, f"{name} is {_word(value)}; {sentence}", sentence, f"set {name} to {told}"

    return rule


def _word(value: object) -> str:
    return "the engine's own" if value is None else str(value).lower()


_SCHEDULES_1F1B = ("none", "1f1b")
_OFF = (False,)

TRAINER_RULES: dict[str, tuple[Rule, ...]] = {
    "megatron-lm": (
        _even_stages,
        _whole_rounds,
        _megatron_sharding,
        _megatron_buckets,
        _half_precision_flash,
        _runs({"pipeline_schedule": (*_SCHEDULES_1F1B, "interleaved_1f1b"), "torch_compile": _OFF}),
    ),
    "megatron-deepspeed": (
        _even_stages,
        _deepspeed_sharding,
        _half_precision_flash,
        _runs({"pipeline_schedule": _SCHEDULES_1F1B, "torch_compile": _OFF, "rank_order": ("tp-dp-pp",)}),
    ),
    "gpt-neox": (
        _deepspeed_sharding,
        _half_precision_flash,
        _runs(
            {
                "pipeline_schedule": _SCHEDULES_1F1B,
                "activation_checkpointing": ("none", "full"),
                "torch_compile": _OFF,
                "rank_order": ("tp-dp-pp",),
            },
            {"gated_mlp": _OFF},
        ),
    ),
    "nanotron": (
        _nanotron_batches,
        _runs(
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
