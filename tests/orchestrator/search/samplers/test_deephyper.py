"""DeepHyper over a closed table: better than random search, without side effects."""

from __future__ import annotations

import logging
import math
import statistics
from dataclasses import replace

import pytest

from orchestrator.search.samplers.base import RandomSampler, TrialFeedback
from orchestrator.search.samplers.deephyper import DeepHyperSampler
from search_spaces.layouts.layout import Layout
from trials.trial import FailureReason

pytestmark = pytest.mark.slow


def table() -> dict[Layout, TrialFeedback]:
    """240 layouts of 64 ranks, some out of memory, with one best: a valley over tensor, pipeline and micro-batch."""
    layouts = [
        Layout(
            tensor_parallel=2**t,
            pipeline_parallel=2**p,
            data_parallel=64 >> (t + p),
            micro_batch_size=2**m,
            grad_accum_steps=1024 * 2 ** (t + p) // 64 >> m,
            activation_checkpointing=checkpointing,
        ).canonical()
        for t in range(4)
        for p in range(4)
        for m in range(5)
        for checkpointing in ("none", "selective", "full")
    ]
    return {layout: measure(layout) for layout in layouts}


def measure(layout: Layout) -> TrialFeedback:
    t, p, m = (math.log2(x) for x in (layout.tensor_parallel, layout.pipeline_parallel, layout.micro_batch_size))
    checkpointing = ("none", "selective", "full").index(layout.activation_checkpointing)
    if m - t - p - checkpointing > 0.5:
        return TrialFeedback(layout, reason=FailureReason.GPU_OOM)
    slowdown = 1 + 0.3 * abs(t - 1) + 0.25 * abs(p - 1) + 0.2 * abs(m - 2) + 0.15 * checkpointing
    return TrialFeedback(layout, value=1e6 / slowdown)


def trials_until_best(sampler, outcomes: dict[Layout, TrialFeedback]) -> int:
    best = max(told.value for told in outcomes.values() if told.value is not None)
    history: list[TrialFeedback] = []
    while not any(told.value == best for told in history):
        history += [outcomes[layout] for layout in sampler.ask(1, history)]
    return len(history)


def test_the_best_of_a_table_is_found_in_far_fewer_trials_than_by_chance():
    outcomes = table()
    candidates = list(outcomes)
    guided = [trials_until_best(DeepHyperSampler(candidates, seed), outcomes) for seed in range(4)]
    chance = [trials_until_best(RandomSampler(candidates, seed), outcomes) for seed in range(40)]
    assert statistics.mean(guided) < 0.4 * statistics.mean(chance)


def test_a_lost_node_a_cancelled_trial_or_one_that_is_not_believed_teaches_nothing_about_its_layout():
    outcomes = table()
    history = [outcomes[layout] for layout in list(outcomes)[::12]]
    faultless = [FailureReason.NODE_FAILURE, FailureReason.CANCELLED_BY_SEARCH, FailureReason.RESULT_INVALID]
    others = [layout for layout in outcomes if layout not in {told.layout for told in history}][: len(faultless)]
    sampler = DeepHyperSampler(list(outcomes), 1)
    in_flight = sampler.ask(5, [*history, *map(TrialFeedback, others)])
    lost = [TrialFeedback(layout, reason=reason) for layout, reason in zip(others, faultless, strict=True)]
    assert sampler.ask(5, [*history, *lost]) == in_flight
    failed = [TrialFeedback(layout, reason=FailureReason.GPU_OOM) for layout in others]
    assert sampler.ask(5, [*history, *failed]) != in_flight


def test_a_pruned_layout_is_told_as_fast_as_it_may_be():
    outcomes = table()
    history = [outcomes[layout] for layout in list(outcomes)[::12]]
    other = next(layout for layout in outcomes if layout not in {told.layout for told in history})
    sampler = DeepHyperSampler(list(outcomes), 1)
    pruned = TrialFeedback(other, reason=FailureReason.PRUNED, upper_bound=9e5)
    assert sampler.ask(5, [*history, pruned]) == sampler.ask(5, [*history, TrialFeedback(other, value=9e5)])
    assert sampler.ask(5, [*history, pruned]) != sampler.ask(5, [*history, replace(pruned, upper_bound=None)])


def test_nothing_is_printed_written_or_set_up(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    handlers = list(logging.getLogger().handlers)
    outcomes = table()
    history = [outcomes[layout] for layout in list(outcomes)[::8]]
    DeepHyperSampler(list(outcomes), 1).ask(4, history)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    assert logging.getLogger().handlers == handlers
