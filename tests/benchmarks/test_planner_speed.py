"""Lines of the planner benchmark; its timings depend on the machine and are not tested."""

from __future__ import annotations

from benchmarks import planner_speed

SMALL = """\
name: small
model: gpt2-124m
cluster: {accelerator: a100-80gb, gpus_per_node: 8, num_nodes: 1}
global_batch_size: 64
space: {tensor_parallel: [1, 2, 4], pipeline_parallel: [1, 2, 4], micro_batch_size: [1, 2, 4, 8]}
"""


def test_each_part_is_reported_with_how_many_layouts_it_had(monkeypatch):
    monkeypatch.setattr(planner_speed, "SEARCH", SMALL)
    lines = list(planner_speed.lines(10))
    parts = ["enumerate", "columns", "estimate", "plan", "plan_json_top_20", "plan_json"]
    assert [line["what"] for line in lines] == parts
    assert lines[0]["layouts"] > 20
    assert [line["layouts"] for line in lines[1:]] == [10] * 5
    assert all(line["seconds"] >= 0 for line in lines)
