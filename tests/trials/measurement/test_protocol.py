"""Warm-up, stop, extrapolation and suspicion of a measurement."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from tests.kit import layout, model, trial
from trials.measure_rules import MeasureRules
from trials.measurement.protocol import (
    LONGEST_STEP_S,
    Measurement,
    StepPlan,
    StopReason,
    TwoPointExtrapolation,
    median_interval,
    slow_ranks,
    slows_down,
    warmup_length,
)
from trials.measurement.step_log import StepPhase
from trials.trial import TrialKind, TrialSpec

RULES = MeasureRules(min_steps=8, max_steps=20, max_warmup_steps=12, ci_relative_width=0.05, time_limit_s=600)
MODEL = model(vocab_size=256, seq_length=64)
LAYOUT = layout(data_parallel=2, micro_batch_size=2, grad_accum_steps=4)
SPEC = trial(model=MODEL, layout=LAYOUT, global_batch_size=16, num_gpus=2, gpus_per_node=2, measure=RULES)
HALVING = [2.0**-n for n in range(15)]


def run(times: list[float], rules: MeasureRules = RULES) -> Measurement:
    """A measurement fed with these step times until it stops or they end; a second passes with each."""
    measurement = Measurement(rules)
    for number, time in enumerate(times, 1):
        if measurement.stop is not None:
            break
        measurement.add(time, elapsed_s=number)
    return measurement


def fed(rules: MeasureRules, first: list[float], then: tuple[float, ...], is_finalist: bool = False) -> Measurement:
    """A measurement fed until it stops, on a clock that only the steps advance."""
    measurement = Measurement(rules, is_finalist=is_finalist)
    for time in itertools.chain(first, itertools.cycle(then)):
        measurement.add(time, elapsed_s=sum(measurement.step_times_s) + time)
        if measurement.stop is not None:
            return measurement
        assert len(measurement.step_times_s) < 100
    raise AssertionError


@pytest.mark.parametrize(
    ("times", "longest", "steps"),
    [
        ([1.0] * 20, 12, 6),
        ([8, 6, 4, 3, 2, 1.5, 1.2, 1.0, 1.0, 1.0, 1.0, 1.0], 20, 12),
        ([1.0, 1.0, 1.0, 1.3, 1.3, 1.3, 1.3, 1.3], 12, 8),
        ([9.0, 1.0, 1.0, 1.0, 5.0, 1.0], 12, 6),
        ([1.0] * 5, 12, None),
        (HALVING[:11], 12, None),
        (HALVING, 12, 12),
        ([1.0, 1.0], 2, 2),
        ([], 0, 0),
    ],
    ids=["alike", "faster", "slower", "stray", "few", "too-short", "longest", "two", "none"],
)
def test_warm_up_ends_once_six_steps_agree_or_at_its_longest(times, longest, steps):
    assert warmup_length(times, longest) == steps


@pytest.mark.parametrize(
    ("times", "changes", "stop", "measured"),
    [
        ([1.0] * 40, {}, StopReason.PRECISE, 8),
        ([1.0] * 6 + [1.0, 2.0] * 20, {}, StopReason.MAX_STEPS, 20),
        ([1.0] * 40, {"min_steps": 20}, StopReason.PRECISE, 20),
        ([1.0] * 6 + [1.0, 2.0] * 20, {"time_limit_s": 20}, StopReason.TIME_LIMIT, 10),
        ([1.0] * 40, {"time_limit_s": 10}, StopReason.TIME_LIMIT, 2),
        ([0.25] * 40, {"energy": True}, StopReason.PRECISE, 12),
    ],
    ids=["alike", "varying", "most-alike", "time", "too-little-time", "three-seconds-of-energy"],
)
def test_a_measurement_stops_when_it_is_precise_or_at_a_limit(times, changes, stop, measured):
    measurement = run(times, replace(RULES, **changes))
    assert (measurement.stop, measurement.warmup_steps) == (stop, 6)
    assert len(measurement.measured_times_s) == measured
    assert measurement.is_wide == (stop is StopReason.MAX_STEPS)
    assert measurement.has_enough_steps == (measured >= RULES.min_steps)


def test_a_first_step_that_compiled_is_not_taken_for_how_long_steps_take():
    measurement = fed(replace(RULES, time_limit_s=60), [25.0], (0.5,))
    assert (measurement.stop, len(measurement.step_times_s) < 20) == (StopReason.PRECISE, True)


def test_a_step_is_of_the_phase_that_was_known_before_it():
    measurement, phases = Measurement(RULES), []
    for number in range(8):
        phases.append(measurement.phase)
        measurement.add(1.0, elapsed_s=number)
    assert phases == [StepPhase.WARMUP] * 6 + [StepPhase.MEASURED] * 2


@pytest.mark.parametrize(
    ("changes", "times", "stop", "steps"),
    [
        ({}, (1.0,), StopReason.PRECISE, 50),
        ({"finalist_time_s": 15.0}, (1.0,), StopReason.PRECISE, 15),
        ({"ci_relative_width": 0.0, "max_steps": 20}, (1.0,), StopReason.PRECISE, 50),
        ({"finalist_steps": 8, "max_steps": 40}, (1.0, 2.0), StopReason.MAX_STEPS, 40),
        ({"time_limit_s": 20.0}, (1.0, 1.025, 1.01), StopReason.PRECISE, 11),
        ({"time_limit_s": 20.0, "ci_relative_width": 0.0}, (1.0, 1.0, 1.01), StopReason.TIME_LIMIT, 11),
    ],
    ids=["steps", "time", "beyond-the-most", "varying", "limit-precise", "limit-wide"],
)
def test_finalists_are_measured_for_their_steps_or_time_and_longer_while_they_vary(changes, times, stop, steps):
    rules = replace(RULES, **{"finalist_steps": 50, "finalist_time_s": 1e9} | changes)
    measurement = fed(rules, [1.0] * 6, times, is_finalist=True)
    assert (measurement.stop, len(measurement.measured_times_s)) == (stop, steps)


@pytest.mark.parametrize(
    ("times", "target_s", "seen"),
    [
        ((1.0,) * 12, 0.8, (6, StopReason.PRUNED)),
        # One run tells a speed to within 8 %: 3 % between runs, Student's t with four degrees of freedom.
        ((1.0,) * 12, 0.93, (12, None)),
        ((1.0,) * 12, 0.91, (6, StopReason.PRUNED)),
        ((1.0, 1.0, 1.0, 1.0, 1.0, -1.0), 0.1, (6, None)),
        ((0.7, 1.3) * 4, 0.8, (8, None)),
        ((1.0,) * 12, None, (12, None)),
    ],
    ids=["slower", "within-a-day", "beyond-a-day", "no-interval", "varying", "no-incumbent"],
)
def test_a_trial_whose_steps_cannot_be_as_fast_as_the_incumbents_stops(times, target_s, seen):
    measurement = Measurement(replace(RULES, min_steps=20))
    for time in (*(1.0,) * 6, *times):
        measurement.add(time, elapsed_s=1.0, target_step_time_s=target_s)
        if measurement.stop is not None:
            break
    assert (len(measurement.measured_times_s), measurement.stop) == seen


@pytest.mark.parametrize(
    ("rules", "times", "target_s", "stop"),
    [
        (replace(RULES, min_steps=20, max_steps=40), [1.0] * 11 + [1.2] * 5 + [1.4] * 6, 0.5, None),
        (RULES, [1.0] * 14, 0.8, StopReason.PRECISE),
    ],
    ids=["drift", "known"],
)
def test_what_drifts_or_is_known_is_not_pruned_by_its_last_step(rules, times, target_s, stop):
    measurement = Measurement(rules)
    for time in times[:-1]:
        measurement.add(time, elapsed_s=1.0)
    measurement.add(times[-1], elapsed_s=1.0, target_step_time_s=target_s)
    assert measurement.stop is stop


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, (8, 16, 96)),
        ({"virtual_pipeline_stages": 3, "pipeline_schedule": "interleaved_1f1b"}, (16, 32, 96)),
        ({"grad_accum_steps": 1000}, (80, 160, 1000)),
        ({"grad_accum_steps": 47}, None),
        ({"pipeline_schedule": "gpipe"}, None),
    ],
)
def test_short_steps_fill_the_pipeline_twice_and_four_times_where_a_full_one_is_long(changes, counts):
    long = replace(LAYOUT, pipeline_parallel=4, pipeline_schedule="1f1b", grad_accum_steps=96)
    found = TwoPointExtrapolation.of(replace(long, **changes))
    assert found == (None if counts is None else TwoPointExtrapolation(*counts))


def test_short_steps_lie_on_a_line_with_the_full_step():
    full_s = TwoPointExtrapolation(8, 16, 96).full_time_s(2.0 + 8 * 0.5, 2.0 + 16 * 0.5)
    assert full_s == pytest.approx(2.0 + 96 * 0.5)


LONG = replace(SPEC, layout=replace(LAYOUT, grad_accum_steps=64))


@pytest.mark.parametrize(
    ("spec", "seconds_a_micro_batch", "first_s", "counts", "told"),
    [
        (LONG, -0.1, 0.0, [5, 64, 64, 64], [False, True, True, True]),
        (LONG, 0.1, 60.0, [5, 5, 10, 64, 64, 64], [False, False, False, True, True, True]),
        (LONG, 1.0, 0.0, [5, 5, 10, 5, 10, 5, 10], [False, False, True, False, True, False, True]),
        (replace(LONG, kind=TrialKind.REPEAT), 1.0, 0.0, [64] * 3, [True] * 3),
        (replace(LONG, kind=TrialKind.REPLAY), 1.0, 0.0, [64] * 3, [True] * 3),
        (SPEC, 100.0, 0.0, [4] * 3, [True] * 3),
    ],
    ids=["short", "slow-start", "long", "repeat", "replay", "cannot-be-shortened"],
)
def test_full_steps_longer_than_half_a_minute_are_told_by_pairs_of_short_ones(
    spec: TrialSpec, seconds_a_micro_batch, first_s, counts, told
):
    """Each step has a constant second of overhead, the first one `first_s` more."""
    step_plan, planned, found = StepPlan(spec), [], []
    for number in range(len(counts)):
        planned.append(step_plan.micro_batches)
        extra_s = 0.0 if number else first_s
        found.append(step_plan.add(1.0 + extra_s + seconds_a_micro_batch * step_plan.micro_batches))
    assert (planned, [one is not None for one in found]) == (counts, told)
    assert step_plan.is_extrapolated == (counts[-1] == 10)
    if step_plan.is_extrapolated:
        assert found[-1] == (pytest.approx(65.0), pytest.approx(6.0 + 11.0))
        assert LONGEST_STEP_S < 65.0


@pytest.mark.parametrize(("count", "ranks"), [(6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (20, (6, 15)), (40, (14, 27))])
def test_a_medians_interval_has_the_ranks_of_the_published_table(count, ranks):
    # Conover, Practical Nonparametric Statistics: 95 % confidence limits of the median.
    assert median_interval(list(range(1, count + 1))) == ranks


def test_a_medians_interval_is_unknown_below_six_values_and_normal_for_thousands():
    assert median_interval([1.0] * 5) is median_interval([]) is None
    low, high = median_interval(list(range(1, 5001)))
    assert (low, high) == pytest.approx((2500 - 1.96 * 5000**0.5 / 2, 2501 + 1.96 * 5000**0.5 / 2), abs=2)


HOT = (1.0,) * 6 + (1.1,) * 6 + (1.2,) * 6


@pytest.mark.fault(38)
@pytest.mark.parametrize(
    ("times", "is_slower"),
    [
        (HOT, True),
        ((*HOT[:12], *(1.15,) * 6), True),
        ((*HOT[:12], *(1.14,) * 6), False),
        (HOT[::-1], False),
        ((1.0,) * 7 + (2.0,) * 7, False),
        ((1.0,) * 7 + (2.0,) * 8, True),
        ((1.0, 1.0, 1.0, 1.0, 1.3, 1.3, *HOT[6:]), False),
        ((*[1.0] * 9, 5.0, *[1.1] * 10, *[1.2] * 9, 0.5), True),
    ],
    ids=["drift", "15 %", "14 %", "faster", "few", "enough", "wide", "strays"],
)
def test_steps_that_grow_by_fifteen_percent_beyond_their_spread_drift(times, is_slower):
    assert slows_down(times) is is_slower


@pytest.mark.fault(38)
def test_noise_is_no_drift():
    draw = random.Random(11)
    runs = [[draw.lognormvariate(0, 0.2) for _ in range(40)] for _ in range(2000)]
    assert sum(map(slows_down, runs)) == 0


@pytest.mark.fault(38)
@pytest.mark.parametrize(
    ("times_ms", "slow"),
    [([1.0, 1.01, 1.2, 0.99], (2,)), ([1.0, 1.14, 1.08, 0.94], ()), ([1.0, 1.16], (1,)), ([7.0], ()), ([], ())],
)
def test_a_device_far_behind_the_median_of_several_is_slow(times_ms, slow):
    assert slow_ranks(times_ms) == slow
