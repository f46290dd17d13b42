"""Placement of ranks on nodes, as the report draws it."""

from __future__ import annotations

import pytest

from dashboards.report.rank_placement import rank_placement
from search_spaces.layouts.layout import Layout


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
