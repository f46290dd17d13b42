"""Guided sampler on a synthetic cluster whose constants the models do not know."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from orchestrator.samplers.base import Sampler, TrialFeedback
from orchestrator.samplers.cost_model_posterior import CostModelPredictor, TuningTask
from orchestrator.samplers.factory import make_sampler
from orchestrator.samplers.guided import MANY_TRIALS, GuidedSampler
from search_spaces.cost_model.memory import stage_memory
from search_spaces.cost_model.posterior import typical_constants
from search_spaces.cost_model.step_time import TERMS, StepTerms
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape
from trials.analysis.ranking import Objective
from trials.trial import FailureReason

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("silent")]  # no sampler is replaced

MODEL = ModelShape(32, 4096, 32, 32, 16384, False, 51200, 2048, False, "learned", "layernorm")
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


class SimulatedCluster:
    """Result of a layout by the models' own formulas with other constants."""

    def __init__(self, memory_factor: float = 1.0, **factors: float):
        table = LayoutTable.of(CANDIDATES)
        constants = typical_constants() * np.array([factors.get(term, 1.0) for term in TERMS])
        seconds = StepTerms.of(MODEL, CLUSTER, table).seconds(constants)
        peaks = stage_memory(MODEL, table).peak * memory_factor
        self._answers = {
            layout.key: TrialFeedback(layout, value=128 * 2048 / step_s, peak_memory_gib=gib)
            if gib < 77
            else TrialFeedback(layout, reason=FailureReason.GPU_OOM)
            for layout, step_s, gib in zip(CANDIDATES, seconds, peaks, strict=True)
        }

    def __call__(self, layout: Layout) -> TrialFeedback:
        return self._answers[layout.key]

    @property
    def best(self) -> float:
        return max(told.value for told in self._answers.values() if told.value is not None)


def sampler(name: str = "guided", seed: int = 1) -> Sampler:
    return make_sampler(name, CANDIDATES, TASK, seed)


def trials_until_best(asked: Sampler, cluster: Callable[[Layout], TrialFeedback], best: float) -> int:
    history: list[TrialFeedback] = []
    while not any(told.value is not None and told.value >= 0.98 * best for told in history):
        history += [cluster(layout) for layout in asked.ask(1, history)]
    return len(history)


def test_an_empty_history_means_the_order_of_the_model():
    assert sampler().ask(5, [])[0] == sampler("cost_model").ask(5, [])[0]


@pytest.mark.parametrize(
    "cluster",
    [
        SimulatedCluster(),
        SimulatedCluster(pipeline_latency=300),
        SimulatedCluster(tensor=3),
        SimulatedCluster(memory_factor=1.35),
        SimulatedCluster(matmul=1.5, launches=3),
    ],
    ids=["as-expected", "slow-messages", "slow-node", "full-sooner", "slow-device"],
)
def test_a_handful_of_trials_finds_the_best_of_a_cluster_that_is_not_as_expected(cluster):
    assert trials_until_best(sampler(), cluster, cluster.best) <= 6


def test_it_needs_fewer_trials_than_the_order_of_the_model_where_that_is_wrong():
    cluster = SimulatedCluster(data_parallel=30)
    assert trials_until_best(sampler(), cluster, cluster.best) < trials_until_best(
        sampler("cost_model"), cluster, cluster.best
    )


@pytest.mark.parametrize(
    ("accelerator", "reason"), [("a100-80gb", FailureReason.GPU_OOM), ("cpu", FailureReason.HOST_OOM)]
)
def test_what_ran_out_of_memory_makes_what_is_larger_unlikely(accelerator, reason):
    task = TuningTask(MODEL, Cluster(ACCELERATORS[accelerator], 8, 4), memory_limit_gib=80)
    predictor = CostModelPredictor(task, CANDIDATES, 1)
    estimates = stage_memory(MODEL, LayoutTable.of(CANDIDATES)).peak
    row = int(np.argmin(np.abs(estimates - 55)))
    larger = estimates > estimates[row]
    failed = [TrialFeedback(CANDIDATES[row], reason=reason)]
    before, after = predictor.predict([]), predictor.predict(failed)
    assert (after.fits[larger] < before.fits[larger]).all()


def test_a_pruned_layout_teaches_nearly_as_much_as_a_measured_one():
    cluster, predictor = SimulatedCluster(data_parallel=10), CostModelPredictor(TASK, CANDIDATES, 1)
    told = [cluster(layout) for layout in CANDIDATES[::7]]
    ran = [t for t in told if t.value is not None]
    pruned = [TrialFeedback(t.layout, reason=FailureReason.PRUNED, upper_bound=t.value * 1.03) for t in ran]
    truth = np.array([math.log(t.value) if (t := cluster(layout)).value else np.nan for layout in CANDIDATES])
    cold, taught = (np.nanmean(np.abs(predictor.predict(h).log_value - truth)) for h in ([], pruned))
    assert taught < cold / 2


def test_a_layout_that_leaves_too_little_memory_teaches_its_time_and_its_peak_and_is_no_value_to_beat():
    cluster = SimulatedCluster(data_parallel=10)
    ran = [told for layout in CANDIDATES[::7] if (told := cluster(layout)).value is not None]
    unfit = [replace(t, value=None, reason=FailureReason.GPU_OOM, unfit_value=t.value) for t in ran]
    predictor = CostModelPredictor(TASK, CANDIDATES, 1)
    as_unfit, as_measured = predictor.predict(unfit), predictor.predict(ran)
    assert as_unfit.log_value.tolist() == as_measured.log_value.tolist()
    assert as_unfit.fits.tolist() == as_measured.fits.tolist()
    assert not GuidedSampler(CANDIDATES, 1, TASK).has_converged(unfit)


def test_memory_that_has_to_stay_free_is_room_that_layouts_have_not():
    wide, narrow = (
        CostModelPredictor(replace(TASK, min_free_memory_gib=gib), CANDIDATES, 1).predict([]) for gib in (0, 20)
    )
    estimates = stage_memory(MODEL, LayoutTable.of(CANDIDATES)).peak
    assert (narrow.fits <= wide.fits).all()
    between = (estimates > 60) & (estimates < 75)
    assert wide.fits[between].min() > 0.3 > narrow.fits[between].max()
    assert replace(TASK, min_free_memory_gib=20).usable_gib == pytest.approx(TASK.capacity_gib - 20)


def test_a_failure_of_the_machine_teaches_nothing():
    lost = [TrialFeedback(CANDIDATES[3], reason=FailureReason.NODE_FAILURE)]
    predictor = CostModelPredictor(TASK, CANDIDATES, 1)
    before, after = predictor.predict([]), predictor.predict(lost)
    assert after.fits.tolist() == before.fits.tolist()
    assert after.log_value.tolist() == before.log_value.tolist()


def test_it_stops_when_nothing_left_promises_a_gain():
    cluster, asked, history = SimulatedCluster(), sampler(), []
    while not asked.has_converged(history):
        history += [cluster(layout) for layout in asked.ask(1, history)]
    assert 3 <= len(history) <= 12
    assert max(told.value for told in history if told.value is not None) >= 0.98 * cluster.best


def test_what_ran_out_of_time_is_never_the_best_so_far():
    cluster, asked, history = SimulatedCluster(data_parallel=3), sampler(), []
    while len(history) < 7:
        history += [cluster(layout) for layout in asked.ask(1, history)]
    best = max(told.value for told in history if told.value is not None)
    other = asked.ask(1, history)[0]
    # Its fastest step may have been twice as fast as any layout is; no run of it was.
    unproven = TrialFeedback(other, reason=FailureReason.TIME_LIMIT, upper_bound=2 * best)
    assert not asked.has_converged(history)
    assert not asked.has_converged([*history, unproven])


def test_trials_in_flight_are_none_of_the_dozen_after_which_a_large_gain_alone_counts():
    cluster, asked, history = SimulatedCluster(data_parallel=30), sampler(), []
    while sum(told.value is not None for told in history) < 4:
        history += [cluster(layout) for layout in asked.ask(1, history)]
    others = asked.ask(MANY_TRIALS, history)
    assert not asked.has_converged([*history, *map(TrialFeedback, others)])


def test_it_does_not_stop_before_anything_was_measured():
    failures = [TrialFeedback(layout, reason=FailureReason.GPU_OOM) for layout in CANDIDATES[:5]]
    assert not sampler().has_converged([])
    assert not sampler().has_converged(failures)


def test_what_is_in_flight_is_not_asked_for_and_no_neighbour_of_it_alone():
    cluster = SimulatedCluster()
    history = [cluster(layout) for layout in sampler().ask(2, [])]
    together = sampler().ask(4, history)
    assert len({layout.key for layout in together}) == 4
    waiting = [*history, *(TrialFeedback(layout) for layout in together[:2])]
    assert not {layout.key for layout in sampler().ask(2, waiting)} & {layout.key for layout in together[:2]}


def test_memory_that_a_rank_may_take_is_the_lesser_of_the_devices_and_the_users():
    assert TASK.capacity_gib == pytest.approx(79.15 - 1.5)
    assert TuningTask(MODEL, CLUSTER, memory_limit_gib=20).capacity_gib == 20
    assert TuningTask(MODEL, Cluster(ACCELERATORS["cpu"], 4, 1)).capacity_gib is None
    assert TuningTask(MODEL, Cluster(ACCELERATORS["cpu"], 4, 1), memory_limit_gib=2).capacity_gib == 2


def test_values_are_expected_in_the_objectives_own_unit():
    predictor = CostModelPredictor(TASK, CANDIDATES, 1)
    expected = predictor.predict([]).log_value
    told = [SimulatedCluster()(layout) for layout in CANDIDATES]
    off = [mean - math.log(t.value) for mean, t in zip(expected, told, strict=True) if t.value is not None]
    assert abs(np.median(off)) < 0.3


def test_energy_is_predicted_from_step_times_and_the_draw_measured_so_far():
    cluster, task = SimulatedCluster(), replace(TASK, objective=Objective.JOULES_PER_TOKEN)
    watts = 400.0
    measured = [found for layout in CANDIDATES if (found := cluster(layout)).value is not None]
    history = [
        replace(found, value=found.value / found.layout.num_gpus / watts, watts_per_gpu=watts) for found in measured[:6]
    ]
    by_time = CostModelPredictor(TASK, CANDIDATES, seed=1).predict(measured[:6])
    by_energy = CostModelPredictor(task, CANDIDATES, seed=1).predict(history)
    gpus = np.array([layout.num_gpus for layout in CANDIDATES])
    np.testing.assert_allclose(by_energy.log_value, by_time.log_value - np.log(gpus * watts), atol=1e-9)
    assert (by_energy.deviation > by_time.deviation).all(), "layouts draw different powers"
