"""Layouts that are trained to show parity with a plain GPT: a covering array over the axes.

Every pair of axis values that occurs in a valid layout is covered by a case, in fp32 wherever that is valid; so is
every triple of tensor, pipeline, ZeRO stage and schedule. Validity is decided by the engines' rules, so that the cases
grow with the engines. The only randomness is a seeded draw: the same rules give the same cases.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from math import prod
from typing import Any

from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.covering_array import cover, value_combinations
from search_spaces.layouts.layout import AXES, CHOICES, DEGREES, V_SCHEDULES, Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.layouts.workload import Workload
from search_spaces.model_shape import ModelShape
from search_spaces.rules.check import engine_violations
from search_spaces.rules.layout_rules import (
    FLEX_HEAD_SIZE,
    GPU_ONLY,
    INTERLEAVE,
    LAYERS,
    LEAST_FLEX_HEAD,
    PRECISION,
    SEQUENCE_PARALLEL,
    SPLIT_RULES,
    first_violation,
)
from trials.diagnostics.selftest import Case, ExpectedResult

Pair = tuple[tuple[str, Hashable], tuple[str, Hashable]]

NATIVE_ENGINES = ("deepspeed", "torch")
"""Engines that run on a CPU as they are, with Parlay's own layers inside. Those of megatron-core have cases of their
own."""

GLOBAL_BATCH_SIZE = 8
MOST_RANKS = 8
DRAWS_PER_COMBINATION = 4
"""Draws of the independent axes for each combination of the dependent ones."""

_GPT2 = ModelShape(
    num_layers=6,
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=4,
    ffn_hidden_size=256,
    gated_mlp=False,
    vocab_size=32,
    seq_length=32,
    tied_embeddings=False,
    position_embedding="learned",
    norm="layernorm",
)
_LLAMA = replace(
    _GPT2,
    num_layers=8,
    num_attention_heads=8,
    ffn_hidden_size=192,
    gated_mlp=True,
    position_embedding="rotary",
    norm="rmsnorm",
)
SHAPES = {
    "gpt2": _GPT2,
    "gpt2-tied": replace(_GPT2, num_layers=4, tied_embeddings=True),
    "llama": _LLAMA,
    "llama-tied": replace(_LLAMA, num_layers=4, num_key_value_heads=8, tied_embeddings=True),
}
"""Smallest models that show everything: six layers are not a multiple of four stages, eight are two chunks on each of
four; an untied one has more than one bucket of 1 MiB; `llama` shares each key-value head between two heads."""

SHAPE_CHANGES_BY_PRECISION: Mapping[str, Mapping[str, Any]] = {
    "fp32": {},
    "bf16": {"num_layers": 4, "hidden_size": 32, "ffn_hidden_size": 128, "vocab_size": 128, "seq_length": 256},
    "fp16": {"num_layers": 4},
}
"""Changes to the shapes in each precision. A gradient norm of 2 is not reproducible to 1e-3 where each of eight layers
rounds to 8 bits: bf16 weights and autocast differ by that much. With four narrow layers, a large vocabulary and many
tokens the norm is 0.5, and they differ by half of 1e-3. fp16 is slow on a CPU."""

_SIZES = (1, 2, 4)
DEPENDENT_AXES: Mapping[str, tuple[Any, ...]] = {
    "ranks": tuple(sizes for sizes in product(_SIZES, repeat=len(DEGREES)) if prod(sizes) <= MOST_RANKS),
    "zero_stage": (0, 1, 2, 3),
    "offload": CHOICES["offload"],
    "schedule": (("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2)),
    "engine": NATIVE_ENGINES,
    "precision": CHOICES["precision"],
    "micro_batch_size": (1, 2),
}
"""Axes that the engines' rules relate to each other: every combination is tried."""

RECOMPUTATION_AXES: Mapping[str, tuple[Any, ...]] = {
    "activation_checkpointing": CHOICES["activation_checkpointing"],
    "recompute_layers": (None, 1),
    "recompute_modules": CHOICES["recompute_modules"],
}
_RECOMPUTATION = (
    *((granularity, None, "core_attn") for granularity in CHOICES["activation_checkpointing"]),
    *(("selective", None, modules) for modules in CHOICES["recompute_modules"][1:]),
    ("full", 1, "core_attn"),
)
"""Values of `RECOMPUTATION_AXES` that have an effect together."""

_OTHERS = {"pipeline_schedule", "torch_compile", "matmul_precision", "rank_order", *RECOMPUTATION_AXES, *DEPENDENT_AXES}
INDEPENDENT_AXES: Mapping[str, tuple[Any, ...]] = {
    "recomputation": _RECOMPUTATION,
    **{name: axis.words or (False, True) for name, axis in AXES.items() if not axis.is_number and name not in _OTHERS},
    "bucket_mib": (None, 1),
    "data_parallel_replicas": (1, 2),
    "rank_order": CHOICES["rank_order"],
    "shape": tuple(SHAPES),
}
"""Independent axes, the neutral value first: drawn in this order. torch.compile takes minutes on a CPU and has cases of
its own; products of 8-bit floats need a GPU and torchao."""

VALUES: Mapping[str, tuple[Hashable, ...]] = {
    **dict.fromkeys(DEGREES.values(), _SIZES),
    "micro_batch_size": DEPENDENT_AXES["micro_batch_size"],
    "zero_stage": DEPENDENT_AXES["zero_stage"],
    "offload": DEPENDENT_AXES["offload"],
    "virtual_pipeline_stages": (1, 2),
    "pipeline_schedule": CHOICES["pipeline_schedule"],
    "engine": DEPENDENT_AXES["engine"],
    "precision": DEPENDENT_AXES["precision"],
    **RECOMPUTATION_AXES,
    **{name: values for name, values in INDEPENDENT_AXES.items() if name != "recomputation"},
}
"""Every axis as in a canonical layout; all pairs are covered. Accumulation follows from micro-batch and data-parallel
ranks."""

COVERED_AXES = tuple(axis for axis in VALUES if axis != "precision")

TRIPLE_AXES = ("tensor_parallel", "pipeline_parallel", "zero_stage", "pipeline_schedule")

TP2, PP2, DP2 = {"tensor_parallel": 2}, {"pipeline_parallel": 2}, {"data_parallel": 2}
SILENT_ERRORS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    # DeepSpeed's norm leaves out later stages without ZeRO, and counts a tied table twice.
    "clipping-zero0-pipeline": ("gpt2", {"engine": "deepspeed", **PP2}),
    "clipping-zero0-tensor-pipeline": ("gpt2", {"engine": "deepspeed", **TP2, **PP2}),
    "clipping-zero0-pipeline-data": ("llama", {"engine": "deepspeed", **PP2, **DP2}),
    "clipping-zero0-tied": ("gpt2-tied", {"engine": "deepspeed", **PP2}),
    # DeepSpeed's bf16 optimizer without ZeRO begins at Adam's second step; a rule refuses it.
    "bf16-zero0-deepspeed": ("gpt2", {"engine": "deepspeed", "precision": "bf16", **DP2}),
    "bf16-zero0-torch": ("gpt2", {"precision": "bf16", **DP2}),
    "bf16-zero0-pipeline": ("gpt2", {"engine": "deepspeed", "precision": "bf16", **PP2}),
    "tied-zero1-pipeline": ("gpt2-tied", {"engine": "deepspeed", "zero_stage": 1, **PP2, **DP2}),
    "tied-tensor-pipeline": ("llama-tied", {**TP2, **PP2}),
    "tied-zero1-tensor": ("llama-tied", {"engine": "deepspeed", "zero_stage": 1, **TP2, **DP2}),
    "tied-zero3": ("llama-tied", {"zero_stage": 3, **DP2}),
    # Sharding replaces the parameters' objects and loses their attributes: reductions are then skipped.
    "attributes-zero3-sequence": ("gpt2", {"zero_stage": 3, "sequence_parallel": True, **TP2, **DP2}),
    "attributes-zero3-deepspeed": (
        "gpt2",
        {"engine": "deepspeed", "zero_stage": 3, "sequence_parallel": True, **TP2, **DP2},
    ),
}
"""Known cases in which an engine silently trained something else."""

_TITAN = {"engine": "torchtitan", "attention_kernel": "flex"}
TIED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "torchtitan-tied-zero3": ("llama-tied", {"zero_stage": 3, **_TITAN, **DP2}),
    "torchtitan-tied-sequence": ("llama-tied", {"sequence_parallel": True, **_TITAN, **TP2}),
}
"""Tied weights of an engine that has none in a pipeline, for which its models are therefore not drawn."""

COMPILED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "compiled-one-rank": ("llama-tied", {"torch_compile": True}),
    "compiled-tensor-pipeline": ("gpt2-tied", {"torch_compile": True, **TP2, **PP2}),
    "compiled-data-deepspeed": ("gpt2-tied", {"torch_compile": True, "engine": "deepspeed", "zero_stage": 1, **DP2}),
    "compiled-sequence": ("gpt2-tied", {"torch_compile": True, "sequence_parallel": True, **TP2}),
    "compiled-zero3": ("llama-tied", {"torch_compile": True, "zero_stage": 3, **DP2}),
    "compiled-data-accelerate": ("gpt2-tied", {"torch_compile": True, "engine": "accelerate", **DP2}),
    "compiled-zero3-accelerate": (
        "llama-tied",
        {"torch_compile": True, "engine": "accelerate", "zero_stage": 3, **DP2},
    ),
    "compiled-overlap": (
        "gpt2",
        {"torch_compile": True, "zero_stage": 1, "overlap_comm": True, "bucket_mib": 1, **DP2},
    ),
}


def covering_cases(
    accelerator: str = "cpu", most_ranks: int = MOST_RANKS, engines: tuple[str, ...] = NATIVE_ENGINES
) -> list[Case]:
    """Few cases of these engines, cheapest first, that cover all pairs and triples, the known silent errors and tied
    weights."""
    return _covering(_shown, accelerator, most_ranks, engines)


def full_cases(
    accelerator: str = "cpu", most_ranks: int = MOST_RANKS, engines: tuple[str, ...] = NATIVE_ENGINES
) -> list[Case]:
    """Cases that cover every triple on every shape, by every engine, besides those of `covering_cases`."""
    return _covering(_shown_by_shape, accelerator, most_ranks, engines)


def _covering(shown: _Shown, accelerator: str, most_ranks: int, engines: tuple[str, ...]) -> list[Case]:
    named = [case for case in _valid_named({**SILENT_ERRORS, **TIED}, accelerator) if case.layout.engine in engines]
    chosen = _chosen(_within(most_ranks, valid_cases(accelerator, engines)), shown)
    return chosen + _within(most_ranks, named)


def _within(most_ranks: int, cases: Iterable[Case]) -> list[Case]:
    return [case for case in cases if case.layout.num_gpus <= most_ranks]


def compiled_cases(accelerator: str = "cpu", engines: tuple[str, ...] = NATIVE_ENGINES) -> list[Case]:
    """Cases of these engines with torch.compile; on a CPU they need a C++ compiler."""
    return [case for case in _valid_named(COMPILED, accelerator) if case.layout.engine in engines]


def failing_cases(most_ranks: int = MOST_RANKS) -> list[Case]:
    """Cases that must fail: a model larger than a rank's memory, and a rank that hangs in the middle of a step."""
    data = min(2, most_ranks)
    large = replace(_GPT2, hidden_size=1024, ffn_hidden_size=4096, vocab_size=32768)
    oom = replace(named_case("gpu_oom", data_parallel=data), model=large, expected=ExpectedResult.GPU_OOM)
    return [oom, replace(named_case("hang", data_parallel=data), expected=ExpectedResult.HANG)]


@cache
def valid_cases(accelerator: str, engines: tuple[str, ...] = NATIVE_ENGINES) -> list[Case]:
    """Every valid combination of the dependent axes by these engines, each with a few draws of the independent ones,
    without duplicates."""
    draw, axes = random.Random(0), {**DEPENDENT_AXES, "engine": engines, "schedule": _schedules(engines)}
    offered = {
        name: [v for v in values if _is_ever_offered(axes, name, v)]
        for name, values in INDEPENDENT_AXES.items()
        if name not in AXES or any(AXES[name].values_of(engine) != (AXES[name].default,) for engine in engines)
    }
    drawn = [
        case_of(**dependent, **{axis: draw.choice(values) for axis, values in offered.items()})
        for dependent in _combinations(axes)
        for _ in range(DRAWS_PER_COMBINATION)
    ]
    distinct = {case.name: case if accelerator == "cpu" else _for_gpus(case) for case in drawn}
    return _valid(list(distinct.values()), accelerator)


def _for_gpus(case: Case) -> Case:
    """The case with heads that FlexAttention takes on a GPU."""
    if case.layout.attention_kernel != "flex" or case.model.head_size >= LEAST_FLEX_HEAD:
        return case
    wide = LEAST_FLEX_HEAD * case.model.num_attention_heads
    return replace(case, model=replace(case.model, hidden_size=wide))


def _schedules(engines: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Schedules that some of these engines have, each with a number of chunks."""
    words = {
        word
        for engine in engines
        for word in AXES["pipeline_schedule"].values_of(engine) or CHOICES["pipeline_schedule"]
    }
    every = (*DEPENDENT_AXES["schedule"], *((schedule, 2) for schedule in V_SCHEDULES))
    return tuple((schedule, chunks) for schedule, chunks in every if schedule in words)


def named_case(name: str, shape: str = "gpt2", **fields: Any) -> Case:
    """A case with these layout fields, valid or not; micro-batches of two."""
    accumulation = GLOBAL_BATCH_SIZE // 2 // fields.get("data_parallel", 1)
    layout = Layout(micro_batch_size=2, grad_accum_steps=accumulation, **fields).canonical()
    return Case(name, shape, model_of(shape, layout.precision), layout)


def case_of(
    shape: str,
    ranks: Sequence[int],
    schedule: tuple[str, int],
    recomputation: Sequence[Any] = _RECOMPUTATION[0],
    **fields: Any,
) -> Case:
    """The case of these axis values, with a canonical layout."""
    degrees: dict[str, Any] = dict(zip(DEGREES.values(), ranks, strict=True))
    layout = Layout(
        **degrees,
        **dict(zip(RECOMPUTATION_AXES, recomputation, strict=True)),
        grad_accum_steps=GLOBAL_BATCH_SIZE // (fields["micro_batch_size"] * degrees["data_parallel"]),
        pipeline_schedule=schedule[0],
        virtual_pipeline_stages=schedule[1],
        **fields,
    )
    return _case(shape, layout)


def _case(shape: str, layout: Layout) -> Case:
    canonical = layout.canonical()
    return Case(case_name(shape, canonical), shape, model_of(shape, canonical.precision), canonical)


def model_of(shape: str, precision: str) -> ModelShape:
    return replace(SHAPES[shape], **SHAPE_CHANGES_BY_PRECISION[precision])


def case_name(shape: str, layout: Layout) -> str:
    """Engine, model, and the values that are not neutral."""
    return "-".join([layout.engine, shape, *(_name_part(name, getattr(layout, name)) for name in _named(layout))])


_NAMES = {
    "zero_stage": "zero{}",
    "offload": "offload",
    "activation_checkpointing": "{}",
    "sequence_parallel": "sequence",
    "overlap_comm": "overlap",
    "bucket_mib": "bucket{}",
    "rank_order": "{}",
}
"""Parts of a case's name that differ from those of the layout's key."""


def _name_part(name: str, value: Any) -> str:
    return _NAMES[name].format(value) if name in _NAMES else AXES[name].key_part(value)


def _named(layout: Layout) -> list[str]:
    """Fields in a case's name: the micro-batch, and those without their default; rank order and precision last."""
    unnamed = ("num_nodes", "grad_accum_steps", "virtual_pipeline_stages", "engine")
    order = sorted(AXES, key=lambda name: (name == "precision", name == "rank_order"))
    return [
        name
        for name in order
        if name == "micro_batch_size" or (name not in unnamed and getattr(layout, name) != AXES[name].default)
    ]


def axis_values(case: Case) -> dict[str, Hashable]:
    """The axes' values in the canonical layout."""
    values = case.layout.to_json() | {"shape": case.shape}
    return {axis: values[axis] for axis in VALUES}


def violated_rules(case: Case, accelerator: str) -> list[str]:
    """The rules that refuse a case, by their ids."""
    table, workload = LayoutTable.of([case.layout]), _workload(case.model, accelerator)
    layout_rules = [rule.code for rule in _RULES if not rule.is_satisfied(table, workload)[0]]
    return layout_rules + [problem.code for problem in engine_violations(case.layout, case.model)]


def pairs_left_out(cases: Iterable[Case]) -> list[Pair]:
    """Pairs of axis values that none of these cases covers."""
    had = {pair for case in cases for pair in value_combinations(axis_values(case), tuple(VALUES), 2)}
    every = (
        ((a, value_of_a), (b, value_of_b))
        for a, b in combinations(VALUES, 2)
        for value_of_a, value_of_b in product(VALUES[a], VALUES[b])
    )
    return [pair for pair in every if pair not in had]


def exclusion_reasons(pair: Pair, cases: Iterable[Case], accelerator: str) -> frozenset[str]:
    """The fewest rules that refuse this pair in any of these layouts; `canonical` where it cannot even be written,
    `world` where it takes more ranks than there are. Empty where some layout may have it."""
    refusing = (_refusing(pair, case, accelerator) for case in cases)
    return min(refusing, key=lambda rules: (len(rules), "canonical" in rules, sorted(rules)))


def _refusing(pair: Pair, base: Case, accelerator: str) -> frozenset[str]:
    changed = _changed(base, dict(pair))
    if any(axis_values(changed)[axis] != value for axis, value in pair):
        return frozenset({"canonical"})
    world = ["world"] * (changed.layout.num_gpus > MOST_RANKS)
    return frozenset([*world, *violated_rules(changed, accelerator)])


def _changed(base: Case, values: Mapping[str, Any]) -> Case:
    """The case with these axis values replaced."""
    fields = base.layout.to_json() | {axis: value for axis, value in values.items() if axis != "shape"}
    fields["grad_accum_steps"] = GLOBAL_BATCH_SIZE // (fields["micro_batch_size"] * fields["data_parallel"])
    return _case(values.get("shape", base.shape), Layout.from_json(fields))


def _combinations(axes: Mapping[str, Iterable[Any]]) -> Iterator[dict[str, Any]]:
    return (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))


def _valid(cases: Sequence[Case], accelerator: str) -> list[Case]:
    by_model: dict[ModelShape, list[Case]] = {}
    for case in cases:
        by_model.setdefault(case.model, []).append(case)
    kept = [case for same in by_model.values() for case in _keeping_layout_rules(same, accelerator)]
    return [case for case in kept if not any(engine_violations(case.layout, case.model))]


def _keeping_layout_rules(cases: Sequence[Case], accelerator: str) -> list[Case]:
    """The cases, all of one model, that satisfy the rules which their construction does not guarantee."""
    table = LayoutTable.of(case.layout for case in cases)
    broken = first_violation(table, _workload(cases[0].model, accelerator), _RULES)
    return [case for case, first in zip(cases, broken, strict=True) if first == len(_RULES)]


def _is_ever_offered(axes: Mapping[str, tuple[Any, ...]], axis: str, value: Any) -> bool:
    """True if one of the engines supports this value at all; draws of other values would all be rejected. Of two ranks
    along every dimension, or of data-parallel ranks where no engine has others."""
    every = (2,) * len(DEGREES)
    return _is_offered(axes, every, {axis: (value,)}) or (
        not _is_offered(axes, every, {}) and _is_offered(axes, (*(1 for _ in every[1:]), 2), {axis: (value,)})
    )


def _is_offered(axes: Mapping[str, tuple[Any, ...]], ranks: Sequence[int], chosen: Mapping[str, tuple]) -> bool:
    """True if one of the engines supports some combination of these values on these ranks in fp32."""
    neutral = {loose: values[:1] for loose, values in INDEPENDENT_AXES.items()}
    neutral |= {"shape": tuple(SHAPES), "attention_kernel": CHOICES["attention_kernel"]}
    cases = (
        case_of(**values)
        for values in _combinations({**axes, "ranks": (ranks,), "precision": ("fp32",), **neutral, **chosen})
    )
    return any(not any(engine_violations(case.layout, case.model)) for case in cases)


def _chosen(valid: Sequence[Case], shown: _Shown) -> list[Case]:
    axes = _varying_axes(valid)
    indices = cover([shown(case, axes) for case in valid], [_cost(case) for case in valid])
    return sorted((valid[index] for index in indices), key=_cost)


def _varying_axes(cases: Sequence[Case]) -> tuple[str, ...]:
    """Covered axes of which the cases have more than one value; any case covers the value of the others."""
    values = [axis_values(case) for case in cases]
    return tuple(axis for axis in COVERED_AXES if len({each[axis] for each in values}) > 1)


def _cost(case: Case) -> float:
    """Rough seconds of a case on two cores shared by its ranks: their start, and ten steps in which each micro-batch
    synchronizes all tensor-parallel ranks four times a layer."""
    layout = case.layout
    meetings = 4 * case.model.num_layers // layout.pipeline_parallel if layout.tensor_parallel > 1 else 0
    return 1.0 + 0.4 * layout.num_gpus + 0.002 * layout.grad_accum_steps * meetings * layout.tensor_parallel


_Shown = Callable[[Case, Sequence[str]], list[Hashable]]
"""Lists all that a case covers of some axes."""


def _shown(case: Case, axes: Sequence[str]) -> list[Hashable]:
    """The values, pairs and triples that a case covers. Half precision says little of a layout, so it only covers
    values."""
    values = axis_values(case)
    precision = case.layout.precision
    of_precision: list[Hashable] = [(("precision", precision), (axis, values[axis])) for axis in axes]
    if precision != "fp32":
        return of_precision
    return [*of_precision, *value_combinations(values, axes, 2), *value_combinations(values, TRIPLE_AXES, 3)]


def _shown_by_shape(case: Case, axes: Sequence[str]) -> list[Hashable]:
    """The coverage of `_shown`, with the triples of each engine and shape separate."""
    values = axis_values(case)
    triples = [] if case.layout.precision != "fp32" else value_combinations(values, TRIPLE_AXES, 3)
    return _shown(case, axes) + [(case.layout.engine, case.shape, triple) for triple in triples]


def _valid_named(named: Mapping[str, tuple[str, Mapping[str, Any]]], accelerator: str) -> list[Case]:
    cases = (named_case(name, shape, **fields) for name, (shape, fields) in named.items())
    return [case for case in cases if not violated_rules(case, accelerator)]


def _workload(model: ModelShape, accelerator: str) -> Workload:
    return Workload(model, Cluster(ACCELERATORS[accelerator], MOST_RANKS, 1), GLOBAL_BATCH_SIZE)


_RULES = (*SPLIT_RULES.values(), LAYERS, INTERLEAVE, PRECISION, GPU_ONLY, SEQUENCE_PARALLEL, FLEX_HEAD_SIZE)
"""Layout rules that a case's construction does not guarantee."""
