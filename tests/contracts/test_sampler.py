"""Contract of every sampler, whatever its history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from orchestrator.samplers.base import Sampler, TrialFeedback
from orchestrator.samplers.cost_model_posterior import TuningTask
from orchestrator.samplers.factory import SAMPLERS, make_sampler
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.trial import FailureReason

pytestmark = pytest.mark.slow

MODEL = ModelShape(8, 512, 8, 8, 2048, False, 1024, 128, False, "learned", "layernorm")
TASK = TuningTask(MODEL, Cluster(ACCELERATORS["a100-80gb"], 8, 2))


def layouts_of(num_gpus: int = 16, global_batch_size: int = 64) -> list[Layout]:
    """Every tensor x pipeline x micro-batch split of a small world, some with ZeRO: a few dozen candidates."""
    powers = (1, 2, 4, 8, 16)
    return [
        Layout(
            tensor_parallel=tensor,
            pipeline_parallel=pipeline,
            data_parallel=num_gpus // (tensor * pipeline),
            micro_batch_size=micro,
            grad_accum_steps=global_batch_size * tensor * pipeline // num_gpus // micro,
            zero_stage=zero,
        ).canonical()
        for tensor in powers
        for pipeline in powers
        if tensor * pipeline < num_gpus
        for micro in (1, 4)
        for zero in (0, 1)
    ]


def run_alone(
    sampler: Sampler, measure: Callable[[Layout], TrialFeedback], num_trials: int, history: Sequence[TrialFeedback] = ()
):
    """The history after `num_trials` more asks of one layout each."""
    told = list(history)
    for _ in range(num_trials):
        told += [measure(layout) for layout in sampler.ask(1, told)]
    return told


def speed(layout: Layout) -> TrialFeedback:
    """A synthetic throughput: pipelines and tensor groups cost, larger micro-batches help."""
    return TrialFeedback(
        layout, value=1e5 * layout.micro_batch_size**0.3 / layout.tensor_parallel**0.4 / layout.pipeline_parallel
    )


def out_of_memory(layout: Layout) -> TrialFeedback:
    return TrialFeedback(layout, reason=FailureReason.GPU_OOM)


@pytest.fixture(params=SAMPLERS)
def make(request, logged) -> Iterator[Callable[..., Sampler]]:
    """Makes the sampler, which is not replaced during the test."""
    yield lambda candidates, seed=1: make_sampler(request.param, candidates, TASK, seed)
    assert logged == []


def keys(layouts: Sequence[Layout]) -> list[str]:
    return [layout.key for layout in layouts]


def test_every_candidate_is_proposed_once_and_then_none_is_left(make):
    candidates = layouts_of()
    sampler, told = make(candidates), []
    while asked := sampler.ask(7, told):
        told += [speed(layout) for layout in asked]
    assert sorted(keys([t.layout for t in told])) == sorted(keys(candidates))


def test_what_is_in_flight_is_never_proposed_again(make):
    candidates = layouts_of()
    measured = run_alone(make(candidates), speed, 5)
    in_flight = [TrialFeedback(layout) for layout in make(candidates).ask(4, measured)]
    more = make(candidates).ask(len(candidates), [*measured, *in_flight])
    assert not {*keys(more)} & {*keys([t.layout for t in [*measured, *in_flight]])}
    assert len(more) == len(candidates) - 9


def test_one_ask_names_as_many_as_are_free_and_all_different(make):
    history = run_alone(make(layouts_of()), speed, 6)
    asked = make(layouts_of()).ask(12, history)
    assert len({*keys(asked)}) == 12


def test_a_history_of_failures_alone_leaves_the_other_candidates(make):
    candidates = layouts_of()
    history = run_alone(make(candidates), out_of_memory, len(candidates) - 1)
    assert len({*keys([t.layout for t in history])}) == len(candidates) - 1
    assert len(make(candidates).ask(3, history)) == 1


def test_layouts_equal_after_canonical_form_are_one_candidate(make):
    one = Layout(tensor_parallel=2, pipeline_schedule="none")
    same = Layout(tensor_parallel=2, pipeline_schedule="1f1b")
    assert keys(make([one, same]).ask(5, [])) == [one.key]
    assert make([one, same]).ask(5, [TrialFeedback(same)]) == []


def test_without_candidates_nothing_is_proposed(make):
    assert make([]).ask(3, []) == []


def test_a_single_candidate_is_proposed_until_it_is_told(make):
    only = Layout(tensor_parallel=2)
    assert make([only]).ask(1, []) == [only]
    assert make([only]).ask(1, [speed(only)]) == []


def test_a_single_varying_axis_is_enough(make):
    candidates = [Layout(micro_batch_size=size) for size in (1, 2, 4, 8, 16, 32, 64)]
    history = run_alone(make(candidates), speed, 6)
    assert len({*keys([t.layout for t in history])}) == 6


def test_axes_of_words_and_of_unknown_values_work(make):
    candidates = [
        Layout(data_parallel=2, engine=engine, overlap_comm=overlap, bucket_mib=bucket)
        for engine in ("torch", "deepspeed")
        for overlap in (False, True)
        for bucket in (None, 25, 100)
    ]
    assert len({*keys([t.layout for t in run_alone(make(candidates), speed, 11)])}) == 11


def test_a_layout_outside_the_candidates_may_stand_in_the_history(make):
    baseline = TrialFeedback(Layout(tensor_parallel=3, precision="bf16"), value=5e4)
    history = run_alone(make(layouts_of()), speed, 6, [baseline])
    assert len({*keys([t.layout for t in history])}) == 7


def test_a_resumed_search_goes_on_as_the_uninterrupted_one_would(make):
    candidates = layouts_of()
    whole = run_alone(make(candidates), speed, 12)
    resumed = run_alone(make(candidates), speed, 5, whole[:7])
    assert resumed == whole


def test_the_seed_decides_and_nothing_else(make):
    assert make(layouts_of(), seed=3).ask(8, []) == make(layouts_of(), seed=3).ask(8, [])


def test_a_value_of_a_setting_to_which_a_failure_was_put_down_is_not_proposed_again(make):
    values = ("env.NET=lo", "env.NET=nope", "env.NET=eth0")
    candidates = [replace(layout, settings=settings) for layout in layouts_of()[:4] for settings in values]
    failure = TrialFeedback(candidates[1], reason=FailureReason.SETTING_FAILURE)
    ran = [speed(candidates[0]), TrialFeedback(candidates[2], reason=FailureReason.GPU_OOM)]
    asked = make(candidates).ask(len(candidates), [*ran, failure])
    assert {*keys(asked)} == {*keys([c for c in candidates if "nope" not in c.settings][2:])}
    assert len(make(candidates).ask(len(candidates), [*ran, failure, speed(candidates[4])])) == len(candidates) - 4
    assert make(candidates[1:2]).ask(1, [failure]) == []


def test_a_value_that_was_only_tried_beside_a_failing_one_is_still_proposed(make):
    texts = ("env.NET=lo env.OMP=1", "env.NET=lo env.OMP=9", "env.NET=nope env.OMP=1", "env.NET=nope env.OMP=9")
    first, second = layouts_of()[:2]
    of_first, of_second = ([replace(layout, settings=text) for text in texts] for layout in (first, second))
    failed = [TrialFeedback(layout, reason=FailureReason.SETTING_FAILURE) for layout in of_first[2:]]
    asked = make([*of_first, *of_second]).ask(8, [speed(of_first[0]), *failed])
    assert {*keys(asked)} == {*keys([of_first[1], *of_second[:2]])}
