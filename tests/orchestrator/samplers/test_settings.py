"""Samplers over pairs of layout and settings, on a fixed simulated table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from orchestrator.samplers.base import TrialFeedback
from orchestrator.samplers.cost_model_posterior import CostModelPredictor, TuningTask
from orchestrator.samplers.guided import GuidedSampler
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.settings import Settings
from search_spaces.layouts.workload import Workload
from search_spaces.model_shape import ModelShape
from search_spaces.schema.presets import accelerator_named
from search_spaces.search_space import search_space
from trials.trial import FailureReason

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("silent")]

MODEL = ModelShape(24, 2048, 16, 16, 8192, False, 51200, 2048, True, "learned", "layernorm")
TASK = TuningTask(MODEL, Cluster(accelerator_named("h100-80gb"), gpus_per_node=8, num_nodes=2))
AXES = {
    "tensor_parallel": (1, 2, 4, 8),
    "pipeline_parallel": (1, 2, 4),
    "micro_batch_size": (1, 2, 4),
    "precision": ("bf16",),
    "attention_kernel": ("flash",),
    "zero_stage": (0, 1),
}
OF_TWO = {"NCCL_ALGO": (None, "Ring"), "NCCL_NCHANNELS_PER_NET_PEER": ("1", "4")}
OF_ONE = {"NCCL_MIN_NCHANNELS": ("4", "8", "16", "32")}


def drawn_layouts(rng: np.random.Generator) -> list[Layout]:
    valid = search_space(Workload(MODEL, TASK.cluster, 256), AXES).layouts
    return [valid[row] for row in sorted(rng.choice(len(valid), 20, replace=False).tolist())]


def texts_of(seed: int) -> list[str]:
    """Four settings, of two variables or of one."""
    axes = OF_TWO if seed % 2 else OF_ONE
    return [Settings(dict(zip(axes, values, strict=True))).text for values in product(*axes.values())]


def pairs_of(seed: int) -> list[Layout]:
    """All pairs of layout and setting."""
    layouts = drawn_layouts(np.random.default_rng(seed))
    return [replace(layout, settings=text) for layout in layouts for text in texts_of(seed)]


def simulated_speeds(effect: str, seed: int) -> dict[str, float]:
    """Tokens/s by layout key, of which the cost model knows nothing.

    A setting changes all layouts by 10 % (standard deviation); `interacting`, by 7 % more that differ between layouts
    with and without tensor parallelism and 3.5 % of each layout's own.
    """
    rng = np.random.default_rng(seed)
    layouts, texts, is_interacting = drawn_layouts(rng), texts_of(seed), effect == "interacting"
    logs = CostModelPredictor(TASK, layouts, seed).predict([]).log_value.mean() + rng.normal(0, 0.2, len(layouts))
    shared = rng.normal(0, 0.1, len(texts))
    of_kind = rng.normal(0, 0.07, (2, len(texts))) if is_interacting else np.zeros((2, len(texts)))
    speeds = {}
    for layout, log in zip(layouts, logs, strict=True):
        own, noise = 0.035 * rng.normal(size=len(texts)) * is_interacting, rng.normal(0, 0.005, len(texts))
        effects = shared + of_kind[int(layout.tensor_parallel > 1)] + own + noise
        speeds |= {
            replace(layout, settings=text).key: math.exp(log + e) for text, e in zip(texts, effects, strict=True)
        }
    return speeds


def trials_to_best(speeds: Mapping[str, float], layouts: Sequence[Layout], seed: int) -> int:
    """Trials of a guided search until one is within 2 % of the best of these layouts."""
    best, history = max(speeds[layout.key] for layout in layouts), list[TrialFeedback]()
    sampler = GuidedSampler(layouts, seed, TASK)
    while all((feedback.value or 0) < best / 1.02 for feedback in history):
        [layout] = sampler.ask(1, history)
        history.append(TrialFeedback(layout, value=speeds[layout.key]))
    return len(history)


@pytest.mark.parametrize(("effect", "seed"), [("constant", 2), ("interacting", 3)])
def test_settings_cost_few_trials_more_than_layouts_alone(effect, seed):
    speeds, pairs = simulated_speeds(effect, seed), pairs_of(seed)
    alone = [pair for pair in pairs if pair.settings == pairs[0].settings]
    of_pairs, of_layouts = (trials_to_best(speeds, each, seed) for each in (pairs, alone))
    assert len(pairs) == 4 * len(alone) == 80
    assert of_pairs <= 1.5 * of_layouts


def test_an_effect_that_layouts_share_is_learnt_from_others():
    """A layout without any trial is tried with the setting that was faster with others."""
    layouts = drawn_layouts(np.random.default_rng(0))[:6]
    slow, fast = "env.NCCL_MIN_NCHANNELS=4", "env.NCCL_MIN_NCHANNELS=32"
    pairs = [replace(layout, settings=text) for layout in layouts for text in (slow, fast)]
    predicted = CostModelPredictor(TASK, pairs, 0).predict([]).log_value
    history = [
        TrialFeedback(pair, value=math.exp(log + (0.3 if pair.settings == fast else 0)))
        for pair, log in zip(pairs[:8], predicted[:8], strict=True)
    ]
    sampler = GuidedSampler(pairs, 0, TASK)
    [chosen] = sampler.ask(1, history)
    assert chosen.settings == fast
    assert chosen.without_settings in layouts[4:]


def test_a_layout_out_of_memory_is_so_with_other_settings_but_the_allocators():
    task = replace(TASK, model=replace(MODEL, num_layers=40))
    layout = Layout(num_nodes=2, data_parallel=16, micro_batch_size=4, grad_accum_steps=4, precision="bf16")
    texts = ("env.NCCL_ALGO=Ring", "-env.NCCL_ALGO", "env.PYTORCH_ALLOC_CONF=expandable_segments:True")
    pairs = [replace(layout, settings=text) for text in texts]
    predictor = CostModelPredictor(task, pairs, 0)
    before = predictor.predict([]).fits
    after = predictor.predict([TrialFeedback(pairs[0], reason=FailureReason.GPU_OOM)]).fits
    assert before[1] == before[2]
    assert after[1] < 0.01 < after[2]
