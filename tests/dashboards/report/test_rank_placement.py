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


def test_the_summary_names_the_link_domain_that_a_tensor_group_stays_in():
    layout = Layout(num_nodes=4, tensor_parallel=8, data_parallel=2)
    assert " tensor groups of 8 across nodes of one link domain," in rank_placement(layout, 4, 2).summary
    assert " tensor groups of 8 across nodes," in rank_placement(layout, 4, 1).summary


@pytest.mark.parametrize(("order", "told"), [("tp-dp-pp", "pipeline"), ("tp-pp-dp", "data, copies of experts")])
def test_the_summary_names_the_groups_that_leave_the_link_domains(order: str, told: str):
    layout = Layout(
        num_nodes=32, tensor_parallel=4, pipeline_parallel=4, data_parallel=8, expert_parallel=4, rank_order=order
    )
    assert rank_placement(layout, 4, 16).summary.endswith(f" Groups in several link domains: {told}.")
    assert "several link domains" not in rank_placement(layout, 4, 32).summary
    assert "several link domains" not in rank_placement(layout, 4, 1).summary


def test_a_tensor_group_on_two_nodes_has_a_cell_on_each():
    first, second = rank_placement(Layout(num_nodes=2, tensor_parallel=4, data_parallel=3), 6).nodes
    assert [cell.ranks for cell in first.cells] == ["ranks 0-3", "ranks 4-5"]
    assert [cell.stage for cell in second.cells] == ["data 1", "data 2"]


def test_nodes_with_the_same_stages_are_shown_once():
    found = rank_placement(Layout(num_nodes=64, tensor_parallel=8, pipeline_parallel=4, data_parallel=16), 8)
    assert [node.name for node in found.nodes] == ["node 0", "node 16", "node 32", "node 48"]
    assert {node.alike for node in found.nodes} == {
        f"and 15 more nodes like it, from node {first} on" for first in (1, 17, 33, 49)
    }
