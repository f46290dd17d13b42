"""Metrics of a measurement: rates, energy, epochs and loads of experts."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from tests.trials.measurement.test_protocol import LAYOUT, MODEL, SPEC, run
from trials.measurement.energy import RankEnergy, energy_fault, energy_fields
from trials.measurement.expert_load import ExpertLoad, load_error
from trials.measurement.metrics import epoch_fields, measured_metrics, steps_per_epoch, throughput_bound
from trials.measurement.protocol import TwoPointExtrapolation
from trials.measurement.step_log import StepPhase, StepRecord
from trials.outcome_types import ThroughputBound


@pytest.mark.parametrize(("times", "fastest_s"), [([9.0, 2.0, 1.6, 1.8], 1.6), ([1.0, 2.0], None)])
def test_too_few_steps_after_the_first_still_bound_what_the_layout_reaches(times, fastest_s):
    tokens = SPEC.global_batch_size * SPEC.model.seq_length
    bound = None if fastest_s is None else ThroughputBound(tokens / fastest_s)
    assert throughput_bound(SPEC, run(times)) == bound


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


TIMES = [9.0, 3.0, 1.0, 2.0, 1.5, 1.25, 1.75, 1.6, 1.4]


def test_rates_rest_on_the_median_of_the_measured_steps_and_its_interval():
    found = measured_metrics(SPEC, records(TIMES))
    step = median(TIMES[2:])
    assert found.step_time_s == step == 1.5
    assert (found.warmup_steps, found.measured_steps) == (2, 7)
    assert found.samples_per_sec == 16 / step
    assert found.tokens_per_sec == 16 * 64 / step
    assert found.tokens_per_sec_per_gpu == 16 * 64 / step / 2
    assert found.fastest_rank_step_time_s == step / 2
    assert found.step_time_p95_s == 2.0
    flops = MODEL.model_flops_per_token * found.tokens_per_sec_per_gpu
    assert found.model_tflops_per_gpu == pytest.approx(flops / 1e12)
    assert (found.step_time_low_s, found.step_time_high_s) == (1.0, 2.0)
    assert (found.tokens_per_sec_low, found.tokens_per_sec_high) == (512.0, 1024.0)
    assert (found.mfu, found.mfu_causal, found.hfu) == (None, None, None)
    few = measured_metrics(SPEC, records([1.0] * 7))
    assert (few.step_time_low_s, few.tokens_per_sec_low) == (None, None)
    with pytest.raises(ValueError, match="no measured step"):
        measured_metrics(SPEC, records([1.0, 1.0]))


def test_the_losses_are_those_of_the_first_and_the_last_step_that_told_one():
    first, *others, last = records(TIMES)
    found = measured_metrics(SPEC, [first, *others, last])
    assert (found.loss_first, found.loss_last) == (5.9, pytest.approx(5.1))
    found = measured_metrics(SPEC, [replace(first, loss=None), *others, replace(last, loss=None)])
    assert (found.loss_first, found.loss_last) == (5.8, pytest.approx(5.2))
    assert measured_metrics(SPEC, [replace(step, loss=None) for step in others]).loss_first is None


@pytest.mark.parametrize(
    ("mib_a_step", "steps", "full_at"),
    [(1.0, 14, 14 + 2 * 1024), (0.0, 14, None), (0.4, 14, None), (1.0, 9, None)],
    ids=["grows", "stays", "creeps", "few-steps"],
)
def test_host_memory_that_grows_says_at_which_step_the_node_is_full(mib_a_step, steps, full_at):
    grown = [replace(r, host_memory_gib=1.0 + mib_a_step * r.step / 1024) for r in records([1.0] * steps)]
    found = measured_metrics(SPEC, grown, host_available_gib=2.0)
    assert found.host_memory_slope_mib_per_step == pytest.approx(mib_a_step)
    assert found.peak_host_memory_gib == 1.0 + mib_a_step * steps / 1024
    assert found.host_memory_full_at_step == full_at


def test_short_steps_tell_the_time_and_the_tokens_of_a_full_one_and_where_disturbed_no_interval():
    extrapolation = TwoPointExtrapolation(2, 4, 64)
    short, long = (replace(LAYOUT, grad_accum_steps=count).global_batch_size for count in (2, 4))
    pairs = records([9.0, 9.0, *[1.0, 1.5] * 7])
    found = measured_metrics(SPEC, [replace(r, samples=short if r.step % 2 else long) for r in pairs], extrapolation)
    assert (found.step_time_s, found.measured_steps) == (16.5, 14)
    assert (found.step_time_low_s, found.step_time_high_s) == (16.5, 16.5)
    assert found.fastest_rank_step_time_s == 8.25
    assert found.tokens_per_sec == 64 * 2 * 2 * 64 / 16.5
    found = measured_metrics(SPEC, records([9.0, 9.0, *[1.0, 1.5] * 6, 4.0, 1.5]), extrapolation)
    assert found.step_time_s == 16.5
    assert (found.step_time_low_s, found.tokens_per_sec_high) == (None, None)


def test_utilisation_is_the_share_of_the_devices_peak():
    fast = replace(LAYOUT, activation_checkpointing="full", precision="bf16")
    found = measured_metrics(replace(SPEC, accelerator="a100-40gb", layout=fast), records(TIMES))
    assert found.mfu == pytest.approx(found.model_tflops_per_gpu / 312)
    assert found.hfu > found.mfu > found.mfu_causal
    causal = MODEL.model_flops_per_token - 6 * MODEL.num_layers * MODEL.hidden_size * MODEL.seq_length
    assert found.mfu_causal == pytest.approx(found.mfu * causal / MODEL.model_flops_per_token)


RANKS = [RankEnergy("gpu-0", 4000.0, 10.0), RankEnergy("gpu-1", 6000.0, 8.0)]


def test_the_energy_of_all_ranks_is_shared_by_the_tokens_with_the_counters_resolution():
    found = energy_fields(RANKS, tokens=20_000)
    assert found["joules_per_token"] == pytest.approx(0.5)
    ends = [found["joules_per_token_low"], found["joules_per_token_high"]]
    assert ends == pytest.approx([0.5 * (1 - 0.1 / 8), 0.5 * (1 + 0.1 / 8)]), "of the rank that was read most closely"


@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (RankEnergy(None), "rank 1: the driver of its device reports no energy"),
        (replace(RANKS[1], joules=0.0), "rank 1: the driver"),
        (replace(RANKS[1], gpu="gpu-0"), "several ranks share a GPU"),
        (replace(RANKS[1], seconds=2.5), "the measured steps took 2.5 s"),
    ],
)
def test_energy_that_is_not_known_of_every_rank_is_absent_with_its_reason(rank, words):
    ranks = [RANKS[0], rank]
    assert (energy_fault(ranks) or "").startswith(words)
    assert energy_fields(ranks, tokens=20_000) == {}


BATCH = SPEC.global_batch_size * MODEL.seq_length
"""Tokens of a step."""


@pytest.mark.parametrize(
    ("num_tokens", "num_steps", "fields"),
    [
        (3 * BATCH + 1, 5, {"epoch_s": 13.0, "loss_after_epoch": pytest.approx(5.6)}),
        (3 * BATCH + 1, 3, {"epoch_s": 13.0}),
        (3 * BATCH, 2, {}),
        (None, 9, {}),
    ],
    ids=["whole", "its-end", "half", "synthetic"],
)
def test_an_epoch_took_what_its_steps_took_and_taught_what_the_next_one_shows(num_tokens, num_steps, fields):
    data = {"kind": "tokens", "path": "/data/tokens", "num_tokens": num_tokens}
    spec = SPEC if num_tokens is None else replace(SPEC, trainer={"kind": "parlay", "data": data})
    assert steps_per_epoch(spec) == (None if num_tokens is None else 3)
    assert epoch_fields(spec, records(TIMES)[:num_steps]) == fields


EXPERTS = replace(MODEL, num_experts=4, experts_per_token=2)
SAMPLES = 8 * SPEC.global_batch_size
"""Eight measured steps."""
GIVEN = SAMPLES * MODEL.seq_length * 2
"""Tokens that the experts of a layer are given in them."""


def spec(routing: str | None, engine: str = "torch"):
    layout = replace(SPEC.layout, engine=engine)
    return replace(SPEC, model=EXPERTS, layout=layout, measure=replace(SPEC.measure, routing=routing))


def counted(*shares: float, passes: int = 1) -> list[float]:
    return [share * GIVEN * passes for share in shares]


EVEN = counted(0.25, 0.25, 0.25, 0.25)


def test_loads_are_of_a_step_and_those_of_the_layer_with_the_most_loaded_expert():
    load = ExpertLoad.of(spec("learned"), [EVEN, counted(0.5, 0.25, 0.125, 0.125, passes=2)])
    assert (load.mean, load.most, load.skew) == (GIVEN / 8 / 4, GIVEN / 8 / 2, 2.0)


MEAN = GIVEN / 4
LITTLE = 3 * MEAN**0.5
DRAWN = [MEAN + LITTLE, MEAN - LITTLE, MEAN, MEAN]
"""Loads that deviate from the mean as random numbers do."""


@pytest.mark.parametrize(
    ("routing", "engine", "layers", "words"),
    [
        ("balanced", "torch", [EVEN, counted(0.25, 0.25, 0.25, 0.25, passes=2)], None),
        ("skewed(2)", "torch", [counted(0.5, 0.25, 0.125, 0.125)], None),
        (None, "torch", [counted(1, 0, 0, 0)], None),
        ("balanced", "torch", [EVEN, counted(0.5, 0.25, 0.125, 0.125)], "2 times the mean of"),
        ("skewed(2)", "torch", [EVEN], "1 times the mean of"),
        (None, "torch", [[*EVEN[:3], EVEN[3] - 1]], f"were given {GIVEN - 1:g} tokens"),
        ("balanced", "megatron-core", [DRAWN], None),
        ("skewed(2)", "megatron-core", [DRAWN], "times the mean of"),
        ("balanced", "megatron-core", [[2 * MEAN, 0, MEAN, MEAN]], "2 times the mean of"),
    ],
)
def test_loads_that_were_not_asked_for_are_an_error_with_the_numbers(routing, engine, layers, words):
    error = load_error(spec(routing, engine), layers, SAMPLES)
    assert (error is None) is (words is None)
    if words is not None:
        assert words in error
    if routing is not None and words is not None:
        assert f"the mean of {MEAN / 8:.0f}; measure.routing is {routing}" in error
