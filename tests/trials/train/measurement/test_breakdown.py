from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from search_spaces.layouts.layout import Layout
from tests.kit import OUTCOME, SPEC
from trials.measurement.protocol import TwoPointExtrapolation
from trials.train.measurement.breakdown import Part, RangeSource, StepParts, TimedRange, Transfer, breakdown, split_step
from trials.train.measurement.profile import add_breakdown, part_of_collective


def collective(part: Part, begin_s: float, end_s: float, kind: str = "") -> TimedRange:
    return TimedRange(part, RangeSource.DEVICE_COLLECTIVE, begin_s, end_s, kind)


def kernel(begin_s: float, end_s: float) -> TimedRange:
    return TimedRange(Part.COMPUTE, RangeSource.DEVICE_KERNEL, begin_s, end_s)


OPTIMIZER = TimedRange(Part.OPTIMIZER, RangeSource.HOST_OTHER, 6, 10)
OPTIMIZER_KERNELS = TimedRange(Part.OPTIMIZER, RangeSource.DEVICE_OPTIMIZER, 6, 10)


@pytest.mark.parametrize(
    ("ranges", "seconds"),
    [
        ([], {"compute": 10.0}),
        ([kernel(0, 4), collective(Part.DATA_PARALLEL, 3, 6), kernel(5, 7)], {"compute": 9.0, "data_parallel": 1.0}),
        (
            [OPTIMIZER, TimedRange(Part.DATA_PARALLEL, RangeSource.HOST_COLLECTIVE, 7, 9)],
            {"compute": 6.0, "optimizer": 2.0, "data_parallel": 2.0},
        ),
        ([kernel(0, 6), OPTIMIZER_KERNELS, kernel(6.5, 9)], {"compute": 6.0, "optimizer": 4.0}),
        (
            [kernel(0, 4), TimedRange(Part.OFFLOAD, RangeSource.DEVICE_COPY, 3, 6)],
            {"compute": 8.0, "offload": 2.0},
        ),
        ([collective(Part.TENSOR, -3, 1), collective(Part.TENSOR, 9, 12)], {"compute": 8.0, "tensor": 2.0}),
        (
            [collective(Part.TENSOR, 1, 4), collective(Part.DATA_PARALLEL, 3, 6)],
            {"compute": 5.0, "tensor": 3.0, "data_parallel": 2.0},
        ),
        # Transfers between stages are kept apart for all ranks to compare.
        ([kernel(0, 2), collective(Part.PIPELINE, 1, 5, "recv 64")], {"compute": 7.0, "recv 64": 3.0}),
    ],
)
def test_an_instant_of_a_step_is_of_one_part(ranges, seconds):
    """Transfers by their exposed time."""
    step = split_step(1, 0.0, 10.0, ranges)
    found = {str(part): part_s for part, part_s in step.seconds.items() if part_s}
    assert found | {transfer.kind: transfer.exposed_s for transfer in step.transfers} == seconds


def step(micro_batches: int = 4, compute: float = 0.0, transfers: tuple[Transfer, ...] = ()) -> StepParts:
    return StepParts(micro_batches, dict.fromkeys(Part, 0.0) | {Part.COMPUTE: compute}, transfers)


def test_what_the_luckiest_rank_waited_for_the_same_kind_is_the_transfer_and_the_rest_the_bubble():
    first = step(compute=6.0, transfers=(Transfer("recv 64", 3.0, 3.0), Transfer("recv 64", 1.0, 1.0)))
    last = step(compute=9.5, transfers=(Transfer("recv 64", 0.5, 0.5),))
    time_s = breakdown([[first], [last]], step_time_s=10.0)
    assert time_s["pipeline"] == pytest.approx((0.5 + 0.5 + 0.5) / 2)
    assert time_s["bubble"] == pytest.approx((2.5 + 0.5 + 0.0) / 2)
    assert time_s["compute"] == pytest.approx((6.0 + 9.5) / 2)
    large, small = Transfer("recv 64", 3.0, 3.0), Transfer("recv 1", 0.1, 0.1)
    assert breakdown([[step(compute=6.9, transfers=(large, small))]], step_time_s=10.0)["bubble"] == 0.0


def test_parts_add_up_to_the_measured_step_time():
    time_s = breakdown([[step(compute=30.0), step(compute=10.0)]], step_time_s=8.0)
    assert time_s == dict.fromkeys(Part, 0.0) | {Part.COMPUTE: 8.0}
    assert list(time_s) == [part.value for part in Part]


def test_short_steps_tell_what_a_full_one_spends():
    waits = (Transfer("wait", 3.0, 3.0), Transfer("wait", 1.0, 1.0))
    short, long = (step(count, 2.0 * count, waits) for count in (4, 8))
    time_s = breakdown([[short, long]], 2.0 * 24 + 4.0, TwoPointExtrapolation(4, 8, 24))
    assert time_s["compute"] == pytest.approx(48.0)
    # Filling and draining takes as long whatever the micro-batches.
    assert (time_s["bubble"], time_s["pipeline"]) == (pytest.approx(2.0), pytest.approx(2.0))


MESH = {"tensor_parallel": 2, "data_parallel": 2, "pipeline_parallel": 2}
CP2, DP2, EP2, TP2 = {"context_parallel": 2}, {"data_parallel": 2}, {"expert_parallel": 2}, {"tensor_parallel": 2}
GATHER = {"expert_dispatcher": "allgather"}
SPLIT = {**TP2, **DP2, **EP2, **GATHER, "expert_tensor_parallel": 2}


@pytest.mark.parametrize(
    ("fields", "ranks", "name", "part"),
    [
        (MESH, [0, 1], "allreduce", Part.TENSOR),
        (MESH, [0, 2], "allreduce", Part.DATA_PARALLEL),
        (MESH, [0, 4], "allreduce", Part.PIPELINE),
        (MESH, [*range(8)], "allreduce", Part.PIPELINE),
        (MESH, [3], "allreduce", None),
        (CP2 | DP2, [0, 1], "send", Part.CONTEXT),
        (CP2 | DP2, [0, 1, 2, 3], "allreduce", Part.DATA_PARALLEL),
        (CP2, [0, 1], "_end_coalescing", Part.CONTEXT),
        (CP2, [0, 1], "allreduce", Part.DATA_PARALLEL),  # of gradients
        (CP2 | {"context_transport": "all_gather"}, [0, 1], "_allgather_base", Part.CONTEXT),
        (EP2 | DP2, [0, 1], "all_to_all_single", Part.EXPERT),
        (EP2 | DP2, [0, 1], "_reduce_scatter_base", Part.DATA_PARALLEL),
        (EP2 | {"data_parallel": 4}, [0, 2], "allreduce", Part.DATA_PARALLEL),  # of copies of experts
        (EP2 | DP2 | GATHER, [0, 1], "allgather", Part.EXPERT),
        (EP2 | TP2, [0, 1], "allreduce", Part.TENSOR),
        (EP2 | {"tensor_parallel": 4}, [0, 2], "allreduce", Part.DATA_PARALLEL),  # of copies of experts
        ({"expert_parallel": 4} | TP2 | DP2 | GATHER, [0, 1], "_allgather_base", Part.TENSOR),
        (SPLIT, [0, 1, 2, 3], "_allgather_base", Part.EXPERT),
        (SPLIT, [0, 1], "_allgather_base", Part.TENSOR),
        (SPLIT, [0, 2], "allreduce", Part.DATA_PARALLEL),
        (SPLIT | {"tensor_parallel": 1, "data_parallel": 8}, [0, 4], "_reduce_scatter_base", Part.DATA_PARALLEL),
    ],
)
def test_a_collective_belongs_to_the_axis_of_its_ranks_and_its_kind(fields, ranks, name, part):
    assert part_of_collective(Layout(engine="megatron-core", **fields), ranks, name) is part


def test_counts_of_tokens_that_all_to_all_ranks_gather_are_the_experts():
    layout = Layout(engine="megatron-core", **EP2, **DP2)
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
