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
from itertools import product
from math import prod
from typing import Any

from search_spaces.engines import OWN_ENGINES
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.axis import Kind
from search_spaces.layouts.layout import AXES, CHOICES, DEGREES, V_SCHEDULES, Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.layouts.workload import Workload
from search_spaces.model_shape import ModelShape
from search_spaces.rules.check import engine_violations
from search_spaces.rules.layout_rules import LEAST_FLEX_HEAD, SPLIT_RULES, is_valid, rules_named
from search_spaces.rules.rule import violations
from trials.diagnostics.covering_array import cover, value_combinations
from trials.diagnostics.named_parity_cases import COMPILED, FEATURES, SILENT_ERRORS, TIED
from trials.diagnostics.parity_models import DRAWN_SHAPES, model_of
from trials.diagnostics.selftest import Case, ExpectedResult

NATIVE_ENGINES = ("deepspeed", "torch")
"""Engines that run on a CPU as they are, with Parlay's own layers inside. Those of megatron-core have cases of their
own."""

GLOBAL_BATCH_SIZE = 8
MOST_RANKS = 8
DRAWS_PER_COMBINATION = 4
"""Draws of the independent axes for each combination of the dependent ones."""

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
    "recompute_modules": ("core_attn", "mlp", "core_attn+mlp", "ops"),
}
_RECOMPUTATION = (
    *((granularity, None, "core_attn") for granularity in CHOICES["activation_checkpointing"]),
    *(("selective", None, modules) for modules in RECOMPUTATION_AXES["recompute_modules"][1:]),
    ("full", 1, "core_attn"),
)
"""Values of `RECOMPUTATION_AXES` that have an effect together. Other modules are those of models with experts, whose
cases have names."""

_OTHERS = {"pipeline_schedule", "torch_compile", "matmul_precision", "rank_order", *RECOMPUTATION_AXES, *DEPENDENT_AXES}


def is_drawn(name: str) -> bool:
    """True for an independent axis of words or a switch of which one of Parlay's engines has several values."""
    axis = AXES[name]
    return axis.kind in (Kind.WORD, Kind.SWITCH) and name not in _OTHERS and bool({*axis.engines} & {*OWN_ENGINES})


INDEPENDENT_AXES: Mapping[str, tuple[Any, ...]] = {
    "recomputation": _RECOMPUTATION,
    **{name: AXES[name].words or (False, True) for name in AXES if is_drawn(name)},
    "bucket_mib": (None, 1),
    "data_parallel_replicas": (1, 2),
    "rank_order": CHOICES["rank_order"],
    "shape": tuple(DRAWN_SHAPES),
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


def covering_cases(
    accelerator: str = "cpu",
    most_ranks: int = MOST_RANKS,
    engines: tuple[str, ...] = NATIVE_ENGINES,
    covers: Covers | None = None,
) -> list[Case]:
    """Few cases of these engines, cheapest first, that cover all pairs and triples, the known silent errors and tied
    weights; or all that each `covers`."""
    named = [
        case
        for case in _valid_named({**SILENT_ERRORS, **TIED, **FEATURES}, accelerator)
        if case.layout.engine in engines
    ]
    chosen = _chosen(_within(most_ranks, valid_cases(accelerator, engines)), covers or covered)
    return chosen + _within(most_ranks, named)


def _within(most_ranks: int, cases: Iterable[Case]) -> list[Case]:
    return [case for case in cases if case.layout.num_gpus <= most_ranks]


def compiled_cases(accelerator: str = "cpu", engines: tuple[str, ...] = NATIVE_ENGINES) -> list[Case]:
    """Cases of these engines with torch.compile; on a CPU they need a C++ compiler."""
    return [case for case in _valid_named(COMPILED, accelerator) if case.layout.engine in engines]


def failing_cases(most_ranks: int = MOST_RANKS) -> list[Case]:
    """Cases that must fail: a model larger than a rank's memory, and a rank that hangs in the middle of a step."""
    data = min(2, most_ranks)
    large = replace(DRAWN_SHAPES["gpt2"], hidden_size=1024, ffn_hidden_size=4096, vocab_size=32768)
    oom = replace(named_case("gpu_oom", data_parallel=data), model=large, expected=ExpectedResult.GPU_OOM)
    return [oom, replace(named_case("hang", data_parallel=data), expected=ExpectedResult.HANG)]


@cache
def valid_cases(accelerator: str, engines: tuple[str, ...] = NATIVE_ENGINES) -> list[Case]:
    """Every valid combination of the dependent axes by these engines, each with a few draws of the independent ones,
    without duplicates."""
    draw, axes = random.Random(0), {**DEPENDENT_AXES, "engine": engines, "schedule": _schedules(engines)}
    ranks = _ranks_to_try(axes)
    offered = {
        name: [v for v in values if _is_offered(axes, ranks, {name: (v,)})]
        for name, values in INDEPENDENT_AXES.items()
        if name not in AXES or any(AXES[name].values_of(engine) != (AXES[name].default,) for engine in engines)
    }
    drawn = [
        _shape_and_layout(**dependent, **{axis: draw.choice(values) for axis, values in offered.items()})
        for dependent in _combinations(axes)
        for _ in range(DRAWS_PER_COMBINATION)
    ]
    distinct = (case_from_layout(*one) for one in dict.fromkeys(drawn))
    return _valid([_for_accelerator(case, accelerator) for case in distinct], accelerator)


def _for_accelerator(case: Case, accelerator: str) -> Case:
    """The case with heads that FlexAttention takes on a GPU."""
    if accelerator == "cpu" or case.layout.attention_kernel != "flex" or case.model.head_size >= LEAST_FLEX_HEAD:
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


def _shape_and_layout(
    shape: str,
    ranks: Sequence[int],
    schedule: tuple[str, int],
    recomputation: Sequence[Any],
    **fields: Any,
) -> tuple[str, Layout]:
    """The model's name and the canonical layout of these axis values."""
    degrees: dict[str, Any] = dict(zip(DEGREES.values(), ranks, strict=True))
    return shape, Layout(
        **degrees,
        **dict(zip(RECOMPUTATION_AXES, recomputation, strict=True)),
        grad_accum_steps=GLOBAL_BATCH_SIZE // (fields["micro_batch_size"] * degrees["data_parallel"]),
        pipeline_schedule=schedule[0],
        virtual_pipeline_stages=schedule[1],
        **fields,
    ).canonical()


def case_from_layout(shape: str, layout: Layout) -> Case:
    """The case that trains this canonical layout on the model of this name."""
    return Case(case_name(shape, layout), shape, model_of(shape, layout.precision), layout)


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


def case_values(case: Case) -> dict[str, Hashable]:
    """The axes' values in the canonical layout."""
    values = case.layout.to_json() | {"shape": case.shape}
    return {axis: values[axis] for axis in VALUES}


def violated_rules(case: Case, accelerator: str) -> list[str]:
    """The rules that refuse a case, by their ids."""
    found = violations(_RULES, case.layout, _workload(case.model, accelerator))
    return [problem.code for problem in (*found, *engine_violations(case.layout, case.model))]


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
    valid = is_valid(table, _workload(cases[0].model, accelerator), _RULES)
    return [case for case, is_kept in zip(cases, valid, strict=True) if is_kept]


def _ranks_to_try(axes: Mapping[str, tuple[Any, ...]]) -> Sequence[int]:
    """Two ranks along every dimension, or data-parallel ranks alone where no engine has others."""
    every = (2,) * len(DEGREES)
    return every if _is_offered(axes, every, {}) else (*(1,) * (len(DEGREES) - 1), 2)


def _is_offered(axes: Mapping[str, tuple[Any, ...]], ranks: Sequence[int], chosen: Mapping[str, tuple]) -> bool:
    """True if one of the engines supports some combination of these values on these ranks in fp32; draws of other
    values would all be rejected."""
    neutral = {loose: values[:1] for loose, values in INDEPENDENT_AXES.items()}
    neutral |= {"shape": tuple(DRAWN_SHAPES), "attention_kernel": CHOICES["attention_kernel"]}
    every = (
        _shape_and_layout(**values)
        for values in _combinations({**axes, "ranks": (ranks,), "precision": ("fp32",), **neutral, **chosen})
    )
    return any(not any(engine_violations(layout, model_of(shape, layout.precision))) for shape, layout in every)


def _chosen(valid: Sequence[Case], covers: Covers) -> list[Case]:
    axes = _varying_axes(valid)
    indices = cover([covers(case, axes) for case in valid], [_cost(case) for case in valid])
    return sorted((valid[index] for index in indices), key=_cost)


def _varying_axes(cases: Sequence[Case]) -> tuple[str, ...]:
    """Covered axes of which the cases have more than one value; any case covers the value of the others."""
    values = [case_values(case) for case in cases]
    return tuple(axis for axis in COVERED_AXES if len({each[axis] for each in values}) > 1)


def _cost(case: Case) -> float:
    """Rough seconds of a case on two cores shared by its ranks: their start, and ten steps in which each micro-batch
    synchronizes all tensor-parallel ranks four times a layer."""
    layout = case.layout
    meetings = 4 * case.model.num_layers // layout.pipeline_parallel if layout.tensor_parallel > 1 else 0
    return 1.0 + 0.4 * layout.num_gpus + 0.002 * layout.grad_accum_steps * meetings * layout.tensor_parallel


Covers = Callable[[Case, Sequence[str]], list[Hashable]]
"""Lists all that a case covers of some axes."""


def covered(case: Case, axes: Sequence[str]) -> list[Hashable]:
    """The values, pairs and triples that a case covers. Half precision says little of a layout, so it only covers
    values."""
    values = case_values(case)
    precision = case.layout.precision
    of_precision: list[Hashable] = [(("precision", precision), (axis, values[axis])) for axis in axes]
    if precision != "fp32":
        return of_precision
    return [*of_precision, *value_combinations(values, axes, 2), *value_combinations(values, TRIPLE_AXES, 3)]


def _valid_named(named: Mapping[str, tuple[str, Mapping[str, Any]]], accelerator: str) -> list[Case]:
    every = (named_case(name, shape, **fields) for name, (shape, fields) in named.items())
    cases = (_for_accelerator(case, accelerator) for case in every)
    return [case for case in cases if not violated_rules(case, accelerator)]


def _workload(model: ModelShape, accelerator: str) -> Workload:
    return Workload(model, Cluster(ACCELERATORS[accelerator], MOST_RANKS, 1), GLOBAL_BATCH_SIZE)


_RULES = (
    *SPLIT_RULES,
    *rules_named("layers", "interleave", "precision", "gpu_only", "sequence_parallel", "flex_head_size"),
    *rules_named("experts", "expert_width", "expert_ranks"),
)
"""Layout rules that a case's construction does not guarantee."""
