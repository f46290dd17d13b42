"""Samplers over pairs of layout and settings, on a fixed simulated table."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks.setting_axes import pairs_of, simulated_table, trials_to_best
from orchestrator.samplers.base import TrialFeedback
from orchestrator.samplers.cost_model_posterior import CostModelPredictor, TuningTask
from orchestrator.samplers.deephyper import DeepHyperSampler
from orchestrator.samplers.guided import GuidedSampler
from search_spaces.layouts.layout import Layout
from trials.trial import FailureReason

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("silent")]


@pytest.mark.parametrize(("effect", "seed"), [("constant", 2), ("interacting", 3)])
def test_settings_cost_few_trials_more_than_layouts_alone(effect, seed):
    task, speeds = simulated_table(effect, seed, "unknown")
    pairs, alone = pairs_of(task, seed)
    of_pairs, of_layouts = (trials_to_best("guided", task, speeds, each, seed)[0.02] for each in (pairs, alone))
    assert len(pairs) == 4 * len(alone) == 80
    assert of_pairs <= 1.5 * of_layouts


def test_the_first_trials_are_of_different_layouts():
    task, speeds = simulated_table("interacting", 0, "unknown")
    pairs, _ = pairs_of(task, 0)
    history: list[TrialFeedback] = []
    for _ in range(4):
        [layout] = GuidedSampler(pairs, 0, task).ask(1, history)
        history.append(TrialFeedback(layout, value=speeds[layout.key]))
    assert len({feedback.layout.without_settings for feedback in history}) == 4
    assert len({feedback.layout.settings for feedback in history}) > 1


def test_an_effect_that_layouts_share_is_learnt_from_others():
    """A layout without any trial is tried with the setting that was faster with others."""
    task, _ = simulated_table("null", 0, "unknown")
    layouts = [pair.without_settings for pair in pairs_of(task, 0)[1]][:6]
    slow, fast = "env.NCCL_MIN_NCHANNELS=4", "env.NCCL_MIN_NCHANNELS=32"
    pairs = [replace(layout, settings=text) for layout in layouts for text in (slow, fast)]
    predicted = CostModelPredictor(task, pairs, 0).predict([]).log_value
    history = [
        TrialFeedback(pair, value=math.exp(log + (0.3 if pair.settings == fast else 0)))
        for pair, log in zip(pairs[:8], predicted[:8], strict=True)
    ]
    sampler = GuidedSampler(pairs, 0, task)
    [chosen] = sampler.ask(1, history)
    assert chosen.settings == fast
    assert chosen.without_settings in layouts[4:]


def test_a_layout_out_of_memory_is_so_with_other_settings_but_the_allocators():
    task = _large_task()
    layout = Layout(num_nodes=2, data_parallel=16, micro_batch_size=4, grad_accum_steps=4, precision="bf16")
    texts = ("env.NCCL_ALGO=Ring", "-env.NCCL_ALGO", "env.PYTORCH_ALLOC_CONF=expandable_segments:True")
    pairs = [replace(layout, settings=text) for text in texts]
    predictor = CostModelPredictor(task, pairs, 0)
    before = predictor.predict([]).fits
    after = predictor.predict([TrialFeedback(pairs[0], reason=FailureReason.GPU_OOM)]).fits
    assert before[1] == before[2]
    assert after[1] < 0.01 < after[2]


def test_deephyper_has_an_axis_for_each_variable():
    task, _ = simulated_table("constant", 1, "unknown")
    sampler = DeepHyperSampler(pairs_of(task, 1)[0], seed=0)
    assert sampler._axes["env.NCCL_ALGO"] == {None: 0, "Ring": 1}
    assert sampler._axes["env.NCCL_NCHANNELS_PER_NET_PEER"] == {1: 1, 4: 4}
    assert len(sampler.ask(2, [])) == 2


def _large_task() -> TuningTask:
    task, _ = simulated_table("null", 0, "unknown")
    return replace(task, model=replace(task.model, num_layers=40))
