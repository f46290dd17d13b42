"""Guided sampler on synthetic clusters whose constants the models do not know, over layouts and settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from orchestrator.search.samplers.base import Sampler, TrialFeedback
from orchestrator.search.samplers.cost_model_posterior import CostModelPredictor, TuningTask
from orchestrator.search.samplers.factory import make_sampler
from orchestrator.search.samplers.guided import MANY_TRIALS, GuidedSampler
from search_spaces.cost_model.constants import CONSTANTS, typical_constants
from search_spaces.cost_model.memory import stage_memory
from search_spaces.cost_model.step_time import StepTerms
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.settings import Settings
from search_spaces.layouts.table import LayoutTable
from search_spaces.layouts.workload import Workload
from search_spaces.schema.presets import accelerator_named
from search_spaces.search_space import search_space
from tests.kit import gpt
from trials.analysis.ranking import Objective
from trials.trial import FailureReason

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("silent")]  # no sampler is replaced

MODEL = gpt(32, 4096, 32)
CLUSTER = Cluster(ACCELERATORS["a100-80gb"], 8, 4)
TASK = TuningTask(MODEL, CLUSTER)
LAYOUTS = [
    Layout(
        num_nodes=4,
        tensor_parallel=tensor,
        pipeline_parallel=stages,
        data_parallel=32 // tensor // stages,
        micro_batch_size=size,
        grad_accum_steps=128 * tensor * stages // 32 // size,
        zero_stage=zero if tensor * stages < 32 else 0,
        sequence_parallel=tensor > 1,
        precision="bf16",
        attention_kernel="flash",
    ).canonical()
    for tensor in (1, 2, 4, 8)
    for stages in (1, 2, 4, 8)
    for size in (1, 2, 4)
    for zero in (0, 1)
    if tensor * stages <= 32 and 128 * tensor * stages // 32 // size >= stages
]
CANDIDATES = list({layout.key: layout for layout in LAYOUTS}.values())
PEAKS = stage_memory(MODEL, LayoutTable.of(CANDIDATES)).peak


class SimulatedCluster:
    """Result of a layout by the models' own formulas with other constants."""

    def __init__(self, memory_factor: float = 1.0, **factors: float):
        constants = typical_constants() * np.array([factors.get(term, 1.0) for term in CONSTANTS])
        seconds = StepTerms.of(MODEL, CLUSTER, LayoutTable.of(CANDIDATES)).seconds(constants)
        self._answers = {
            layout.key: TrialFeedback(layout, value=128 * 2048 / step_s, peak_memory_gib=gib)
            if gib < 77
            else TrialFeedback(layout, reason=FailureReason.GPU_OOM)
            for layout, step_s, gib in zip(CANDIDATES, seconds, PEAKS * memory_factor, strict=True)
        }
        self.best = max(told.value for told in self._answers.values() if told.value is not None)

    def __call__(self, layout: Layout) -> TrialFeedback:
        return self._answers[layout.key]

    def measured(self, layouts: list[Layout]) -> list[TrialFeedback]:
        """Feedback on those of the layouts that fit."""
        return [told for layout in layouts if (told := self(layout)).value is not None]


def sampler(name: str = "guided", seed: int = 1) -> Sampler:
    return make_sampler(name, CANDIDATES, TASK, seed)


def predict(history: list[TrialFeedback], task: TuningTask = TASK):
    return CostModelPredictor(task, CANDIDATES, seed=1).predict(history)


def asked_until(
    asked: Sampler, cluster: Callable[[Layout], TrialFeedback], is_enough: Callable[[list[TrialFeedback]], bool]
) -> list[TrialFeedback]:
    """History of trials that are asked for one by one."""
    history: list[TrialFeedback] = []
    while not is_enough(history):
        history += [cluster(layout) for layout in asked.ask(1, history)]
    return history


def trials_until_best(asked: Sampler, cluster: SimulatedCluster) -> int:
    return len(asked_until(asked, cluster, lambda history: best_of(history) >= 0.98 * cluster.best))


def best_of(history: list[TrialFeedback]) -> float:
    return max((told.value for told in history if told.value is not None), default=0.0)


def test_an_empty_history_means_the_order_of_the_model():
    assert sampler().ask(5, [])[0] == sampler("cost_model").ask(5, [])[0]


@pytest.mark.parametrize(
    "factors",
    [{}, {"pipeline": 300}, {"collectives": 3}, {"memory_factor": 1.35}, {"gemm": 1.5, "launches": 3}],
    ids=["as-expected", "slow-messages", "slow-node", "full-sooner", "slow-device"],
)
def test_a_handful_of_trials_finds_the_best_of_a_cluster_that_is_not_as_expected(factors):
    assert trials_until_best(sampler(), SimulatedCluster(**factors)) <= 6


def test_it_needs_fewer_trials_than_the_order_of_the_model_where_that_is_wrong():
    cluster = SimulatedCluster(data_parallel=30)
    assert trials_until_best(sampler(), cluster) < trials_until_best(sampler("cost_model"), cluster)


def test_a_pruned_layout_teaches_nearly_as_much_as_a_measured_one():
    cluster = SimulatedCluster(data_parallel=10)
    pruned = [
        TrialFeedback(t.layout, reason=FailureReason.PRUNED, upper_bound=t.value * 1.03)
        for t in cluster.measured(CANDIDATES[::7])
    ]
    truth = np.array([math.log(t.value) if (t := cluster(layout)).value else np.nan for layout in CANDIDATES])
    measured = cluster.measured(CANDIDATES[::7])
    cold, by_pruned, by_measured = (
        np.nanmean(np.abs(predict(history).log_value - truth)) for history in ([], pruned, measured)
    )
    assert by_pruned < cold / 2
    assert cold - by_pruned > 0.9 * (cold - by_measured)


def test_a_layout_that_leaves_too_little_memory_teaches_its_time_and_its_peak_and_is_no_value_to_beat():
    ran = SimulatedCluster(data_parallel=10).measured(CANDIDATES[::7])
    unfit = [replace(t, value=None, reason=FailureReason.GPU_OOM, unfit_value=t.value) for t in ran]
    as_unfit, as_measured = predict(unfit), predict(ran)
    assert as_unfit.log_value.tolist() == as_measured.log_value.tolist()
    assert as_unfit.fits.tolist() == as_measured.fits.tolist()
    assert not GuidedSampler(CANDIDATES, 1, TASK).has_converged(unfit)


def test_memory_that_has_to_stay_free_is_room_that_layouts_have_not():
    roomy = replace(TASK, min_free_memory_gib=20)
    wide, narrow = predict([]), predict([], roomy)
    between = (PEAKS > 60) & (PEAKS < 75)
    assert (narrow.fits <= wide.fits).all()
    assert wide.fits[between].min() > 0.3 > narrow.fits[between].max()
    assert roomy.usable_gib == pytest.approx(TASK.capacity_gib - 20)


def test_a_failure_of_the_machine_teaches_nothing():
    before, after = predict([]), predict([TrialFeedback(CANDIDATES[3], reason=FailureReason.NODE_FAILURE)])
    assert after.fits.tolist() == before.fits.tolist()
    assert after.log_value.tolist() == before.log_value.tolist()


def test_it_stops_when_nothing_left_promises_a_gain_and_not_before_anything_was_measured():
    cluster, asked = SimulatedCluster(), sampler()
    history = asked_until(asked, cluster, asked.has_converged)
    assert 3 <= len(history) <= 12
    assert best_of(history) >= 0.98 * cluster.best
    failures = [TrialFeedback(layout, reason=FailureReason.GPU_OOM) for layout in CANDIDATES[:5]]
    assert not sampler().has_converged([])
    assert not sampler().has_converged(failures)


def test_what_ran_out_of_time_is_never_the_best_so_far():
    asked = sampler()
    history = asked_until(asked, SimulatedCluster(data_parallel=3), lambda history: len(history) >= 7)
    # Its fastest step may have been twice as fast as any layout is; no run of it was.
    bound = 2 * best_of(history)
    unproven = TrialFeedback(asked.ask(1, history)[0], reason=FailureReason.TIME_LIMIT, upper_bound=bound)
    assert not asked.has_converged(history)
    assert not asked.has_converged([*history, unproven])


def test_trials_in_flight_are_none_of_the_dozen_after_which_a_large_gain_alone_counts():
    asked = sampler()
    is_enough = lambda history: sum(told.value is not None for told in history) >= 4  # noqa: E731
    history = asked_until(asked, SimulatedCluster(data_parallel=30), is_enough)
    assert not asked.has_converged([*history, *map(TrialFeedback, asked.ask(MANY_TRIALS, history))])


def test_values_are_expected_in_the_objectives_own_unit():
    told = [SimulatedCluster()(layout) for layout in CANDIDATES]
    expected = predict([]).log_value
    off = [mean - math.log(t.value) for mean, t in zip(expected, told, strict=True) if t.value is not None]
    assert abs(np.median(off)) < 0.3


def test_energy_is_predicted_from_step_times_and_the_draw_measured_so_far():
    watts, measured = 400.0, SimulatedCluster().measured(CANDIDATES)[:6]
    of_energy = [replace(t, value=t.value / t.layout.num_gpus / watts, watts_per_gpu=watts) for t in measured]
    by_time = predict(measured)
    by_energy = predict(of_energy, replace(TASK, objective=Objective.JOULES_PER_TOKEN))
    gpus = np.array([layout.num_gpus for layout in CANDIDATES])
    np.testing.assert_allclose(by_energy.log_value, by_time.log_value - np.log(gpus * watts), atol=1e-9)
    assert (by_energy.deviation > by_time.deviation).all(), "layouts draw different powers"


# -- pairs of layout and settings, on a fixed simulated table

SMALL = gpt(24, 2048, 16, tied_embeddings=True)
ON_H100 = TuningTask(SMALL, Cluster(accelerator_named("h100-80gb"), gpus_per_node=8, num_nodes=2))
AXES = {
    "tensor_parallel": (1, 2, 4, 8),
    "pipeline_parallel": (1, 2, 4),
    "micro_batch_size": (1, 2, 4),
    "precision": ("bf16",),
    "attention_kernel": ("flash",),
    "zero_stage": (0, 1),
}
TWO_SETTINGS = {"NCCL_ALGO": (None, "Ring"), "NCCL_NCHANNELS_PER_NET_PEER": ("1", "4")}
TEXTS = [Settings(dict(zip(TWO_SETTINGS, values, strict=True))).text for values in product(*TWO_SETTINGS.values())]


def drawn_layouts(rng: np.random.Generator) -> list[Layout]:
    valid = search_space(Workload(SMALL, ON_H100.cluster, 256), AXES).layouts
    return [valid[row] for row in sorted(rng.choice(len(valid), 20, replace=False).tolist())]


def simulated_speeds(seed: int) -> dict[str, float]:
    """Tokens/s by layout key, of which the cost model knows nothing.

    A setting changes all layouts by 10 % (standard deviation), by 7 % more that differ between layouts with and without
    tensor parallelism, and by 3.5 % of each layout's own.
    """
    rng = np.random.default_rng(seed)
    layouts = drawn_layouts(rng)
    logs = CostModelPredictor(ON_H100, layouts, seed).predict([]).log_value.mean() + rng.normal(0, 0.2, len(layouts))
    shared, of_kind = rng.normal(0, 0.1, len(TEXTS)), rng.normal(0, 0.07, (2, len(TEXTS)))
    speeds = {}
    for layout, log in zip(layouts, logs, strict=True):
        own, noise = 0.035 * rng.normal(size=len(TEXTS)), rng.normal(0, 0.005, len(TEXTS))
        effects = shared + of_kind[int(layout.tensor_parallel > 1)] + own + noise
        speeds |= {
            replace(layout, settings=text).key: math.exp(log + e) for text, e in zip(TEXTS, effects, strict=True)
        }
    return speeds


def trials_to_best(speeds: Mapping[str, float], layouts: Sequence[Layout], seed: int) -> int:
    """Trials of a guided search until one is within 2 % of the best of these layouts."""
    best, history = max(speeds[layout.key] for layout in layouts), list[TrialFeedback]()
    sampler = GuidedSampler(layouts, seed, ON_H100)
    while all((feedback.value or 0) < best / 1.02 for feedback in history):
        [layout] = sampler.ask(1, history)
        history.append(TrialFeedback(layout, value=speeds[layout.key]))
    return len(history)


def test_settings_cost_few_trials_more_than_layouts_alone():
    of_pairs, of_layouts = np.sum([trials_of_pairs_and_layouts(seed) for seed in range(4)], axis=0)
    assert of_pairs <= 1.5 * of_layouts


def trials_of_pairs_and_layouts(seed: int) -> tuple[int, int]:
    speeds, layouts = simulated_speeds(seed), drawn_layouts(np.random.default_rng(seed))
    pairs = [replace(layout, settings=text) for layout in layouts for text in TEXTS]
    alone = [pair for pair in pairs if pair.settings == pairs[0].settings]
    assert len(pairs) == 4 * len(alone) == 80
    return trials_to_best(speeds, pairs, seed), trials_to_best(speeds, alone, seed)


def test_an_effect_that_layouts_share_is_learnt_from_others():
    """A layout without any trial is tried with the setting that was faster with others."""
    layouts = drawn_layouts(np.random.default_rng(0))[:6]
    slow, fast = "env.NCCL_MIN_NCHANNELS=4", "env.NCCL_MIN_NCHANNELS=32"
    pairs = [replace(layout, settings=text) for layout in layouts for text in (slow, fast)]
    predicted = CostModelPredictor(ON_H100, pairs, 0).predict([]).log_value
    history = [
        TrialFeedback(pair, value=math.exp(log + (0.3 if pair.settings == fast else 0)))
        for pair, log in zip(pairs[:8], predicted[:8], strict=True)
    ]
    sampler = GuidedSampler(pairs, 0, ON_H100)
    [chosen] = sampler.ask(1, history)
    assert chosen.settings == fast
    assert chosen.without_settings in layouts[4:]


def test_a_layout_out_of_memory_is_so_with_other_settings_but_the_allocators():
    task = replace(ON_H100, model=replace(SMALL, num_layers=40))
    layout = Layout(num_nodes=2, data_parallel=16, micro_batch_size=4, grad_accum_steps=4, precision="bf16")
    texts = ("env.NCCL_ALGO=Ring", "-env.NCCL_ALGO", "env.PYTORCH_ALLOC_CONF=expandable_segments:True")
    pairs = [replace(layout, settings=text) for text in texts]
    predictor = CostModelPredictor(task, pairs, 0)
    before = predictor.predict([]).fits
    after = predictor.predict([TrialFeedback(pairs[0], reason=FailureReason.GPU_OOM)]).fits
    assert before[1] == before[2]
    assert after[1] < 0.01 < after[2]
