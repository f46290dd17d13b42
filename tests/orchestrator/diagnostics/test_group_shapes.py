"""Group shapes of layouts: sizes, strides and collectives, those of most layouts first."""

from __future__ import annotations

import pytest

from orchestrator.diagnostics.fabric import group_shapes
from search_spaces.layouts.layout import Layout
from trials.diagnostics.calibration import Collective
from trials.diagnostics.fabric import GroupShape

REDUCE = (Collective.ALL_REDUCE,)
GATHERS = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
SHIFT = (Collective.RING_SHIFT,)


@pytest.mark.parametrize(
    ("layout", "shapes"),
    [
        (Layout(data_parallel=8), {GroupShape(8, 1, REDUCE)}),
        (Layout(data_parallel=8, zero_stage=1), {GroupShape(8, 1, GATHERS)}),
        (Layout(tensor_parallel=4, data_parallel=2), {GroupShape(4, 1, REDUCE), GroupShape(2, 4, REDUCE)}),
        (
            Layout(tensor_parallel=4, data_parallel=2, sequence_parallel=True),
            {GroupShape(4, 1, GATHERS), GroupShape(2, 4, REDUCE)},
        ),
        (Layout(pipeline_parallel=4, data_parallel=2), {GroupShape(4, 2, SHIFT), GroupShape(2, 1, REDUCE)}),
        (
            Layout(data_parallel=8, data_parallel_replicas=2, zero_stage=3),
            {GroupShape(4, 1, GATHERS), GroupShape(2, 4, REDUCE)},
        ),
        (Layout(data_parallel=1), set()),
    ],
)
def test_groups_of_a_layout_with_what_they_exchange(layout, shapes):
    found = {GroupShape(s.num_ranks, s.stride, tuple(sorted(s.kinds))) for s in group_shapes([layout], 8)}
    assert found == shapes


def test_experts_exchange_by_all_to_alls():
    layout = Layout(data_parallel=8, expert_parallel=4)
    assert Collective.ALL_TO_ALL in next(s for s in group_shapes([layout], 8) if s.num_ranks == 4).kinds


def test_shapes_of_most_layouts_come_first_and_the_rest_is_left_out():
    layouts = [Layout(data_parallel=4, micro_batch_size=size) for size in (1, 2, 4)]
    layouts += [Layout(data_parallel=2, tensor_parallel=2, zero_stage=1), Layout(data_parallel=4, zero_stage=1)]
    found = group_shapes(layouts, 8)
    assert found[0] == GroupShape(4, 1, (Collective.ALL_REDUCE, *GATHERS))
    assert len(found) == 3
    assert group_shapes(layouts, 8, at_most=1) == found[:1]


def test_shapes_of_more_ranks_than_the_job_has_are_left_out():
    assert group_shapes([Layout(num_nodes=2, data_parallel=8)], 4) == []
