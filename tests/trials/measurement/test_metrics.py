"""Metrics of a measurement, from step records."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from tests.trials.measurement.test_protocol import LAYOUT, MODEL, SPEC, run
from trials.measurement.metrics import measured_metrics, percentile, throughput_bound
from trials.measurement.protocol import TwoPointExtrapolation
from trials.measurement.step_log import StepPhase, StepRecord
from trials.outcome_types import ThroughputBound


def test_too_few_steps_still_bound_what_the_layout_reaches():
    tokens = SPEC.global_batch_size * SPEC.model.seq_length
    seen = throughput_bound(SPEC, run([9.0, 2.0, 1.6, 1.8]))
    assert seen == ThroughputBound(tokens / 1.6)


def test_a_first_step_bounds_nothing_since_it_may_have_compiled_nor_does_a_single_one_after_it():
    assert throughput_bound(SPEC, run([1.0, 2.0])) is None


def test_a_percentile_is_one_of_the_values():
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.95) == 4.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0


def records(times: list[float], warmup: int = 2) -> list[StepRecord]:
    return [
        StepRecord(
            step=number,
            phase=StepPhase.WARMUP if number <= warmup else StepPhase.MEASURED,
            time="2026-11-20T12:00:00.000000Z",
            step_time_s=time,
            fastest_rank_step_time_s=time / 2,
            loss=6.0 - 0.1 * number,
            grad_norm=1.0,
            samples=16,
            host_memory_gib=1.0 + number / 1024,
        )
        for number, time in enumerate(times, 1)
    ]


class TestMeasuredMetrics:
    TIMES = (9.0, 3.0, 1.0, 2.0, 1.5, 1.25, 1.75, 1.6, 1.4)

    def test_rates_rest_on_the_median_of_the_measured_steps(self):
        found = measured_metrics(SPEC, records(list(self.TIMES)))
        step = median(self.TIMES[2:])
        assert found.step_time_s == step == 1.5
        assert (found.warmup_steps, found.measured_steps) == (2, 7)
        assert found.samples_per_sec == 16 / step
        assert found.tokens_per_sec == 16 * 64 / step
        assert found.tokens_per_sec_per_gpu == 16 * 64 / step / 2
        assert found.fastest_rank_step_time_s == step / 2
        assert found.step_time_p95_s == 2.0
        flops = MODEL.model_flops_per_token * found.tokens_per_sec_per_gpu
        assert found.model_tflops_per_gpu == pytest.approx(flops / 1e12)

    def test_the_slow_end_of_the_interval_is_the_low_throughput(self):
        found = measured_metrics(SPEC, records(list(self.TIMES)))
        assert (found.step_time_low_s, found.step_time_high_s) == (1.0, 2.0)
        assert (found.tokens_per_sec_low, found.tokens_per_sec_high) == (512.0, 1024.0)

    def test_the_losses_are_those_of_the_first_and_the_last_step(self):
        found = measured_metrics(SPEC, records(list(self.TIMES)))
        assert (found.loss_first, found.loss_last) == (5.9, pytest.approx(5.1))

    def test_of_steps_that_told_no_loss_none_is_the_first_or_the_last(self):
        first, *others, last = records(list(self.TIMES))
        found = measured_metrics(SPEC, [replace(first, loss=None), *others, replace(last, loss=None)])
        assert (found.loss_first, found.loss_last) == (5.8, pytest.approx(5.2))
        assert measured_metrics(SPEC, [replace(step, loss=None) for step in others]).loss_first is None

    def test_growing_host_memory_shows_as_a_slope(self):
        found = measured_metrics(SPEC, records(list(self.TIMES)))
        assert found.host_memory_slope_mib_per_step == pytest.approx(1.0)
        assert found.peak_host_memory_gib == 1.0 + 9 / 1024

    def test_a_node_that_fills_up_says_at_which_step(self):
        found = measured_metrics(SPEC, records([1.0] * 14), host_available_gib=2.0)
        assert found.host_memory_full_at_step == 14 + 2 * 1024

    def test_memory_that_does_not_grow_fills_no_node(self):
        flat = [replace(record, host_memory_gib=1.0) for record in records([1.0] * 14)]
        found = measured_metrics(SPEC, flat, host_available_gib=2.0)
        assert found.host_memory_slope_mib_per_step == 0.0
        assert found.host_memory_full_at_step is None

    def test_what_a_young_process_still_takes_is_no_leak(self):
        creeping = [replace(r, host_memory_gib=1.0 + 0.4 * r.step / 1024) for r in records([1.0] * 14)]
        assert measured_metrics(SPEC, creeping, host_available_gib=2.0).host_memory_full_at_step is None

    def test_few_steps_do_not_tell_whether_memory_grows(self):
        assert measured_metrics(SPEC, records([1.0] * 9), host_available_gib=2.0).host_memory_full_at_step is None

    def test_short_steps_tell_the_time_and_the_tokens_of_a_full_one(self):
        short, long = (replace(LAYOUT, grad_accum_steps=count).global_batch_size for count in (2, 4))
        pairs = [
            replace(record, samples=long if record.step % 2 == 0 else short)
            for record in records([9.0, 9.0, *[1.0, 1.5] * 7])
        ]
        found = measured_metrics(SPEC, pairs, TwoPointExtrapolation(2, 4, 64))
        assert (found.step_time_s, found.measured_steps) == (16.5, 14)
        assert (found.step_time_low_s, found.step_time_high_s) == (16.5, 16.5)
        assert found.fastest_rank_step_time_s == 8.25
        assert found.tokens_per_sec == 64 * 2 * 2 * 64 / 16.5

    def test_short_steps_that_were_disturbed_leave_the_interval_unknown(self):
        times = [9.0, 9.0, *[1.0, 1.5] * 6, 4.0, 1.5]
        found = measured_metrics(SPEC, records(times), TwoPointExtrapolation(2, 4, 64))
        assert found.step_time_s == 16.5
        assert (found.step_time_low_s, found.tokens_per_sec_high) == (None, None)

    def test_without_a_known_peak_there_is_no_utilisation(self):
        found = measured_metrics(SPEC, records(list(self.TIMES)))
        assert (found.mfu, found.mfu_causal, found.hfu) == (None, None, None)

    def test_utilisation_is_the_share_of_the_devices_peak(self):
        fast = replace(LAYOUT, activation_checkpointing="full", precision="bf16")
        spec = replace(SPEC, accelerator="a100-40gb", layout=fast)
        found = measured_metrics(spec, records(list(self.TIMES)))
        assert found.mfu == pytest.approx(found.model_tflops_per_gpu / 312)
        assert found.hfu > found.mfu > found.mfu_causal
        causal = MODEL.model_flops_per_token - 6 * MODEL.num_layers * MODEL.hidden_size * MODEL.seq_length
        assert found.mfu_causal == pytest.approx(found.mfu * causal / MODEL.model_flops_per_token)

    def test_with_few_steps_the_interval_is_absent(self):
        found = measured_metrics(SPEC, records([1.0] * 7))
        assert found.step_time_low_s is None
        assert found.tokens_per_sec_low is None

    def test_without_a_measured_step_there_is_nothing_to_report(self):
        with pytest.raises(ValueError, match="no measured step"):
            measured_metrics(SPEC, records([1.0, 1.0]))
