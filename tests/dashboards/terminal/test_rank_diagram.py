"""Ranks in the diagram of a layout, which stays readable on hundreds of nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboards.terminal.rank_diagram import data_rank_of, groups_along, rank_diagram, stage_of
from search_spaces.layouts.layout import Layout

TWELVE = Layout(num_nodes=3, tensor_parallel=2, pipeline_parallel=3, data_parallel=2, pipeline_schedule="1f1b")
OUTER_DATA = replace(TWELVE, rank_order="tp-pp-dp")
MT_NLG = Layout(num_nodes=280, tensor_parallel=8, pipeline_parallel=35, data_parallel=8, pipeline_schedule="1f1b")


def test_two_ranks_are_drawn_whole():
    assert rank_diagram(Layout(pipeline_parallel=2, pipeline_schedule="1f1b"), 2) == [
        "tensor    every rank alone",
        "data      every rank alone",
        "pipeline  1 group of 2, inside a node: 0-1",
        "+ node 0 ---------+",
        "| rank 0: stage 0 |",
        "| rank 1: stage 1 |",
        "+-----------------+",
    ]


def test_groups_of_both_rank_orders():
    assert [list(g) for g in groups_along("data", TWELVE)] == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11]]
    assert [list(g) for g in groups_along("pipeline", TWELVE)] == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    assert [list(g) for g in groups_along("data", OUTER_DATA)] == [[0, 6], [1, 7], [2, 8], [3, 9], [4, 10], [5, 11]]
    assert [list(g) for g in groups_along("pipeline", OUTER_DATA)] == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]


@pytest.mark.parametrize("layout", [TWELVE, OUTER_DATA, MT_NLG], ids=lambda layout: layout.rank_order)
def test_every_rank_is_once_in_a_group_of_each_axis_with_all_else_alike(layout):
    for axis, is_alike in (("pipeline", data_rank_of), ("data", stage_of)):
        groups = groups_along(axis, layout)
        assert sorted(rank for group in groups for rank in group) == list(range(layout.num_gpus))
        assert all(len({is_alike(rank, layout) for rank in group}) == 1 for group in groups)


def test_a_tensor_group_that_reaches_across_nodes_says_which_part_is_where():
    picture = rank_diagram(Layout(num_nodes=2, tensor_parallel=4, data_parallel=3), 6)
    assert "tensor    3 groups of 4, each over 2 nodes: 0-3 | 4-7 | 8-11" in picture
    assert any("ranks 4-5: data 1, tensor 0-1 of 4" in line for line in picture)
    assert any("ranks 6-7: data 1, tensor 2-3 of 4" in line for line in picture)


def test_hundreds_of_nodes_are_told_in_a_few_lines():
    picture = rank_diagram(MT_NLG, 8)
    assert len(picture) < 15
    assert max(map(len, picture)) <= 120
    assert (
        "data      280 groups of 8, each over 8 nodes: 0 8 16 ... 56 | 1 9 17 ... 57 | ... | 2183 2191 2199 ... 2239"
        in (picture)
    )
    assert "  ... 277 more nodes ..." in picture
    assert "| ranks 2232-2239: stage 34, data 7 |" in picture


def test_a_node_of_many_ranks_is_shortened():
    picture = rank_diagram(Layout(data_parallel=64), 64)
    assert len(picture) < 15
    assert any("rank 63: data 63" in line for line in picture)
