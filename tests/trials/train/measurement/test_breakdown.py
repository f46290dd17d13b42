from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from search_spaces.layouts.layout import Layout
from tests.kit import OUTCOME, SPEC
from trials.measurement.protocol import TwoPointExtrapolation
from trials.train.measurement.breakdown import Part, RangeSource, StepParts, TimedRange, Transfer, breakdown, split_step
from trials.train.measurement.profile import add_breakdown, part_of_collective


def seconds_of(*ranges: TimedRange, begin_s: float = 0.0, end_s: float = 10.0) -> dict[str, float]:
    """The parts of a step that took time; transfers by their exposed time."""
    step = split_step(1, begin_s, end_s, ranges)
    found = {str(part): seconds for part, seconds in step.seconds.items() if seconds}
    return found | {transfer.kind: transfer.exposed_s for transfer in step.transfers}


def collective(part: Part, begin_s: float, end_s: float, kind: str = "") -> TimedRange:
    return TimedRange(part, RangeSource.DEVICE_COLLECTIVE, begin_s, end_s, kind)


def kernel(begin_s: float, end_s: float) -> TimedRange:
    return TimedRange(Part.COMPUTE, RangeSource.DEVICE_KERNEL, begin_s, end_s)


class TestPartsOfAStep:
    def test_what_nothing_else_took_is_computing(self):
        assert seconds_of() == {"compute": 10.0}

    def test_a_collective_counts_while_nothing_is_computed(self):
        ranges = kernel(0, 4), collective(Part.DATA_PARALLEL, 3, 6), kernel(5, 7)
        assert seconds_of(*ranges) == {"compute": 9.0, "data_parallel": 1.0}

    def test_a_host_that_waits_for_a_collective_does_not_compute(self):
        waiting = TimedRange(Part.TENSOR, RangeSource.HOST_COLLECTIVE, 2, 5)
        assert seconds_of(waiting) == {"compute": 7.0, "tensor": 3.0}

    def test_a_collective_inside_of_the_optimizer_is_a_collective(self):
        optimizer = TimedRange(Part.OPTIMIZER, RangeSource.HOST_OTHER, 6, 10)
        gathering = TimedRange(Part.DATA_PARALLEL, RangeSource.HOST_COLLECTIVE, 7, 9)
        assert seconds_of(optimizer, gathering) == {"compute": 6.0, "optimizer": 2.0, "data_parallel": 2.0}

    def test_the_optimizers_own_kernels_are_the_optimizer(self):
        optimizer = TimedRange(Part.OPTIMIZER, RangeSource.DEVICE_OPTIMIZER, 6, 10)
        assert seconds_of(kernel(0, 6), optimizer, kernel(6.5, 9)) == {"compute": 6.0, "optimizer": 4.0}

    def test_a_copy_counts_where_nothing_hides_it(self):
        copy = TimedRange(Part.OFFLOAD, RangeSource.DEVICE_COPY, 3, 6)
        assert seconds_of(kernel(0, 4), copy) == {"compute": 8.0, "offload": 2.0}

    def test_what_lies_outside_of_the_step_does_not_count(self):
        assert seconds_of(collective(Part.TENSOR, -3, 1), collective(Part.TENSOR, 9, 12)) == {
            "compute": 8.0,
            "tensor": 2.0,
        }

    def test_two_collectives_at_once_share_no_instant(self):
        ranges = collective(Part.TENSOR, 1, 4), collective(Part.DATA_PARALLEL, 3, 6)
        assert seconds_of(*ranges) == {"compute": 5.0, "tensor": 3.0, "data_parallel": 2.0}

    def test_a_range_that_takes_no_time_changes_nothing(self):
        assert seconds_of(collective(Part.TENSOR, 3, 3)) == {"compute": 10.0}

    def test_transfers_between_stages_are_kept_apart_for_all_ranks_to_compare(self):
        assert seconds_of(kernel(0, 2), collective(Part.PIPELINE, 1, 5, "recv 64")) == {"compute": 7.0, "recv 64": 3.0}


def step(micro_batches: int = 4, compute: float = 0.0, transfers: tuple[Transfer, ...] = ()) -> StepParts:
    return StepParts(micro_batches, dict.fromkeys(Part, 0.0) | {Part.COMPUTE: compute}, transfers)


def test_what_a_rank_tells_of_a_step_is_read_back_as_it_was():
    told = step(compute=6.0, transfers=(Transfer("recv 64", 3.0, 0.5),))
    assert StepParts.from_json(json.loads(json.dumps(told.to_json()))) == told


class TestBreakdown:
    def test_what_the_luckiest_rank_waited_is_the_transfer_and_the_rest_the_bubble(self):
        first = step(compute=6.0, transfers=(Transfer("recv 64", 3.0, 3.0), Transfer("recv 64", 1.0, 1.0)))
        last = step(compute=9.5, transfers=(Transfer("recv 64", 0.5, 0.5),))
        time_s = breakdown([[first], [last]], step_time_s=10.0)
        assert time_s["pipeline"] == pytest.approx((0.5 + 0.5 + 0.5) / 2)
        assert time_s["bubble"] == pytest.approx((2.5 + 0.5 + 0.0) / 2)
        assert time_s["compute"] == pytest.approx((6.0 + 9.5) / 2)

    def test_kinds_are_compared_with_their_like(self):
        large, small = Transfer("recv 64", 3.0, 3.0), Transfer("recv 1", 0.1, 0.1)
        time_s = breakdown([[step(compute=6.9, transfers=(large, small))]], step_time_s=10.0)
        assert time_s["bubble"] == 0.0

    def test_parts_add_up_to_the_measured_step_time(self):
        time_s = breakdown([[step(compute=30.0), step(compute=10.0)]], step_time_s=8.0)
        assert time_s == dict.fromkeys(Part, 0.0) | {Part.COMPUTE: 8.0}
        assert list(time_s) == [part.value for part in Part]

    def test_short_steps_tell_what_a_full_one_spends(self):
        short, long = (
            step(count, 2.0 * count, (Transfer("wait", 3.0, 3.0), Transfer("wait", 1.0, 1.0))) for count in (4, 8)
        )
        time_s = breakdown([[short, long]], 2.0 * 24 + 4.0, TwoPointExtrapolation(4, 8, 24))
        assert time_s["compute"] == pytest.approx(48.0)
        # Filling and draining takes as long whatever the micro-batches.
        assert (time_s["bubble"], time_s["pipeline"]) == (pytest.approx(2.0), pytest.approx(2.0))


@pytest.mark.parametrize(
    ("ranks", "part"),
    [
        ([0, 1], Part.TENSOR),
        ([0, 2], Part.DATA_PARALLEL),
        ([0, 4], Part.PIPELINE),
        ([0, 1, 2, 3], Part.DATA_PARALLEL),
        (range(8), Part.PIPELINE),
        ([3], None),
    ],
)
def test_a_group_belongs_to_the_axis_in_which_its_ranks_differ(ranks, part):
    layout = Layout(tensor_parallel=2, data_parallel=2, pipeline_parallel=2)
    assert part_of_collective(layout, list(ranks), "allreduce") is part


SPLIT = {
    "tensor_parallel": 2,
    "data_parallel": 2,
    "expert_parallel": 2,
    "expert_tensor_parallel": 2,
    "expert_dispatcher": "allgather",
}


@pytest.mark.parametrize(
    ("fields", "ranks", "name", "part"),
    [
        ({"context_parallel": 2, "data_parallel": 2}, [0, 1], "send", Part.CONTEXT),
        ({"context_parallel": 2, "data_parallel": 2}, [0, 1, 2, 3], "allreduce", Part.DATA_PARALLEL),
        ({"context_parallel": 2}, [0, 1], "_end_coalescing", Part.CONTEXT),
        ({"context_parallel": 2}, [0, 1], "allreduce", Part.DATA_PARALLEL),  # of gradients
        ({"context_parallel": 2, "context_transport": "a2a"}, [0, 1], "alltoall_base", Part.CONTEXT),
        ({"context_parallel": 2, "context_transport": "all_gather"}, [0, 1], "_allgather_base", Part.CONTEXT),
        ({"expert_parallel": 2, "data_parallel": 2}, [0, 1], "all_to_all_single", Part.EXPERT),
        ({"expert_parallel": 2, "data_parallel": 2}, [0, 1], "_reduce_scatter_base", Part.DATA_PARALLEL),
        ({"expert_parallel": 2, "data_parallel": 4}, [0, 1], "alltoall_base", Part.EXPERT),
        ({"expert_parallel": 2, "data_parallel": 4}, [0, 2], "allreduce", Part.DATA_PARALLEL),  # of copies of experts
        (
            {"expert_parallel": 2, "data_parallel": 2, "expert_dispatcher": "allgather"},
            [0, 1],
            "allgather",
            Part.EXPERT,
        ),
        ({"expert_parallel": 2, "tensor_parallel": 2}, [0, 1], "alltoall_base", Part.EXPERT),
        ({"expert_parallel": 2, "tensor_parallel": 2}, [0, 1], "allreduce", Part.TENSOR),
        ({"expert_parallel": 2, "tensor_parallel": 4}, [0, 2], "allreduce", Part.DATA_PARALLEL),  # of copies of experts
        (
            {"expert_parallel": 2, "context_parallel": 4, "context_transport": "all_gather"},
            [0, 2],
            "_reduce_scatter_base",
            Part.DATA_PARALLEL,  # of copies of experts
        ),
        (
            {"expert_parallel": 4, "tensor_parallel": 2, "data_parallel": 2, "expert_dispatcher": "allgather"},
            [0, 1],
            "_allgather_base",
            Part.TENSOR,
        ),
        (SPLIT, [0, 1, 2, 3], "_allgather_base", Part.EXPERT),
        (SPLIT, [0, 1], "_allgather_base", Part.TENSOR),
        (SPLIT, [0, 2], "allreduce", Part.DATA_PARALLEL),
        ({**SPLIT, "tensor_parallel": 1, "data_parallel": 4}, [0, 1], "_reduce_scatter_base", Part.TENSOR),
        ({**SPLIT, "tensor_parallel": 1, "data_parallel": 8}, [0, 4], "_reduce_scatter_base", Part.DATA_PARALLEL),
    ],
)
def test_of_one_groups_collectives_the_kind_tells_what_they_are_for(fields, ranks, name, part):
    assert part_of_collective(Layout(engine="megatron-core", **fields), ranks, name) is part


def test_counts_of_tokens_that_all_to_all_ranks_gather_are_the_experts():
    layout = Layout(engine="megatron-core", expert_parallel=2, data_parallel=2)
    assert part_of_collective(layout, [0, 1], "_allgather_base", are_counts=True) is Part.EXPERT
    assert part_of_collective(layout, [0, 1], "_allgather_base") is Part.DATA_PARALLEL


@pytest.mark.parametrize("outcome", [OUTCOME, None], ids=["rank-0", "another-rank"])
def test_no_time_left_for_profiled_steps_is_told_and_fails_no_rank(outcome):
    spec = replace(SPEC, measure=replace(SPEC.measure, time_limit_s=60.0, profile=True))
    loop = SimpleNamespace(elapsed_s=55.0, longest_step_s=1.0, extrapolation=None, micro_batches=[4])
    told = []
    add_breakdown(spec, loop, device=None, report=SimpleNamespace(write=told.append), outcome=outcome)
    words = "the time limit leaves less than 12 s for profiled steps"
    assert told == ([] if outcome is None else [replace(OUTCOME, flags=("profile_failed",), excerpt=words)])
