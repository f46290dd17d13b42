"""Expected speed of one training, whether a measured one is normal, and what would explain a slow one. Pure; numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from orchestrator.config.answer import Answer, AnswerPart
from orchestrator.planning.expect_causes import SlowCause, causes_of
from orchestrator.planning.expected_rate import Expected, Training, Z
from search_spaces.errors import InputError
from search_spaces.hardware.arithmetic import peak_flops_of
from search_spaces.tables.published import Published, read_published
from trials.trial import LowerStrEnum

_WIDEST = 2.5
"""Largest factor between the expected rate and an end of its interval of which a verdict is given."""
_NEAREST = 3


class SpeedVerdict(LowerStrEnum):
    """Whether a measured speed is what the training should have."""

    NORMAL = "normal"
    SLOW = "slow"
    UNKNOWN = "too little known"
    """The expected interval is too wide, or no speed was given."""


class NearestRow(AnswerPart):
    """A published measurement of a training like this one."""

    source: str
    """Repository, path and commit."""
    date: str
    release: str
    """Of the trainer; empty where it is not told."""
    model: str
    machine: str
    num_gpus: int
    engine: str
    tokens_per_sec_per_gpu: float
    tflops_per_gpu: float
    """As Parlay counts them: 6 N, or 4 N of frozen weights, and attention in full."""
    over_expected: float
    """Its rate over the one expected of it."""
    differs: list[str]
    """Fields in which it differs from this training, each with its value."""


class TryNext(AnswerPart):
    """The layout that `parlay run` would try first."""

    layout_key: str
    gain: float
    """Its predicted rate over that of the present layout."""
    peak_memory_gib: float


class ExpectAnswer(Answer):
    """Printed by expect. Rates are tokens/s of all ranks."""

    schema_: Literal["parlay.expect/1"] = "parlay.expect/1"
    verdict: SpeedVerdict
    layout_key: str
    accelerator: str
    num_gpus: int
    low: float
    """Lower end of the 95 % interval."""
    median: float
    high: float
    tflops_per_gpu: float
    """Of the median, as `nearest` counts them."""
    measured: float | None
    measured_tflops_per_gpu: float | None
    """Counted anew from tokens/s: a trainer's own count may have other FLOPs."""
    slow_by: list[float] | None
    """Least and largest factor by which it is slow; null unless it is."""
    nearest: list[NearestRow]
    causes: list[SlowCause]
    """Likeliest first; empty unless it is slow."""
    try_next: TryNext | None
    notes: list[str]


def answer_of(
    training: Training, measured: float | None, text: str, try_next: TryNext | None, notes: Sequence[str]
) -> ExpectAnswer:
    """The answer on a training with this measured rate, tokens/s; `text` is what is known of how it was started.

    InputError for a rate that no such machine reaches.
    """
    expected, gpus = Expected.of(training), training.layout.num_gpus
    if measured is not None:
        _require_possible(training, measured)
    low, median, high = expected.interval
    verdict = _verdict(expected, measured)
    if measured is not None and measured > high:
        notes = [*notes, "faster than expected: check that it is tokens/s of all ranks, and the batch"]
    is_slow = verdict is SpeedVerdict.SLOW and measured is not None
    per_gpu = training.tflops_per_token / gpus
    return ExpectAnswer(
        verdict=verdict,
        layout_key=training.layout.key,
        accelerator=training.cluster.accelerator.name,
        num_gpus=gpus,
        low=low,
        median=median,
        high=high,
        tflops_per_gpu=median * per_gpu,
        measured=measured,
        measured_tflops_per_gpu=None if measured is None else measured * per_gpu,
        slow_by=[low / measured, high / measured] if is_slow and measured else None,
        nearest=nearest_rows(training),
        causes=causes_of(training, measured, text) if is_slow and measured else [],
        try_next=try_next,
        notes=[*notes],
    )


def _require_possible(training: Training, tokens_per_sec: float) -> None:
    peak = _peak_flops(training)
    if not 0 < tokens_per_sec < math.inf:
        rule = "a speed is a number above 0"
    elif peak is not None and tokens_per_sec * training.tflops_per_token * 1e12 > peak * training.layout.num_gpus:
        most = peak * training.layout.num_gpus / training.tflops_per_token / 1e12
        rule = f"{training.layout.num_gpus} {training.cluster.accelerator.name} reach at most {most:,.0f} tokens/s"
    else:
        return
    fix = "give tokens/s of all ranks, or with --tflops TFLOP/s of one GPU"
    raise InputError.of("bounds", f"is {tokens_per_sec:g} tokens/s", key="--tokens-per-sec", rule=rule, fix=fix)


def _peak_flops(training: Training) -> float | None:
    """The dense peak of a rank's arithmetic; for fp32 that of 16 bits, since libraries may multiply in TF32."""
    layout = training.layout
    if layout.precision == "fp32":
        layout = replace(layout, precision="bf16")
    return peak_flops_of(training.cluster.accelerator, layout)


def _verdict(expected: Expected, measured: float | None) -> SpeedVerdict:
    if measured is None or math.exp(Z * expected.log_sd) > _WIDEST:
        return SpeedVerdict.UNKNOWN
    return SpeedVerdict.SLOW if expected.deviations(measured) < -Z else SpeedVerdict.NORMAL


# -- published rows


def nearest_rows(training: Training) -> list[NearestRow]:
    """The published rows that are most like a training, nearest first; one of a model in each file that publishes it,
    since releases repeat their benchmarks."""
    nearest: dict[tuple[str, str], Published] = {}
    for row in sorted(read_published(), key=lambda row: _distance(training, row)):
        nearest.setdefault((row.source.split("@")[0], row.model_name), row)
    return [_nearest(training, row) for row in [*nearest.values()][:_NEAREST]]


_COMPARED: tuple[str, ...] = (
    *("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel", "zero_stage"),
    *("precision", "matmul_precision", "activation_checkpointing", "engine"),
)
_OF_MODEL = ("num_layers", "hidden_size", "seq_length", "num_experts", "adapters")


def _distance(training: Training, row: Published) -> float:
    """Other machines count most, then the model's kind and size, then the layout."""
    mine, its = training.cluster.accelerator.name, row.cluster.accelerator.name
    sizes = abs(math.log(row.model.active_parameters / training.model.active_parameters))
    kinds = ((row.model.num_experts is None) != (training.model.num_experts is None)) + (
        (row.model.trainable is None) != (training.model.trainable is None)
    )
    layout = sum(getattr(row.layout, name) != getattr(training.layout, name) for name in _COMPARED)
    ranks = abs(math.log(row.layout.num_gpus / training.layout.num_gpus))
    return 4 * (mine != its) + 3 * kinds + sizes + layout / 3 + ranks / 4


def _nearest(training: Training, row: Published) -> NearestRow:
    its = Training(row.model, row.cluster, row.layout)
    rate = row.tokens_per_sec_per_gpu * row.layout.num_gpus
    fields: list[tuple[str, Any, Any]] = [(name, row.layout, training.layout) for name in _COMPARED]
    fields += [(name, row.model, training.model) for name in _OF_MODEL]
    return NearestRow(
        **{name: getattr(row, name) for name in ("source", "date", "release")},
        model=row.model_name,
        machine=row.cluster.accelerator.name,
        num_gpus=row.layout.num_gpus,
        engine=row.layout.engine,
        tokens_per_sec_per_gpu=row.tokens_per_sec_per_gpu,
        tflops_per_gpu=row.tokens_per_sec_per_gpu * its.tflops_per_token,
        over_expected=rate / Expected.of(its).interval[1],
        differs=[
            f"{name} {getattr(theirs, name)}"
            for name, theirs, ours in fields
            if getattr(theirs, name) != getattr(ours, name)
        ],
    )
