"""Contract of every sampler, whatever its history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from orchestrator.config.schema.search_file import SAMPLERS
from orchestrator.search.samplers.base import Sampler, TrialFeedback
from orchestrator.search.samplers.cost_model_posterior import TuningTask
from orchestrator.search.samplers.factory import make_sampler
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import Layout
from tests.kit import gpt
from trials.trial import FailureReason

pytestmark = pytest.mark.slow

MODEL = gpt(8, 512, 8, vocab_size=1024, seq_length=128)
TASK = TuningTask(MODEL, Cluster(ACCELERATORS["a100-80gb"], 8, 2))
POWERS = (1, 2, 4, 8, 16)
CANDIDATES = [
    Layout(
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        data_parallel=16 // (tensor * pipeline),
        micro_batch_size=micro,
        grad_accum_steps=64 * tensor * pipeline // 16 // micro,
        zero_stage=zero,
    ).canonical()
    for tensor in POWERS
    for pipeline in POWERS
    if tensor * pipeline < 16
    for micro in (1, 4)
    for zero in (0, 1)
]
"""Every tensor x pipeline x micro-batch split of a small world, some with ZeRO."""
AXES_OF_WORDS = [
    Layout(data_parallel=2, engine=engine, overlap_comm=overlap, bucket_mib=bucket)
    for engine in ("torch", "deepspeed")
    for overlap in (False, True)
    for bucket in (None, 25, 100)
]
ONE_AXIS = [Layout(micro_batch_size=size) for size in (1, 2, 4, 8, 16, 32, 64)]
OUTSIDE = TrialFeedback(Layout(tensor_parallel=3, precision="bf16"), value=5e4)


def run_alone(
    sampler: Sampler, measure: Callable[[Layout], TrialFeedback], num_trials: int, history: Sequence[TrialFeedback] = ()
) -> list[TrialFeedback]:
    """The history after `num_trials` more asks of one layout each."""
    told = list(history)
    for _ in range(num_trials):
        told += [measure(layout) for layout in sampler.ask(1, told)]
    return told


def speed(layout: Layout) -> TrialFeedback:
    """A synthetic throughput: pipelines and tensor groups cost, larger micro-batches help."""
    value = 1e5 * layout.micro_batch_size**0.3 / layout.tensor_parallel**0.4 / layout.pipeline_parallel
    return TrialFeedback(layout, value=value)


def out_of_memory(layout: Layout) -> TrialFeedback:
    return TrialFeedback(layout, reason=FailureReason.GPU_OOM)


@pytest.fixture(params=SAMPLERS)
def make(request, logged) -> Iterator[Callable[..., Sampler]]:
    """Makes the sampler, which is not replaced during the test."""
    yield lambda candidates=CANDIDATES, seed=1: make_sampler(request.param, candidates, TASK, seed)
    assert logged == []


def keys(layouts: Sequence[Layout | TrialFeedback]) -> set[str]:
    """Keys of the layouts, which are all different."""
    found = [each.layout.key if isinstance(each, TrialFeedback) else each.key for each in layouts]
    assert len(found) == len({*found})
    return {*found}


def test_every_candidate_is_proposed_once_and_then_none_is_left(make):
    sampler, told = make(), []
    while asked := sampler.ask(7, told):
        told += [speed(layout) for layout in asked]
    assert keys(told) == keys(CANDIDATES)


def test_one_ask_names_as_many_as_are_free_and_what_is_in_flight_is_never_proposed_again(make):
    measured = run_alone(make(), speed, 5)
    in_flight = [TrialFeedback(layout) for layout in make().ask(4, measured)]
    more = make().ask(len(CANDIDATES), [*measured, *in_flight])
    assert not keys(more) & keys([*measured, *in_flight])
    assert len(more) == len(CANDIDATES) - 9


@pytest.mark.parametrize(
    ("candidates", "measure", "num_trials", "history"),
    [
        (CANDIDATES, out_of_memory, len(CANDIDATES) - 1, []),
        (ONE_AXIS, speed, 6, []),
        (AXES_OF_WORDS, speed, 11, []),
        (CANDIDATES, speed, 6, [OUTSIDE]),
    ],
    ids=["failures alone", "a single axis", "words and unknown values", "a layout outside the candidates"],
)
def test_whatever_the_history_and_the_axes_other_candidates_are_left(make, candidates, measure, num_trials, history):
    told = run_alone(make(candidates), measure, num_trials, history)
    assert len(keys(told)) == num_trials + len(history)
    left = len(candidates) - num_trials
    assert len(make(candidates).ask(3, told)) == min(3, left)


def test_a_single_candidate_is_proposed_until_it_is_told_and_without_any_nothing_is(make):
    only, same = (Layout(tensor_parallel=2, pipeline_schedule=name) for name in ("none", "1f1b"))
    for candidates in ([only], [only, same]):  # equal after canonical form
        assert keys(make(candidates).ask(5, [])) == {only.key}
        assert make(candidates).ask(5, [speed(same)]) == []
        assert make(candidates).ask(1, [TrialFeedback(same)]) == []
    assert make([]).ask(3, []) == []


def test_a_resumed_search_goes_on_as_the_uninterrupted_one_would_as_its_seed_decides(make):
    whole = run_alone(make(), speed, 12)
    assert run_alone(make(), speed, 5, whole[:7]) == whole
    assert make(seed=3).ask(8, []) == make(seed=3).ask(8, [])
