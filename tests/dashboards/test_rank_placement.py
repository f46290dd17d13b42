"""Ranks on the nodes of the report, and as lines of the terminal, which stay few on hundreds of nodes."""

from __future__ import annotations

import re

import pytest

from dashboards.rank_placement import rank_lines, rank_placement
from search_spaces.layouts.layout import Layout

MT_NLG = Layout(num_nodes=280, tensor_parallel=8, pipeline_parallel=35, data_parallel=8, pipeline_schedule="1f1b")


def test_two_ranks_are_drawn_whole():
    assert rank_lines(Layout(pipeline_parallel=2, pipeline_schedule="1f1b"), 2) == [
        "tensor    every rank alone",
        "data      every rank alone",
        "pipeline  1 group of 2, inside a node: 0-1",
        "node 0    rank 0 stage 0 | rank 1 stage 1",
    ]


def test_hundreds_of_nodes_are_reported_in_a_few_lines():
    picture = rank_lines(MT_NLG, 8)
    assert len(picture) < 15
    assert max(map(len, picture)) <= 120
    assert (
        "data      280 groups of 8, each over 8 nodes: 0 8 16 ... 56 | 1 9 17 ... 57 | ... | 2183 2191 2199 ... 2239"
        in (picture)
    )
    assert "node 8    ranks 64-71 stage 1 data 0 ...and 7 more nodes with the same pattern" in picture
    assert len(rank_lines(Layout(data_parallel=64), 64)) < 15


@pytest.mark.parametrize(
    ("sizes", "gpus_per_node", "nodes_per_domain", "tensor"),
    [
        ((2, 4, 3), 6, 1, "3 groups of 4, each over 2 nodes: "),
        ((4, 8, 2), 4, 2, "2 groups of 8, each over 2 nodes of one link domain: "),
        ((2, 4, 2), 4, 1, "2 groups of 4, inside a node: "),
    ],
)
def test_whether_groups_cross_nodes_is_said(sizes, gpus_per_node, nodes_per_domain, tensor):
    num_nodes, tensor_parallel, data_parallel = sizes
    layout = Layout(num_nodes=num_nodes, tensor_parallel=tensor_parallel, data_parallel=data_parallel)
    assert tensor in rank_placement(layout, gpus_per_node, nodes_per_domain).groups[0]


@pytest.mark.parametrize(("order", "told"), [("tp-dp-pp", ["pipeline"]), ("tp-pp-dp", ["data", "copies of experts"])])
def test_the_groups_that_leave_their_link_domain_are_said(order: str, told: list[str]):
    layout = Layout(
        num_nodes=32, tensor_parallel=4, pipeline_parallel=4, data_parallel=8, expert_parallel=4, rank_order=order
    )
    lines = rank_placement(layout, 4, 16).groups
    assert [re.match("[a-z]+( [a-z]+)*", line)[0] for line in lines if "link domains: " in line] == told
    assert not any("link domains: " in line for line in rank_placement(layout, 4, 32).groups)
