"""Posteriors of the cost models: planted constants are recovered, and outliers move them little."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from search_spaces.cost_model.constants import CONSTANTS, typical_constants
from search_spaces.cost_model.posterior import (
    MODEL_ERROR,
    MemoryEvidence,
    MemoryPosterior,
    StepTimePosterior,
    TimePrior,
)
from search_spaces.cost_model.step_time import StepTerms
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from tests.kit import gpt

MODEL = gpt(24, 2048, 16)
LAYOUTS = [
    Layout(
        num_nodes=2,
        tensor_parallel=tensor,
        pipeline_parallel=stages,
        data_parallel=16 // tensor // stages,
        micro_batch_size=size,
        grad_accum_steps=64 * tensor * stages // 16 // size,
        precision="bf16",
        attention_kernel="flash",
    ).canonical()
    for tensor in (1, 2, 4, 8)
    for stages in (1, 2)
    for size in (1, 2, 4)
]
TERMS_OF_ALL = StepTerms.of(MODEL, Cluster(ACCELERATORS["a100-80gb"], 8, 2), LayoutTable.of(LAYOUTS))


def posterior_after(rows: list[int], truth: np.ndarray, seed: int = 1, noise: float = 0.0) -> StepTimePosterior:
    measured = TERMS_OF_ALL.take(np.array(rows, dtype=int))
    rng = np.random.default_rng(seed)
    seconds = measured.seconds(truth) * np.exp(noise * rng.standard_normal(len(rows)))
    return StepTimePosterior(measured, seconds, seed)


def changed(**factors: float) -> np.ndarray:
    """The typical constants with these changes."""
    return typical_constants() * np.array([factors.get(term, 1.0) for term in CONSTANTS])


def variance_of(posterior: StepTimePosterior, term: str) -> float:
    """Variance of the logarithm of a constant, that of the machine included."""
    together = [CONSTANTS.index(term), CONSTANTS.index("machine")]
    return float(posterior.summary.covariance[np.ix_(together, together)].sum())


def test_before_any_trial_the_prediction_is_that_of_the_typical_constants():
    mean, deviation = posterior_after([], typical_constants()).predict(TERMS_OF_ALL)
    assert (deviation > 0.1).all()
    # A sum whose summands are uncertain is larger in the mean than in the median.
    assert mean == pytest.approx(np.log(TERMS_OF_ALL.seconds(typical_constants())), abs=0.3)


def test_one_trial_tells_how_slow_the_links_of_an_unknown_host_are():
    truth = changed(latency=300.0)
    rows = [0, int(TERMS_OF_ALL.device.values[TERMS_OF_ALL.device.keys.index(("tensor", ("latency",)))].argmax())]
    measured = TERMS_OF_ALL.take(np.array(rows))
    priors = (TimePrior.default(), TimePrior.default(speed_is_known=False))
    posteriors = [StepTimePosterior(measured, measured.seconds(truth), 1, prior) for prior in priors]
    seconds = np.log(TERMS_OF_ALL.seconds(truth))
    known, guessed = (np.abs(posterior.predict(TERMS_OF_ALL)[0] - seconds).mean() for posterior in posteriors)
    assert guessed < 0.7 * known


def test_what_others_teach_is_widened():
    measured = TERMS_OF_ALL.take(np.array([0, 3, 7, 12]))
    prior = TimePrior.default()
    learnt = prior.widened(measured, measured.seconds(changed(gemm=1.4)), 1)
    gemm = CONSTANTS.index("gemm")
    assert learnt.constants[gemm] > 1.1 * prior.constants[gemm]
    assert (learnt.deviations >= 0.5 * prior.deviations).all()
    assert learnt.deviations[gemm] < prior.deviations[gemm]


@pytest.mark.parametrize(("term", "factor"), [("pipeline", 50.0), ("gemm", 1.7)])
def test_a_few_trials_tell_a_constant_that_is_far_from_typical(term, factor):
    truth = changed(**{term: factor})
    rows = list(range(0, len(LAYOUTS), 3))
    mean, _ = posterior_after(rows, truth, noise=0.03).predict(TERMS_OF_ALL)
    before, _ = posterior_after([], truth).predict(TERMS_OF_ALL)
    logs = np.log(TERMS_OF_ALL.seconds(truth))
    assert np.abs(mean - logs).mean() < np.abs(before - logs).mean() / 2


def test_what_was_measured_is_uncertain_no_more_and_the_same_seed_believes_the_same():
    before, after = posterior_after([], typical_constants()), posterior_after([0, 5, 9, 14], typical_constants())
    assert after.predict(TERMS_OF_ALL)[1].mean() < before.predict(TERMS_OF_ALL)[1].mean() / 2
    assert variance_of(after, "gemm") < variance_of(before, "gemm")
    one, same = (posterior_after([1, 7, 12], typical_constants(), seed=4) for _ in range(2))
    assert one.summary.means.tolist() == same.summary.means.tolist()


EXPERTS = replace(MODEL, num_experts=64, experts_per_token=8, expert_ffn_hidden_size=1024)
CHOICES = [
    Layout(
        num_nodes=4,
        data_parallel=32,
        engine="megatron-lm",
        precision="bf16",
        expert_parallel=degree,
        micro_batch_size=size,
        grad_accum_steps=8 // size,
        expert_dispatcher=dispatcher,
    ).canonical()
    for dispatcher in ("alltoall", "deepep")
    for degree in (8, 16, 32)
    for size in (1, 4)
]


def test_one_trial_of_a_dispatcher_moves_all_layouts_that_have_it_most_and_those_across_nodes_too():
    terms = StepTerms.of(EXPERTS, Cluster(ACCELERATORS["h100-80gb"], 8, 4), LayoutTable.of(CHOICES))
    row = next(i for i, c in enumerate(CHOICES) if (c.expert_dispatcher, c.expert_parallel) == ("deepep", 32))
    slower = terms.take(np.array([row])).seconds(typical_constants()) * 2
    # Draws differ by a hundredth between seeds, as much as the smallest of these differences.
    before, after = (
        np.mean(
            [
                StepTimePosterior(terms.take(np.array(of, dtype=int)), slower[: len(of)], seed).predict(terms)
                for seed in range(4)
            ],
            axis=0,
        )
        for of in ([], [row])
    )
    moved = after[0] - before[0]
    by_all_to_all, by_deepep = np.split(moved, 2)
    assert (by_deepep > by_all_to_all).all()
    # With either size of a micro-batch, experts on two and on four nodes more than on one.
    inside, *across = by_all_to_all.reshape(3, 2)
    assert (across > inside).all()
    assert (inside > 0).all()
    assert (after[1] < before[1])[row]


def test_the_interval_of_a_prediction_is_that_of_many_draws_and_a_faster_layout_is_likely_faster():
    prior, draws = TimePrior.default(), TimePrior.default().draws(4000, np.random.default_rng(1))
    logs = np.log(TERMS_OF_ALL.seconds(np.exp(draws)))
    deviation = np.sqrt(prior.log_deviation(TERMS_OF_ALL) ** 2 - MODEL_ERROR**2)
    assert deviation == pytest.approx(logs.std(axis=0), rel=0.35)
    seconds = TERMS_OF_ALL.seconds(typical_constants())
    probability = prior.probability_faster(TERMS_OF_ALL, than=3)
    assert ((probability > 0.5) == (seconds < seconds[3]))[np.arange(len(seconds)) != 3].all()
    assert probability.min() < 0.05


def test_one_strange_measurement_among_many_moves_little():
    rows = list(range(0, len(LAYOUTS), 2))
    measured = TERMS_OF_ALL.take(np.array(rows))
    seconds = measured.seconds(typical_constants())
    seconds[3] *= 20
    mean, _ = StepTimePosterior(measured, seconds, 1).predict(TERMS_OF_ALL)
    assert np.abs(mean - np.log(TERMS_OF_ALL.seconds(typical_constants()))).max() < 0.15


CAPACITY_GIB = 80.0


def evidence(estimated_gib: float, ran: bool = True, peak_gib: float | None = None) -> MemoryEvidence:
    return MemoryEvidence(estimated_gib, ran, peak_gib)


def fits(found: list[MemoryEvidence], estimated_gib: float) -> float:
    return float(MemoryPosterior(CAPACITY_GIB, found).fits(np.array([estimated_gib]))[0])


def test_without_trials_what_is_small_fits_what_is_large_does_not_and_between_nobody_knows():
    assert fits([], 30) > 0.99
    assert fits([], 160) < 0.01
    assert 0.1 < fits([], 75) < 0.9


def test_an_out_of_memory_makes_all_that_is_as_large_unlikely_and_a_layout_that_ran_what_is_as_small_likely():
    failed = [evidence(60, ran=False)]
    assert fits(failed, 60) < 0.6 < 0.8 < fits([], 60)
    assert fits(failed, 70) < 0.25 < 0.6 < fits([], 70)
    assert fits(failed, 25) > 0.9
    assert fits([*failed, evidence(58, ran=False)], 58) < 0.5
    assert fits([evidence(75)], 75) > fits([], 75)


def test_measured_peaks_tell_how_far_the_estimate_is_off_and_what_stays_free_tells_nothing():
    found = [evidence(gib, peak_gib=1.3 * gib) for gib in (20, 30, 40)]
    assert MemoryPosterior(CAPACITY_GIB, found).factor == pytest.approx(1.3, rel=0.05)
    assert fits(found, 70) < 0.2
    found = [evidence(60, ran=True), evidence(70, ran=False)]
    whole, part = MemoryPosterior(CAPACITY_GIB, found), MemoryPosterior(CAPACITY_GIB, found, usable_gib=40.0)
    assert part.factor == whole.factor
    (much, little) = (float(posterior.fits(np.array([45.0]))[0]) for posterior in (whole, part))
    assert much > 0.9 > 0.5 > little


def test_one_failure_for_another_reason_or_on_a_device_of_unknown_memory_refuses_nothing_else():
    ran = [evidence(gib, peak_gib=gib) for gib in (30, 40, 50)]
    assert fits([*ran, evidence(10, ran=False)], 45) > 0.9
    assert MemoryPosterior(None, [evidence(10, ran=False)]).fits(np.array([1.0, 1e6])).tolist() == [1, 1]
