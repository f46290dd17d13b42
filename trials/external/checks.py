"""Checks of a third-party trainer's log: what it proves of the layout, and whether its numbers agree with ours.

Pure; standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from trials.observed_step import ObservedStep, unproven
from trials.outcome_types import MeasuredMetrics
from trials.trainers.common.trainer_log import TrainerStep
from trials.trainers.registry import TRAINERS, log_rank_of
from trials.trial import TrialSpec

RATE_TOLERANCE = 0.10
"""Relative tolerance between a printed number and ours. Definitions of FLOPs differ by less."""
ROUNDING_ERROR = 0.05
"""Rounding error of a number printed with one decimal, as Megatron prints TFLOP/s."""


def layout_proof(spec: TrialSpec, reported: Mapping[str, float], seen: ObservedStep | None = None) -> dict[str, Any]:
    """The contract's outcome.proof by what a log shows and an observer has `seen`; `unproven` names what neither does.

    Where Parlay writes the trainer's options, parameters and data parallelism follow from them.
    """
    found = {name: _whole(value) for name, value in reported.items()}
    missing = set(unproven(spec, seen)) - set(found)
    if "micro_batches_per_step" in found:
        missing -= {"global_batch_size"}
    if not TRAINERS[spec.trainer["kind"]].is_observed:
        missing &= {"world_size", "global_batch_size"}
    observed_step = {} if seen is None else {"observed_step": seen}
    return found | observed_step | {"unproven": sorted(missing)}


def cross_checks(spec: TrialSpec, metrics: MeasuredMetrics, steps: Sequence[TrainerStep]) -> list[dict[str, Any]]:
    """Every rate the trainer printed, compared with ours: `name`, `printed` (median over `steps`), `ours`, `agrees`.

    Ours come from the step time and the global batch. FLOPs are counted with and without recomputation: a trainer may
    mean either, and the closer one is compared.
    """
    tflops = metrics.model_tflops_per_gpu
    assert tflops is not None, "it follows from the step time"
    ours = {
        "tokens_per_sec": [metrics.tokens_per_sec],
        "samples_per_sec": [metrics.samples_per_sec],
        "tflops": [tflops, tflops * _repeated(spec)],
    }
    return [
        check
        for name, candidates in ours.items()
        if (check := _check(name, [getattr(step, name) for step in steps], candidates)) is not None
    ]


def interval_check(steps: Sequence[TrainerStep], seen_s: Sequence[float]) -> list[dict[str, Any]]:
    """The time between lines, as a check like those of `cross_checks`: a step that takes longer than it reports leaves
    out what a training pays, such as loading data."""
    gaps_s = [after - before for before, after in pairwise(seen_s)]
    if not gaps_s:
        return []
    ours, printed = median(gaps_s), _reported_s(steps) / len(gaps_s)
    agrees = ours <= MAX_INTERVAL_RATIO * printed + LINE_OVERHEAD_S
    return [{"name": "seconds_between_lines", "printed": printed, "ours": ours, "agrees": agrees}]


MAX_INTERVAL_RATIO = 1.5
"""Largest ratio of the time between lines to the time reported that raises no flag."""


def batch_fault(spec: TrialSpec, checks: Sequence[Mapping[str, Any]]) -> str | None:
    """Evidence that the trainer used another global batch than the spec's; None without any.

    A rate of samples or tokens, times the step's time, is the batch. Batches differ by whole factors, rates by what is
    counted in, so only a large deviation counts. The patterns of a trainer without a log format may match anything, a
    running average too, and are not checked.
    """
    if TRAINERS[spec.trainer["kind"]].log_format is None:
        return None
    for check in checks:
        ratio = check["printed"] / check["ours"] if check["name"] in _RATES_OF_BATCH else 1.0
        if not 1 / OTHER_BATCH_RATIO < ratio < OTHER_BATCH_RATIO:
            batch = spec.global_batch_size
            return (
                f"the log's {check['name']} {check['printed']:g} is that of {ratio:.2g} times the global batch {batch}"
            )
    return None


def clock_fault(steps: Sequence[TrainerStep], seen_s: Sequence[float], has_iterations: bool) -> str | None:
    """Evidence that the steps took longer than the log reports; None without any.

    `seen_s` are the arrival times (seconds, of any clock) of each step's line. Lines that were buffered arrive late, so
    that the time between them only shrinks: only too long a time is evidence. The longest gap is left out, in which a
    trainer may have evaluated, and `LINE_OVERHEAD_S` of every other.
    """
    if (longest_s := max((step.step_time_s for step in steps), default=MIN_STEP_S)) < MIN_STEP_S:
        return f"the log reports steps of {longest_s:g} s; none takes less than {MIN_STEP_S:g} s"
    reported_s = _reported_s(steps)
    gaps_s = sorted(after - before for before, after in pairwise(seen_s))[:-1]
    took_s = sum(gaps_s) - LINE_OVERHEAD_S * len(gaps_s)
    if took_s <= (MAX_CLOCK_RATIO if has_iterations else MAX_UNNUMBERED_CLOCK_RATIO) * reported_s:
        return None
    return f"the log reports {reported_s:.3g} s for {len(steps)} steps, but their lines arrived over {took_s:.3g} s"


def rate_fault(spec: TrialSpec, steps: Sequence[TrainerStep], seen_s: Sequence[float]) -> str | None:
    """Evidence that the steps of the user's own patterns took less time than these report, as of a rate that leaves out
    accumulation or ranks, or of milliseconds read as seconds; None without any.

    Lines that arrive at an even pace were not buffered, so that the time between them is that of a step.
    """
    gaps_s = [after - before for before, after in pairwise(seen_s)]
    is_even = gaps_s and min(gaps_s) >= max(fmean(gaps_s) / 2, BUFFERED_LINES_S)
    if TRAINERS[spec.trainer["kind"]].log_format is not None or not is_even:
        return None
    if (reported_s := _reported_s(steps)) <= MAX_REPORTED_RATIO * sum(gaps_s):
        return None
    took_s = sum(gaps_s)
    return f"the log reports {reported_s:.3g} s for {len(gaps_s)} steps, but their lines arrived within {took_s:.3g} s"


BUFFERED_LINES_S = 1e-3
"""Seconds between lines that were written separately; those of one read come within microseconds."""
MAX_REPORTED_RATIO = 2.0
"""Largest plausible ratio of the time reported to the time between lines: no step ends before its time has passed, and
a rate of another batch is off by a whole factor."""


def lines_fault(spec: TrialSpec, seen_s: Sequence[float], at_s: float | None) -> str | None:
    """Evidence that the log's lines are no steps, as where it has one for each micro-batch; None without any.

    Until `at_s`, in the second optimizer step, one line can have come. The loss scale of fp16 skips optimizer steps.
    """
    early = 0 if at_s is None else sum(one < at_s for one in seen_s)
    if early <= MOST_EARLY_LINES or log_rank_of(spec) != 0 or spec.layout.precision == "fp16":
        return None
    return f"the log reports {early} steps before the second optimizer step: its lines are no steps"


MOST_EARLY_LINES = 2
"""Lines before the second optimizer step that are accepted: of the first step, and one to spare."""

MIN_STEP_S = 1e-5
"""Shortest plausible step in seconds: the launch of a single kernel takes as long."""
LINE_OVERHEAD_S = 0.1
"""Seconds per line for work that a trainer does not count as the step: loading data, writing to a slow disk."""
MAX_CLOCK_RATIO = 10.0
"""Largest plausible ratio of the time between lines to the time reported."""
MAX_UNNUMBERED_CLOCK_RATIO = 1000.0
"""The ratio where a log numbers no iterations: it may have a line for every hundred."""

_RATES_OF_BATCH = ("samples_per_sec", "tokens_per_sec")
OTHER_BATCH_RATIO = 1.5
"""Smallest ratio of rates taken for another global batch."""


def _reported_s(steps: Sequence[TrainerStep]) -> float:
    """Time in seconds from the first line to the last as the log reports it."""
    return sum(step.step_time_s * (step.iteration - before.iteration) for before, step in pairwise(steps))


def _repeated(spec: TrialSpec) -> float:
    """Ratio of computed FLOPs, recomputation included, to the model's."""
    return spec.model.hardware_flops_per_token(spec.layout) / spec.model.model_flops_per_token


def _check(name: str, printed: Sequence[float | None], candidates: Sequence[float]) -> dict[str, Any] | None:
    known = [value for value in printed if value is not None]
    if not known:
        return None
    found = median(known)
    closest = min(candidates, key=lambda ours: abs(found - ours))
    agrees = abs(found - closest) <= max(RATE_TOLERANCE * closest, ROUNDING_ERROR)
    return {"name": name, "printed": found, "ours": closest, "agrees": agrees}


def _whole(value: float) -> float:
    return int(value) if value == int(value) else value
