"""Ranks in the diagram of a layout, which stays readable on hundreds of nodes, and on the nodes of the report."""

from __future__ import annotations

import pytest

from dashboards.report.rank_placement import rank_placement
from dashboards.terminal.rank_diagram import rank_diagram
from search_spaces.layouts.layout import Layout

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


def test_hundreds_of_nodes_are_reported_in_a_few_lines():
    picture = rank_diagram(MT_NLG, 8)
    assert len(picture) < 15
    assert max(map(len, picture)) <= 120
    assert (
        "data      280 groups of 8, each over 8 nodes: 0 8 16 ... 56 | 1 9 17 ... 57 | ... | 2183 2191 2199 ... 2239"
        in (picture)
    )
    assert "  ... 277 more nodes ..." in picture
    assert "| ranks 2232-2239: stage 34, data 7 |" in picture
    one_node = rank_diagram(Layout(data_parallel=64), 64)
    assert len(one_node) < 15
    assert any("rank 63: data 63" in line for line in one_node)


@pytest.mark.parametrize(
    ("sizes", "gpus_per_node", "nodes_per_domain", "tensor"),
    [((2, 4, 3), 6, 1, "of 4 across nodes"), ((4, 8, 2), 4, 2, "of 8 across nodes of one link domain")],
)
def test_the_summary_says_whether_tensor_groups_cross_nodes(sizes, gpus_per_node, nodes_per_domain, tensor):
    num_nodes, tensor_parallel, data_parallel = sizes
    layout = Layout(num_nodes=num_nodes, tensor_parallel=tensor_parallel, data_parallel=data_parallel)
    assert f" tensor groups {tensor}," in rank_placement(layout, gpus_per_node, nodes_per_domain).summary


@pytest.mark.parametrize(("order", "told"), [("tp-dp-pp", "pipeline"), ("tp-pp-dp", "data, copies of experts")])
def test_the_summary_names_the_groups_that_leave_the_link_domains(order: str, told: str):
    layout = Layout(
        num_nodes=32, tensor_parallel=4, pipeline_parallel=4, data_parallel=8, expert_parallel=4, rank_order=order
    )
    assert rank_placement(layout, 4, 16).summary.endswith(f" Groups in several link domains: {told}.")
    assert "several link domains" not in rank_placement(layout, 4, 32).summary
    assert "several link domains" not in rank_placement(layout, 4, 1).summary
