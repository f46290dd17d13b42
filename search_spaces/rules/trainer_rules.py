"""Rules of Parlay's own trainer: which layouts its engines cannot run. Standard library only.

Rules of DeepSpeed, torch and megatron-core themselves are in `engine_rules.py`, those of other trainers in their
packages (trials/trainers).
"""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces.engines import ACCELERATE, MEGATRON_CORE, OWN_ENGINES, TORCHTITAN
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.accelerate_rules import ACCELERATE_RULES
from search_spaces.rules.engine_rules import (
    DEEPSPEED_RULES,
    MEGATRON_RULES,
    MEGATRON_SCHEDULES,
    TORCH_RULES,
    EngineRules,
    Rule,
    RuleViolation,
    at_least,
    bf16_reductions,
    clashes,
    engine_limits,
    is_given,
    overlap_in_pipeline,
)
from search_spaces.rules.torchtitan_rules import TORCHTITAN_RULES


def engine_mismatch(layout: Layout, engines: tuple[str, ...]) -> Iterator[RuleViolation]:
    """A layout for an engine that the search's trainer does not have."""
    if layout.engine not in engines:
        trainer = (
            "Parlay's trainer supports the engines"
            if engines == OWN_ENGINES
            else "the search's trainer supports the engine"
        )
        choices = ", ".join(reversed(engines))
        yield RuleViolation(
            "engine_mismatch",
            f"engine is {layout.engine}",
            f"{trainer} {choices}",
            "set engine to one of these, or launcher.kind to simulated",
        )


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
            "use an even head size (attention_head_size, or hidden_size / num_attention_heads), or learned positions",
        )


def _experts_as_layers(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if model.num_experts is not None and layout.expert_tensor_parallel != layout.tensor_parallel:
        yield RuleViolation(
            "expert_tensor_parallel",
            f"expert_tensor_parallel is {layout.expert_tensor_parallel} with tensor_parallel {layout.tensor_parallel}",
            f"engine {layout.engine} splits every expert over the tensor-parallel ranks, as all other layers",
            f"set expert_tensor_parallel to {layout.tensor_parallel}, or use another engine",
        )


_MASKED_FLASH = "torch's flash attention has a causal mask over the whole sequence, and no sinks"
_masked_flash: tuple[Rule, ...] = (
    clashes("attention_kernel", {"model.sliding_window": is_given}, _MASKED_FLASH, values=("flash",)),
    clashes("attention_kernel", {"model.attention_sinks": (True,)}, _MASKED_FLASH, values=("flash",)),
)

OWN_RULES: EngineRules = {
    ACCELERATE: (*ACCELERATE_RULES, _rotary),
    TORCHTITAN: (*TORCHTITAN_RULES, _sequence, _rotary),
    MEGATRON_CORE: (
        *MEGATRON_RULES,
        clashes("model.num_experts", {"model.linear_biases": (True,)}, "engine {engine} has experts without biases"),
        _sequence,
        _rotary,
        engine_limits(
            MEGATRON_CORE,
            {
                "zero_stage": (0, 1),
                "offload": ("none",),
                "pipeline_schedule": MEGATRON_SCHEDULES,
                "torch_compile": (False,),
            },
        ),
    ),
    "deepspeed": (
        _stages,
        *DEEPSPEED_RULES,
        # With one data-parallel rank ZeRO 1 does what ZeRO 0 would.
        clashes(
            "precision",
            {"zero_stage": (0,), "data_parallel": at_least(2)},
            "DeepSpeed trains correctly in bf16 and fp16 only with ZeRO stage 1, 2 or 3: without ZeRO it starts at"
            " Adam's second step, and in a pipeline it shards the optimizer anyway",
        ),
        *overlap_in_pipeline,
        *bf16_reductions,
        clashes(
            "torch_compile",
            {"zero_stage": (3,)},
            "DeepSpeed's ZeRO 3 gathers weights module by module within a block, which torch.compile would fuse",
        ),
        _sequence,
        _rotary,
        *_masked_flash,
        _experts_as_layers,
        engine_limits("deepspeed"),
    ),
    "torch": (_stages, *TORCH_RULES, _sequence, _rotary, *_masked_flash, _experts_as_layers, engine_limits("torch")),
}
"""Rules of the engines of Parlay's trainer."""
