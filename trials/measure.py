"""When a throughput counts, and what is reported of it. Pure; standard library only. docs/measuring.md says why.

Warm-up ends by stability: after the first step at which the median of the newest three step times lies within 10 % of
the median of the three before. Compilation, allocator growth and the first collectives make early steps slower, and a
median of three forgives a single stray step. `max_warmup_steps` ends it in any case.

The 95 % interval of the median is taken from order statistics (David & Nagaraja, Order Statistics, 3rd ed., 7.1): it
assumes nothing about the shape of the distribution, and needs at least six steps; with fewer it is unknown.

A measurement is suspect when the machine rather than the layout may have made it: when its steps drift (`slows_down`),
or when one of its devices is slower than the others at work that is the same for all (`slow_ranks`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import Any

from search_spaces.cluster import ACCELERATORS
from trials.metrics import StepPhase, StepRecord
from trials.trial import MeasureRules, TrialSpec, Word

STABILITY_WINDOW = 3
STABILITY_TOLERANCE = 0.10
CONFIDENCE = 0.95
SUSPECT_SLOWDOWN = 0.15
"""Devices of one model differ by 8 % on average (docs/measuring.md); what is slower than that by far is not well."""
STEPS_THAT_TELL_A_DRIFT = 15
"""Five steps a third: fewer fall into the order of a drift by chance too often."""
MIB_PER_GIB = 1024


class Stop(Word):
    """Why measuring ended."""

    PRECISE = "precise"
    MAX_STEPS = "max_steps"
    TIME_LIMIT = "time_limit"


@dataclass
class Measurement:
    """The step times of one trial and the decision to go on. Every rank feeds it the same numbers and so agrees."""

    rules: MeasureRules
    step_times_s: list[float] = field(default_factory=list)
    stop: Stop | None = None

    def add(self, step_time_s: float, elapsed_s: float) -> StepPhase:
        """Take in a step, `elapsed_s` seconds after the trial started, and say to which phase it belongs."""
        phase = StepPhase.WARMUP if self.warmup_steps is None else StepPhase.MEASURED
        self.step_times_s.append(step_time_s)
        self.stop = self._stop(elapsed_s)
        return phase

    @property
    def warmup_steps(self) -> int | None:
        """How many steps the warm-up took, None while it lasts."""
        return warmup_length(self.step_times_s, self.rules.max_warmup_steps)

    @property
    def measured_times_s(self) -> list[float]:
        warmup = self.warmup_steps
        return [] if warmup is None else self.step_times_s[warmup:]

    @property
    def has_enough_steps(self) -> bool:
        return len(self.measured_times_s) >= self.rules.min_steps

    def _stop(self, elapsed_s: float) -> Stop | None:
        measured = self.measured_times_s
        if len(measured) >= self.rules.max_steps:
            return Stop.MAX_STEPS
        if self.has_enough_steps and _is_precise(measured, self.rules.ci_relative_width):
            return Stop.PRECISE
        if elapsed_s + self._time_needed_to_end_s() > self.rules.time_limit_s:
            return Stop.TIME_LIMIT
        return None

    def _time_needed_to_end_s(self) -> float:
        """One more step, twice as slow as the slowest of late, and a moment to write the outcome."""
        return 2 * max(self.step_times_s[-STABILITY_WINDOW:]) + 1.0


def warmup_length(step_times_s: Sequence[float], max_warmup_steps: int) -> int | None:
    """Steps until warm-up ended by the rule above; None while it has not. More steps never change the answer."""
    for end in range(2 * STABILITY_WINDOW, min(len(step_times_s), max_warmup_steps) + 1):
        earlier = median(step_times_s[end - 2 * STABILITY_WINDOW : end - STABILITY_WINDOW])
        newest = median(step_times_s[end - STABILITY_WINDOW : end])
        if abs(newest - earlier) <= STABILITY_TOLERANCE * earlier:
            return end
    return max_warmup_steps if len(step_times_s) >= max_warmup_steps else None


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """A distribution-free interval of the median with at least this confidence; None with too few values.

    The k-th smallest and k-th largest values enclose the median unless fewer than k values fall on one side of it:
    coverage is 1 - 2 P(Binomial(n, 1/2) < k).
    """
    ordered, n = sorted(values), len(values)
    tail, k = 0.0, 0
    while 2 * (tail + math.comb(n, k) * 0.5**n) <= 1 - confidence:
        tail += math.comb(n, k) * 0.5**n
        k += 1
    return (ordered[k - 1], ordered[n - k]) if k else None


def slows_down(measured_times_s: Sequence[float]) -> bool:
    """Whether the steps became slower while they were measured, as those of a device do that is getting too hot.

    The median of the last third lies at least 15 % above that of the first, and their spreads do not overlap; stray
    steps, the slowest tenth of the first third and the fastest tenth of the last, are left out of the spreads.
    """
    if len(measured_times_s) < STEPS_THAT_TELL_A_DRIFT:
        return False
    third = len(measured_times_s) // 3
    strays = third // 10
    first, last = sorted(measured_times_s[:third]), sorted(measured_times_s[-third:])
    return median(last) >= (1 + SUSPECT_SLOWDOWN) * median(first) and first[-1 - strays] < last[strays]


def slow_ranks(probe_ms_by_rank: Sequence[float]) -> tuple[int, ...]:
    """The ranks whose device took more than 15 % longer than the median rank's for the same piece of work."""
    if not probe_ms_by_rank:
        return ()
    limit_ms = (1 + SUSPECT_SLOWDOWN) * median_low(probe_ms_by_rank)
    return tuple(rank for rank, ms in enumerate(probe_ms_by_rank) if ms > limit_ms)


def percentile(values: Sequence[float], fraction: float) -> float:
    """The smallest value that at least this fraction of the values does not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(fraction * len(values)) - 1)]


def _is_precise(measured: Sequence[float], relative_width: float) -> bool:
    interval = median_interval(measured)
    return interval is not None and interval[1] - interval[0] <= relative_width * median(measured)


def measured_fields(spec: TrialSpec, records: Sequence[StepRecord]) -> dict[str, Any]:
    """The contract's outcome.measured as far as the step records tell; what is unknown is absent.

    ValueError when there is no measured step. Tokens are counted from the samples that the ranks counted.
    """
    measured = [r for r in records if r.phase is StepPhase.MEASURED]
    if not measured:
        raise ValueError("no measured step")
    step_time_s = median(r.step_time_s for r in measured)
    samples = measured[0].samples
    fields = {
        "warmup_steps": len(records) - len(measured),
        "measured_steps": len(measured),
        "step_time_s": step_time_s,
        "step_time_p95_s": percentile([r.step_time_s for r in measured], 0.95),
        "fastest_rank_step_time_s": median(r.fastest_rank_step_time_s for r in measured),
        "samples_per_sec": samples / step_time_s,
        "loss_first": records[0].loss,
        "loss_last": records[-1].loss,
    }
    tokens = samples * spec.model.seq_length
    interval = median_interval([r.step_time_s for r in measured])
    fields |= throughput_fields(spec, tokens, step_time_s, interval)
    return fields | _data_wait(measured) | _host_memory(records, measured)


def throughput_fields(
    spec: TrialSpec, tokens: int, step_time_s: float, interval: tuple[float, float] | None
) -> dict[str, Any]:
    """What follows from a step's tokens and its median time with its interval (None: unknown), both in seconds."""
    tokens_per_sec_per_gpu = tokens / step_time_s / spec.num_gpus
    fields: dict[str, Any] = {
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
    """Model and hardware FLOP/s over the device's peak, absent where the peak is unknown."""
    accelerator = ACCELERATORS.get(spec.accelerator)
    peak = accelerator.peak_flops_for(spec.layout.precision) if accelerator else None
    if peak is None:
        return {}
    hardware = spec.model.hardware_flops_per_token(spec.layout.activation_checkpointing)
    return {
        "mfu": spec.model.model_flops_per_token * tokens_per_sec_per_gpu / peak,
        "hfu": hardware * tokens_per_sec_per_gpu / peak,
    }


def _data_wait(measured: Sequence[StepRecord]) -> dict[str, float]:
    waits_s = [r.data_wait_s for r in measured if r.data_wait_s is not None]
    return {"data_wait_s": median(waits_s)} if waits_s else {}


def _host_memory(records: Sequence[StepRecord], measured: Sequence[StepRecord]) -> dict[str, float]:
    resident = [r.host_memory_gib for r in records if r.host_memory_gib is not None]
    series = [(r.step, r.host_memory_gib) for r in measured if r.host_memory_gib is not None]
    fields = {"peak_host_memory_gib": max(resident)} if resident else {}
    slope = slope_per_step(series)
    return fields if slope is None else fields | {"host_memory_slope_mib_per_step": slope * MIB_PER_GIB}


def slope_per_step(series: Sequence[tuple[int, float]]) -> float | None:
    """Least-squares slope of (step, value); None with fewer than two steps."""
    if len(series) < 2:
        return None
    mean_step = sum(step for step, _ in series) / len(series)
    mean_value = sum(value for _, value in series) / len(series)
    spread = sum((step - mean_step) ** 2 for step, _ in series)
    return sum((step - mean_step) * (value - mean_value) for step, value in series) / spread
