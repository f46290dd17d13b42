"""Ranks in the diagram of a layout, which stays readable on hundreds of nodes."""

from __future__ import annotations

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
