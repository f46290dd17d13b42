"""Metrics of a measurement, from its step records. Pure; standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from search_spaces.hardware.arithmetic import peak_flops_of
from search_spaces.hardware.cluster import ACCELERATORS
from trials.measurement.device_memory import LEAST_GROWTH_MIB, MIB_PER_GIB
from trials.measurement.protocol import Measurement, TwoPointExtrapolation, time_interval
from trials.measurement.step_log import StepPhase, StepRecord
from trials.measurement.trend import slope_of
from trials.outcome_types import MeasuredMetrics, ThroughputBound
from trials.trial import TrialSpec


def measured_metrics(
    spec: TrialSpec,
    records: Sequence[StepRecord],
    extrapolation: TwoPointExtrapolation | None = None,
    host_available_gib: float | None = None,
) -> MeasuredMetrics:
    """The metrics that follow from the step records.

    ValueError without a measured step. Tokens are counted from the samples that the ranks counted. `extrapolation` is
    given where short steps were measured and a full one is extrapolated. `host_available_gib` is the host memory still
    available after the last step, on the node with the least.
    """
    measured = [r for r in records if r.phase is StepPhase.MEASURED]
    if not measured:
        raise ValueError("no measured step")
    lengths, losses = _known(measured, "document_length"), _known(records, "loss")
    document_length = fmean(lengths) if lengths else None
    spec = replace(spec, model=spec.model.with_documents(document_length))
    times_s = _full_times_s([r.step_time_s for r in measured], extrapolation)
    step_time_s = median(times_s)
    samples = measured[0].samples
    if extrapolation is not None:
        samples = samples // extrapolation.short * extrapolation.full
    return MeasuredMetrics(
        warmup_steps=len(records) - len(measured),
        measured_steps=len(measured),
        step_time_p95_s=percentile(times_s, 0.95),
        **throughput_fields(spec, samples, step_time_s, time_interval(times_s)),
        fastest_rank_step_time_s=_median(_full_times_s(_known(measured, "fastest_rank_step_time_s"), extrapolation)),
        loss_first=losses[0] if losses else None,
        loss_last=losses[-1] if losses else None,
        data_wait_s=_median(_known(measured, "data_wait_s")),
        document_length=document_length,
        **_host_memory(spec, records, host_available_gib),
    )


def without_padding(metrics: MeasuredMetrics, real_token_share: float) -> MeasuredMetrics:
    """The metrics with FLOPs of real tokens alone, and their rate, where this share of all is no padding."""
    if real_token_share == 1:
        return metrics
    of_flops = {name: getattr(metrics, name) for name in ("model_tflops_per_gpu", "mfu", "mfu_causal", "hfu")}
    real = {name: value * real_token_share for name, value in of_flops.items() if value is not None}
    real["real_tokens_per_sec"] = metrics.tokens_per_sec * real_token_share
    return replace(metrics, real_token_share=real_token_share, **real)


def throughput_bound(spec: TrialSpec, measurement: Measurement) -> ThroughputBound | None:
    """Bound of the throughput of a trial without enough steps: the rate of its fastest full step.

    None with fewer than two steps besides the first, which may have compiled.
    """
    seen_s = [time_s for time_s in measurement.step_times_s[1:] if time_s > 0]
    if len(seen_s) < 2:
        return None
    return ThroughputBound(spec.global_batch_size * spec.model.seq_length / min(seen_s))


def _known(records: Sequence[StepRecord], name: str) -> list[float]:
    """Values of a field of these steps, without those that are unknown."""
    return [value for record in records if (value := getattr(record, name)) is not None]


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _full_times_s(times_s: Sequence[float], extrapolation: TwoPointExtrapolation | None) -> list[float]:
    """Times of full steps; of alternating short steps, one for each pair."""
    if extrapolation is None:
        return list(times_s)
    return [extrapolation.full_time_s(*pair) for pair in zip(times_s[::2], times_s[1::2], strict=True)]


def throughput_fields(
    spec: TrialSpec, samples: int, step_time_s: float, interval: tuple[float, float] | None
) -> dict[str, Any]:
    """Metrics derived from a step's samples, its median time and the interval of that (None: unknown), in seconds."""
    tokens = samples * spec.model.seq_length
    tokens_per_sec_per_gpu = tokens / step_time_s / spec.num_gpus
    fields: dict[str, Any] = {
        "step_time_s": step_time_s,
        "samples_per_sec": samples / step_time_s,
        "tokens_per_sec": tokens / step_time_s,
        "tokens_per_sec_per_gpu": tokens_per_sec_per_gpu,
        "model_tflops_per_gpu": spec.model.model_flops_per_token * tokens_per_sec_per_gpu / 1e12,
    }
    if interval is not None:
        low, high = interval
        fields |= {
            "step_time_low_s": low,
            "step_time_high_s": high,
            "tokens_per_sec_low": tokens / high,
            "tokens_per_sec_high": tokens / low,
        }
    return fields | _utilisation(spec, tokens_per_sec_per_gpu)


def _utilisation(spec: TrialSpec, tokens_per_sec_per_gpu: float) -> dict[str, float]:
    """Model and hardware FLOP/s over the device's peak in the step's arithmetic, absent where the peak is unknown."""
    accelerator = ACCELERATORS.get(spec.accelerator)
    peak = peak_flops_of(accelerator, spec.layout) if accelerator else None
    if peak is None:
        return {}
    hardware = spec.model.hardware_flops_per_token(spec.layout)
    return {
        "mfu": spec.model.model_flops_per_token * tokens_per_sec_per_gpu / peak,
        "mfu_causal": spec.model.causal_flops_per_token * tokens_per_sec_per_gpu / peak,
        "hfu": hardware * tokens_per_sec_per_gpu / peak,
    }


def _host_memory(spec: TrialSpec, records: Sequence[StepRecord], available_gib: float | None) -> dict[str, Any]:
    """Peak, slope, and the step at which a node is full, where the memory grows and the rest is known."""
    measured = [r for r in records if r.phase is StepPhase.MEASURED]
    resident = _known(records, "host_memory_gib")
    fields: dict[str, Any] = {"peak_host_memory_gib": max(resident)} if resident else {}
    slope = slope_of([(r.step, r.host_memory_gib) for r in measured if r.host_memory_gib is not None])
    if slope is not None:
        fields["host_memory_slope_mib_per_step"] = slope.value * MIB_PER_GIB
    least_gib = LEAST_GROWTH_MIB / MIB_PER_GIB * min(spec.num_gpus, spec.gpus_per_node)
    if available_gib is not None:
        fields["host_memory_available_gib"] = available_gib
    if slope is not None and slope.is_above(least_gib) and available_gib is not None:
        fields["host_memory_full_at_step"] = records[-1].step + math.floor(available_gib / slope.value)
    return fields


def steps_per_epoch(spec: TrialSpec) -> int | None:
    """Steps until every sequence of the dataset has been trained on once (docs/data.md); None for synthetic data.

    The last of them may begin it again, where the epoch is not a multiple of the global batch.
    """
    num_tokens = spec.trainer.get("data", {}).get("num_tokens") if spec.reads_tokens else None
    if num_tokens is None:
        return None
    samples = (num_tokens - 1) // spec.model.seq_length
    return -(-samples // spec.global_batch_size)


def epoch_fields(spec: TrialSpec, records: Sequence[StepRecord]) -> dict[str, Any]:
    """The contract's `epoch_s` and `loss_after_epoch` of outcome.measured, as far as the steps went.

    The time is that of the first epoch's steps, warm-up included. The loss is that of the step that follows, taken
    before its update: with an epoch of whole steps on the first step's batch, so that compared with `loss_first` it
    shows what the epoch taught. Empty where steps were shorter than a full one.
    """
    steps = steps_per_epoch(spec)
    if steps is None or len(records) < steps or any(r.samples != spec.global_batch_size for r in records[:steps]):
        return {}
    after = records[steps].loss if len(records) > steps else None
    fields = {"epoch_s": sum(record.step_time_s for record in records[:steps])}
    return fields if after is None else fields | {"loss_after_epoch": after}


def percentile(values: Sequence[float], fraction: float) -> float:
    """The smallest value that at least this fraction of the values does not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(fraction * len(values)) - 1)]
