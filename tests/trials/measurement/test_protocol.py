from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
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
MODEL = ModelShape(4, 64, 4, 4, 256, False, 256, 64, False, "learned", "layernorm")
LAYOUT = Layout(data_parallel=2, micro_batch_size=2, grad_accum_steps=4)
SPEC = TrialSpec("s-aaaaaa", "t0001", "a1", "0" * 32, TrialKind.SEARCH, LAYOUT, MODEL, 16, 2, 2, "cpu", RULES)


def run(times: list[float], rules: MeasureRules = RULES, seconds_a_step: float = 1.0) -> Measurement:
    """A measurement fed with these step times until it stops or they end."""
    measurement = Measurement(rules)
    for number, time in enumerate(times, 1):
        if measurement.stop is not None:
            break
        measurement.add(time, elapsed_s=number * seconds_a_step)
    return measurement


def feed(measurement: Measurement, step_time_s: float) -> StopReason | None:
    """The reason to stop after one more step, on a clock that only the steps advance."""
    measurement.add(step_time_s, elapsed_s=sum(measurement.step_times_s) + step_time_s)
    return measurement.stop


class TestWarmup:
    def test_ends_after_six_steps_that_agree(self):
        assert warmup_length([1.0] * 20, 12) == 6

    def test_lasts_while_steps_get_faster(self):
        assert warmup_length([8, 6, 4, 3, 2, 1.5, 1.2, 1.0, 1.0, 1.0, 1.0, 1.0], 20) == 12

    def test_lasts_while_steps_get_slower(self):
        assert warmup_length([1.0, 1.0, 1.0, 1.3, 1.3, 1.3, 1.3, 1.3], 12) == 8

    def test_forgives_one_stray_step(self):
        assert warmup_length([9.0, 1.0, 1.0, 1.0, 5.0, 1.0], 12) == 6

    def test_is_unknown_while_it_lasts(self):
        assert warmup_length([1.0] * 5, 12) is None
        assert warmup_length([2.0**-n for n in range(11)], 12) is None

    def test_ends_at_its_longest_in_any_case(self):
        assert warmup_length([2.0**-n for n in range(15)], 12) == 12
        assert warmup_length([1.0, 1.0], 2) == 2
        assert warmup_length([], 0) == 0

    def test_more_steps_never_change_the_answer(self):
        draw = random.Random(3)
        times = [draw.uniform(0.5, 2.0) for _ in range(30)]
        known = [warmup_length(times[:n], 12) for n in range(31)]
        assert {w for w in known if w is not None} == {warmup_length(times, 12)}


class TestMeasurement:
    def test_stops_at_the_fewest_steps_when_they_agree(self):
        measurement = run([1.0] * 40)
        assert (measurement.stop, measurement.warmup_steps) == (StopReason.PRECISE, 6)
        assert len(measurement.measured_times_s) == RULES.min_steps

    def test_goes_on_to_the_most_steps_when_they_do_not(self):
        measurement = run([1.0] * 6 + [1.0, 2.0] * 20)
        assert (measurement.stop, measurement.is_wide) == (StopReason.MAX_STEPS, True)
        assert len(measurement.measured_times_s) == RULES.max_steps

    def test_the_most_steps_that_agree_are_precise(self):
        measurement = Measurement(replace(RULES, min_steps=20, max_steps=20))
        while feed(measurement, 1.0) is None:
            pass
        assert (measurement.stop, measurement.is_wide) == (StopReason.PRECISE, False)

    def test_stops_before_the_time_limit_with_enough_steps(self):
        measurement = run([1.0] * 6 + [1.0, 2.0] * 20, replace(RULES, time_limit_s=20))
        assert measurement.stop is StopReason.TIME_LIMIT
        assert measurement.has_enough_steps
        assert len(measurement.step_times_s) < 20

    def test_stops_before_the_time_limit_with_too_few_steps(self):
        measurement = run([1.0] * 40, replace(RULES, time_limit_s=10))
        assert measurement.stop is StopReason.TIME_LIMIT
        assert not measurement.has_enough_steps

    def test_a_first_step_that_compiled_is_not_taken_for_how_long_steps_take(self):
        measurement = Measurement(replace(RULES, time_limit_s=60))
        compiling_s = 25.0
        assert feed(measurement, compiling_s) is None
        while feed(measurement, 0.5) is None:
            assert len(measurement.step_times_s) < 20
        assert measurement.stop is StopReason.PRECISE

    def test_a_step_is_of_the_phase_that_was_known_before_it(self):
        measurement = Measurement(RULES)
        phases = []
        for number in range(8):
            phases.append(measurement.phase)
            measurement.add(1.0, elapsed_s=number)
        assert phases == [StepPhase.WARMUP] * 6 + [StepPhase.MEASURED] * 2


class TestFinalists:
    """Finalists are measured for a number of steps or a time, whichever is over first, however alike they are."""

    FINALISTS = replace(RULES, finalist_steps=50, finalist_time_s=1e9)

    @staticmethod
    def measured(rules: MeasureRules) -> Measurement:
        measurement = Measurement(rules, is_finalist=True)
        while feed(measurement, 1.0) is None:
            assert len(measurement.step_times_s) < 100
        return measurement

    @pytest.mark.parametrize(("limits", "steps"), [({}, 50), ({"finalist_time_s": 15.0}, 15)])
    def test_are_not_done_when_their_speed_is_known(self, limits, steps):
        measurement = self.measured(replace(self.FINALISTS, **limits))
        assert (len(measurement.measured_times_s), measurement.stop) == (steps, StopReason.PRECISE)

    def test_go_on_beyond_the_most_steps(self):
        measurement = self.measured(replace(self.FINALISTS, ci_relative_width=0.0, max_steps=20))
        assert (len(measurement.measured_times_s), measurement.stop) == (50, StopReason.PRECISE)

    def test_go_on_while_their_speed_is_not_known(self):
        measurement = Measurement(replace(self.FINALISTS, finalist_steps=8, max_steps=40), is_finalist=True)
        times_s = itertools.chain([1.0] * 6, itertools.cycle([1.0, 2.0]))
        while feed(measurement, next(times_s)) is None:
            pass
        assert (len(measurement.measured_times_s), measurement.stop) == (40, StopReason.MAX_STEPS)

    @pytest.mark.parametrize(("width", "stop"), [(0.05, StopReason.PRECISE), (0.0, StopReason.TIME_LIMIT)])
    def test_end_at_the_time_limit_with_a_flag_only_where_their_speed_is_unknown(self, width, stop):
        rules = replace(self.FINALISTS, time_limit_s=20.0, ci_relative_width=width)
        measurement = Measurement(rules, is_finalist=True)
        times_s = itertools.chain([1.0] * 6, itertools.cycle([1.0, 1.0 + width / 2, 1.01]))
        while feed(measurement, next(times_s)) is None:
            assert len(measurement.step_times_s) < 20
        assert measurement.stop is stop


class TestPruned:
    """A trial whose steps cannot be as fast as the incumbent's stops; runs of one layout differ by some percent."""

    WARM = (1.0,) * 6

    def stop_after(self, times: tuple[float, ...], target_step_time_s: float | None) -> tuple[int, StopReason | None]:
        measurement = Measurement(replace(RULES, min_steps=20))
        for time in (*self.WARM, *times):
            measurement.add(time, elapsed_s=1.0, target_step_time_s=target_step_time_s)
            if measurement.stop is not None:
                break
        return len(measurement.measured_times_s), measurement.stop

    def test_stops_as_soon_as_there_is_an_interval(self):
        assert self.stop_after((1.0,) * 12, target_step_time_s=0.8) == (6, StopReason.PRUNED)

    def test_is_not_what_could_be_as_fast_on_another_day(self):
        # One run tells a speed to within 8 %: 3 % between runs, Student's t with four degrees of freedom.
        assert self.stop_after((1.0,) * 12, target_step_time_s=0.93) == (12, None)
        assert self.stop_after((1.0,) * 12, target_step_time_s=0.91) == (6, StopReason.PRUNED)

    def test_waits_while_the_steps_vary(self):
        assert self.stop_after((1.0, 1.0, 1.0, 1.0, 1.0, -1.0), target_step_time_s=0.1) == (6, None)
        assert self.stop_after((0.7, 1.3) * 4, target_step_time_s=0.8) == (8, None)

    def test_needs_an_incumbent(self):
        assert self.stop_after((1.0,) * 12, target_step_time_s=None) == (12, None)

    def test_is_not_what_drifts_since_its_node_may_be_unwell(self):
        steps = (1.0,) * 5 + (1.2,) * 5 + (1.4,) * 5
        undecided = Measurement(replace(RULES, min_steps=20, max_steps=40))
        for time in (*self.WARM, *steps):
            undecided.add(time, elapsed_s=1.0)
        undecided.add(1.4, elapsed_s=1.0, target_step_time_s=0.5)
        assert undecided.stop is None

    def test_what_is_known_well_enough_is_measured(self):
        measurement = Measurement(RULES)
        for time in (1.0,) * 14:
            measurement.add(
                time, elapsed_s=1.0, target_step_time_s=0.8 if len(measurement.step_times_s) == 13 else None
            )
        assert measurement.stop is StopReason.PRECISE


class TestTwoPointExtrapolation:
    """Layouts with steps of minutes are measured by shorter steps."""

    LONG = replace(LAYOUT, pipeline_parallel=4, pipeline_schedule="1f1b", grad_accum_steps=96)

    def test_fill_the_pipeline_twice_and_four_times(self):
        assert TwoPointExtrapolation.of(self.LONG) == TwoPointExtrapolation(8, 16, 96)

    def test_hold_as_much_as_an_interleaved_step_does_at_once(self):
        chunks = replace(self.LONG, virtual_pipeline_stages=3, pipeline_schedule="interleaved_1f1b")
        assert TwoPointExtrapolation.of(chunks) == TwoPointExtrapolation(16, 32, 96)

    def test_are_not_much_shorter_than_a_twelfth_of_a_full_step(self):
        assert TwoPointExtrapolation.of(replace(self.LONG, grad_accum_steps=1000)) == TwoPointExtrapolation(
            80, 160, 1000
        )

    @pytest.mark.parametrize("layout", [replace(LONG, grad_accum_steps=47), replace(LONG, pipeline_schedule="gpipe")])
    def test_are_not_for_steps_that_are_short_or_whose_memory_they_would_not_show(self, layout):
        assert TwoPointExtrapolation.of(layout) is None

    def test_lie_on_a_line_with_the_full_step(self):
        assert TwoPointExtrapolation(8, 16, 96).full_time_s(2.0 + 8 * 0.5, 2.0 + 16 * 0.5) == pytest.approx(
            2.0 + 96 * 0.5
        )


class TestStepPlan:
    SPEC = replace(SPEC, layout=replace(LAYOUT, grad_accum_steps=64))

    def go(self, spec: TrialSpec, seconds_a_micro_batch: float, steps: int, first_s: float = 0.0) -> StepPlan:
        """A plan after this many steps, each with a constant second of overhead; the first took `first_s` longer."""
        step_plan, self.counts, self.told = StepPlan(spec), [], []
        for number in range(steps):
            self.counts.append(step_plan.micro_batches)
            extra = first_s if number == 0 else 0.0
            self.told.append(step_plan.add(1.0 + extra + seconds_a_micro_batch * step_plan.micro_batches))
        return step_plan

    def test_a_short_step_that_tells_of_a_short_full_one_is_the_only_one(self):
        assert not self.go(self.SPEC, -0.1, 4).is_extrapolated
        assert self.counts == [5, 64, 64, 64]
        assert self.told[0] is None

    def test_a_slow_start_does_not_make_a_step_long(self):
        assert not self.go(self.SPEC, 0.1, 6, first_s=60.0).is_extrapolated
        assert self.counts == [5, 5, 10, 64, 64, 64]
        assert self.told[:3] == [None, None, None]

    def test_steps_longer_than_half_a_minute_go_on_in_pairs(self):
        assert self.go(self.SPEC, 1.0, 7).is_extrapolated
        assert self.counts == [5, 5, 10, 5, 10, 5, 10]
        assert [told is not None for told in self.told] == [False, False, True, False, True, False, True]
        assert self.told[-1] == (pytest.approx(65.0), pytest.approx(6.0 + 11.0))
        assert LONGEST_STEP_S < 65.0

    @pytest.mark.parametrize("kind", [TrialKind.REPEAT, TrialKind.REPLAY])
    def test_repeats_run_full_steps(self, kind):
        assert not self.go(replace(self.SPEC, kind=kind), 1.0, 3).is_extrapolated
        assert self.counts == [64, 64, 64]

    def test_so_does_what_cannot_be_shortened(self):
        assert not self.go(SPEC, 100.0, 3).is_extrapolated
        assert self.counts == [4, 4, 4]


class TestMedianInterval:
    @pytest.mark.parametrize(("count", "ranks"), [(6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (20, (6, 15)), (40, (14, 27))])
    def test_has_the_ranks_of_the_published_table(self, count, ranks):
        # Conover, Practical Nonparametric Statistics: 95 % confidence limits of the median.
        assert median_interval(list(range(1, count + 1))) == ranks

    def test_of_thousands_of_values_has_the_ranks_of_the_normal_approximation(self):
        count = 5000
        low, high = median_interval(list(range(1, count + 1)))
        assert (low, high) == pytest.approx((2500 - 1.96 * 5000**0.5 / 2, 2501 + 1.96 * 5000**0.5 / 2), abs=2)

    def test_is_unknown_below_six_values(self):
        assert median_interval([1.0] * 5) is None
        assert median_interval([]) is None

    def test_holds_the_true_median_as_often_as_it_says(self):
        draw = random.Random(5)
        samples = [[draw.expovariate(1.0) for _ in range(11)] for _ in range(4000)]
        true_median = 0.6931
        held = sum(low <= true_median <= high for low, high in map(median_interval, samples))
        # Binomial(11, 1/2) below 2 on either side: 1 - 2 x 12 / 2048.
        assert held / len(samples) == pytest.approx(0.988, abs=0.005)


class TestSuspicion:
    """Measurements that the machine rather than the layout may have slowed down."""

    HOT = (1.0,) * 6 + (1.1,) * 6 + (1.2,) * 6

    @pytest.mark.fault(38)
    def test_steps_that_grow_by_fifteen_percent_drift(self):
        assert slows_down(self.HOT)
        assert slows_down((1.0,) * 6 + (1.1,) * 6 + (1.15,) * 6)
        assert not slows_down((1.0,) * 6 + (1.1,) * 6 + (1.14,) * 6)

    @pytest.mark.fault(38)
    def test_steps_that_get_faster_do_not(self):
        assert not slows_down(self.HOT[::-1])

    @pytest.mark.fault(38)
    def test_few_steps_tell_nothing(self):
        assert not slows_down((1.0,) * 7 + (2.0,) * 7)
        assert slows_down((1.0,) * 7 + (2.0,) * 8)

    @pytest.mark.fault(38)
    def test_a_wide_spread_hides_a_drift(self):
        assert not slows_down((1.0, 1.0, 1.0, 1.0, 1.3, 1.3, *self.HOT[6:]))

    @pytest.mark.fault(38)
    def test_one_stray_step_in_ten_hides_none(self):
        first, last = [1.0] * 9 + [5.0], [1.2] * 9 + [0.5]
        assert slows_down([*first, *[1.1] * 10, *last])

    @pytest.mark.fault(38)
    def test_noise_is_no_drift(self):
        draw = random.Random(11)
        runs = [[draw.lognormvariate(0, 0.2) for _ in range(40)] for _ in range(2000)]
        assert sum(map(slows_down, runs)) == 0

    @pytest.mark.fault(38)
    def test_a_device_far_behind_the_median_is_slow(self):
        assert slow_ranks([1.0, 1.01, 1.2, 0.99]) == (2,)
        assert slow_ranks([1.0, 1.14, 1.08, 0.94]) == ()
        assert slow_ranks([1.0, 1.16]) == (1,)

    @pytest.mark.fault(38)
    def test_without_a_comparison_none_is(self):
        assert slow_ranks([7.0]) == ()
        assert slow_ranks([]) == ()
