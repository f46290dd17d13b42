"""Layouts whose exports trainers' own parsers are asked about: a covering array over the axes, for each trainer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod
from typing import Any

from search_spaces.engines import ACCELERATE, ACCELERATE_LAUNCH, PARLAY, TORCHTITAN
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import AXES, DEGREES, Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.layouts.workload import Workload
from search_spaces.routing import BALANCED
from search_spaces.rules.layout_rules import SPLIT_RULES, is_valid, rules_named
from trials.diagnostics.covering_array import cover, value_combinations
from trials.diagnostics.parity_models import DRAWN_SHAPES
from trials.measure_rules import MeasureRules
from trials.trainers.registry import TRAINERS
from trials.trial import TrialKind, TrialSpec

GLOBAL_BATCH_SIZE = 32
MOST_RANKS = 8
NUM_CASES = 40
NUM_DRAWS = 28_000
MOST_COVERED = 600
"""Layouts among which those that cover the pairs are looked for, which takes as long as their square."""
USUAL_SHARE = 0.5
FORMATS = ("megatron-lm", "megatron-deepspeed", "gpt-neox", "nanotron", "deepspeed", TORCHTITAN, ACCELERATE)
"""Exports that trainers' parsers have read; docs/trainers.md says when, and which are tested."""

_WIDER = {
    "num_layers": 8,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 50_304,
    "seq_length": 1024,
}
_GPT2 = replace(DRAWN_SHAPES["gpt2-tied"], **_WIDER, ffn_hidden_size=1920)
_LLAMA = replace(DRAWN_SHAPES["llama"], **_WIDER | {"num_key_value_heads": 4}, ffn_hidden_size=1376)
_LATENT = replace(
    _LLAMA,
    num_key_value_heads=8,
    attention_head_size=96,
    key_value_latent_size=128,
    rotary_head_size=32,
    value_head_size=64,
)
SHAPES = {
    "gpt2": _GPT2,
    "gpt2-untied": replace(_GPT2, tied_embeddings=False),
    "llama": _LLAMA,
    "llama-tied": replace(_LLAMA, num_key_value_heads=8, tied_embeddings=True),
    "llama3": replace(_LLAMA, rotary_base=500_000),
    "mistral": replace(_LLAMA, attention_head_size=80, rotary_base=1_000_000),
    "qwen2": replace(_LLAMA, qkv_bias=True, rotary_base=1_000_000),
    "qwen3": replace(_LLAMA, attention_head_size=128, qk_norm=True, rotary_base=1_000_000),
    "geglu": replace(_LLAMA, activation="gelu"),
    "reglu": replace(_LLAMA, activation="relu"),
    "biased": replace(_LLAMA, linear_biases=True),
    "nemotron": replace(_LLAMA, ffn_hidden_size=1920, gated_mlp=False, activation="squared_relu"),
    "gpt2-squared-relu": replace(_GPT2, activation="squared_relu"),
    "gpt-oss": replace(_LLAMA, linear_biases=True, sliding_window=128, full_attention_every=2, attention_sinks=True),
    "gpt-oss-moe": replace(
        _LLAMA,
        linear_biases=True,
        attention_sinks=True,
        activation="clamped_swiglu",
        num_experts=8,
        experts_per_token=4,
    ),
    "mixtral": replace(_LLAMA, num_experts=8, experts_per_token=2),
    "qwen3-moe": replace(
        _LLAMA,
        attention_head_size=128,
        qk_norm=True,
        num_experts=16,
        experts_per_token=4,
        expert_ffn_hidden_size=384,
        num_dense_layers=1,
        expert_layer_every=2,
    ),
    "deepseek": replace(
        _LATENT,
        query_latent_size=192,
        num_experts=8,
        experts_per_token=3,
        expert_ffn_hidden_size=256,
        shared_expert_ffn_hidden_size=256,
        num_dense_layers=2,
        num_mtp_layers=1,
    ),
    "latent": _LATENT,
}
"""Models with the features that trainers have; each trainer gets those that it can be told."""

_SIZES = (1, 2, 4)
_RANKS = tuple(sizes for sizes in product(_SIZES, repeat=len(DEGREES)) if prod(sizes) <= MOST_RANKS)
_OTHERS = ("engine", "matmul_precision", "settings")
VALUES: Mapping[str, tuple[Any, ...]] = {
    "micro_batch_size": (1, 2),
    "zero_stage": (0, 1, 2, 3),
    "virtual_pipeline_stages": (1, 2),
    "bucket_mib": (None, 3, 40),
    **{
        name: axis.single_words or (False, True)
        for name, axis in AXES.items()
        if not axis.is_number and name not in _OTHERS
    },
}
"""Values of the axes besides the degrees."""
EXPERT_VALUES: Mapping[str, tuple[Any, ...]] = {"expert_parallel": (1, 2, 4), "expert_tensor_parallel": _SIZES}
"""Values of axes that only models with experts have."""
VALUES_OF_ENGINE: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    TORCHTITAN: {
        "data_parallel_replicas": (1, 2),
        "context_parallel": (1, 1, 2, 4),
        "recompute_layers": (None, 1),
        "matmul_precision": AXES["matmul_precision"].words,
    },
    ACCELERATE_LAUNCH: {"data_parallel_replicas": (1, 2)},
    "megatron-lm": {
        "matmul_precision": AXES["matmul_precision"].words,
        "recompute_modules": (*AXES["recompute_modules"].single_words, "layernorm+moe_act"),
        "cuda_graphs": (
            *("none", "none", "attn", "attn+mlp", "full_iteration"),
            *("attn+moe_router", "moe_router+moe_preprocess", "attn+moe_router+moe_preprocess"),
        ),
        "context_parallel": (1, 1, 2, 4),
        "data_parallel_replicas": (1, 2),
        "pipeline_split": AXES["pipeline_split"].words,
        "first_stage_layers": (None, 1),
        "last_stage_layers": (None, 2),
    },
}
"""Values of more axes, by engine."""
_EXPERTS: Mapping[str, Any] = {
    "data_parallel": 4,
    "expert_parallel": 4,
    "zero_stage": 1,
    "micro_batch_size": 2,
    "grad_accum_steps": 4,
    "precision": "bf16",
    "attention_kernel": "flash",
}
_CAPTURED = {**_EXPERTS, "expert_dispatcher": "hybridep", "cuda_graphs": "full_iteration"}
_CONTEXT = {
    "data_parallel": 2,
    "context_parallel": 4,
    "zero_stage": 1,
    "grad_accum_steps": 16,
    "precision": "bf16",
    "attention_kernel": "flash",
}
_SPLIT_EXPERTS = {"tensor_parallel": 4, "data_parallel": 2, "grad_accum_steps": 16, "sequence_parallel": True}
NAMED: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]] = {
    "megatron-lm": (
        ("mixtral", {**_EXPERTS, "cuda_graphs": "attn+moe_router"}),
        ("mixtral", _CAPTURED),
        ("llama", {**_CONTEXT, "context_transport": "a2a_p2p"}),
        ("gpt-oss-moe", _CAPTURED),
        ("qwen3-moe", {**_EXPERTS, "cuda_graphs": "attn+mlp+moe_router"}),
        ("mixtral", {**_SPLIT_EXPERTS, "expert_tensor_parallel": 4}),
    )
}
"""Shapes and layouts by trainer that draws seldom meet."""
COVERED = ("shape", *DEGREES.values(), *VALUES)


@dataclass(frozen=True)
class Case:
    """A trial whose layout a trainer's export has in `files` (name to text)."""

    spec: TrialSpec
    files: Mapping[str, str]


@cache
def export_cases(trainer: str) -> list[Case]:
    """NUM_CASES layouts: those of `NAMED`, then such that together cover the pairs of axis values that the trainer can
    have, or most of them."""
    form = next(made for one in TRAINERS.values() if (made := one.export) is not None and made.name == trainer)
    specs = _specs(form.engine)
    valid = [spec for spec in specs if form.problem(spec.layout, spec.model) is None]
    valid = valid[:: -(-len(valid) // MOST_COVERED)]
    covered = (*COVERED, *VALUES_OF_ENGINE.get(form.engine, {}), *EXPERT_VALUES)
    pairs = [value_combinations(_axis_values(spec), covered, 2) for spec in valid]
    chosen = dict.fromkeys([*cover(pairs, [1.0] * len(valid)), *range(NUM_CASES)])
    named = [_spec(Layout(**fields, engine=form.engine), shape) for shape, fields in NAMED.get(trainer, ())]
    drawn = [valid[index] for index in chosen]
    return [Case(spec, form.files(spec)) for spec in [*named, *drawn][:NUM_CASES]]


def _axis_values(spec: TrialSpec) -> dict[str, Any]:
    shape = next(name for name, model in SHAPES.items() if model == spec.model)
    return {"shape": shape, **spec.layout.to_json()}


def _specs(engine: str) -> Iterator[TrialSpec]:
    """Trials with seeded draws of every axis, without those that the rules of every engine refuse."""
    draw = random.Random(0)
    for shape, model in SHAPES.items():
        values = _values_of(engine, model.num_experts is not None)
        drawn = {_layout(draw, engine, values): None for _ in range(NUM_DRAWS // len(SHAPES))}
        table = LayoutTable.of(drawn)
        workload = Workload(model, Cluster(ACCELERATORS["h100-80gb"], MOST_RANKS, 1), GLOBAL_BATCH_SIZE)
        for layout, is_kept in zip(drawn, is_valid(table, workload, _RULES), strict=True):
            if is_kept:
                yield _spec(layout, shape)


def _layout(draw: random.Random, engine: str, values: Mapping[str, tuple[Any, ...]]) -> Layout:
    degrees = dict(zip(DEGREES.values(), draw.choice(_RANKS), strict=True))
    fields = {name: _drawn(draw, each, AXES[name].default) for name, each in values.items()}
    steps = GLOBAL_BATCH_SIZE // (fields["micro_batch_size"] * degrees["data_parallel"])
    layout = Layout(**degrees, **fields, grad_accum_steps=steps, engine=engine)
    return replace(layout, num_nodes=-(-layout.num_gpus // MOST_RANKS)).canonical()


def _drawn(draw: random.Random, values: Sequence[Any], usual: Any) -> Any:
    """One of the values, more often the usual one: few layouts that differ from it everywhere keep all rules."""
    return usual if usual in values and draw.random() < USUAL_SHARE else draw.choice(values)


def _values_of(engine: str, has_experts: bool) -> dict[str, tuple[Any, ...]]:
    """Values of the axes of which the engine may have several."""
    known = {**VALUES, **VALUES_OF_ENGINE.get(engine, {}), **(EXPERT_VALUES if has_experts else {})}
    allowed = {name: AXES[name].values_of(engine) for name in known}
    offered = {
        name: tuple(value for value in values if (few := allowed[name]) is None or value in few)
        for name, values in known.items()
    }
    return {name: values for name, values in offered.items() if len(values) > 1}


def _spec(layout: Layout, shape: str) -> TrialSpec:
    """A trial whose routing the export says: a module for torchtitan leaves it to the router."""
    is_forced = SHAPES[shape].num_experts is not None and layout.engine != TORCHTITAN
    return TrialSpec(
        search_id="exports-aaaaaa",
        trial="t0001",
        attempt="a1",
        nonce="0" * 32,
        kind=TrialKind.SEARCH,
        layout=layout,
        model=SHAPES[shape],
        global_batch_size=GLOBAL_BATCH_SIZE,
        num_gpus=layout.num_gpus,
        gpus_per_node=MOST_RANKS,
        accelerator="h100-80gb",
        measure=MeasureRules(routing=BALANCED if is_forced else None),
        trainer={"kind": PARLAY},
    )


_RULES = (
    *SPLIT_RULES,
    *rules_named("layers", "interleave", "precision", "experts", "expert_width", "expert_ranks"),
)
"""Rules of every engine that the draws do not keep by themselves."""
