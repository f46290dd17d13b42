"""Placement of ranks on nodes, as the report draws it."""

from __future__ import annotations

import pytest

from dashboards.report.rank_placement import rank_placement
from search_spaces.layouts.layout import Layout


@pytest.mark.parametrize(
    ("layout", "gpus_per_node", "tensor"),
    [
        (Layout(num_nodes=2, tensor_parallel=4, data_parallel=3), 6, "tensor groups of 4 across nodes"),
        (Layout(num_nodes=2, tensor_parallel=3, data_parallel=4), 6, "tensor groups of 3 inside a node"),
        (Layout(tensor_parallel=3), 8, "tensor groups of 3 inside a node"),
    ],
)
def test_the_summary_says_whether_tensor_groups_cross_nodes(layout: Layout, gpus_per_node: int, tensor: str):
    assert f" {tensor}," in rank_placement(layout, gpus_per_node).summary


def test_a_tensor_group_on_two_nodes_has_a_cell_on_each():
    first, second = rank_placement(Layout(num_nodes=2, tensor_parallel=4, data_parallel=3), 6).nodes
    assert [cell.ranks for cell in first.cells] == ["ranks 0-3", "ranks 4-5"]
    assert [cell.stage for cell in second.cells] == ["data 1", "data 2"]
