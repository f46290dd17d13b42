"""CUDA_DEVICE_MAX_CONNECTIONS by device and layout."""

from __future__ import annotations

import pytest

from search_spaces.layouts.layout import Layout
from trials.ranks.cuda_connections import MANY, ONE, connections, refused_connections
from trials.trainers.common.megatron_options import environment_of


@pytest.mark.parametrize(
    ("fields", "hopper", "blackwell"),
    [
        ({}, ONE, {}),
        ({"tensor_parallel": 2}, ONE, MANY),
        ({"context_parallel": 2}, ONE, MANY),
        ({"zero_stage": 2, "data_parallel": 2}, {}, {}),
        ({"expert_parallel": 2, "expert_overlap": True}, MANY, MANY),
        ({"expert_parallel": 2, "expert_dispatcher": "hybridep"}, MANY, MANY),
        ({"expert_parallel": 2, "expert_dispatcher": "hybridep", "tensor_parallel": 2}, ONE, MANY),
    ],
)
def test_they_follow_from_layout_and_device(fields, hopper, blackwell):
    layout = Layout(**fields, engine="megatron-lm")
    assert connections(layout, "h100-80gb") == environment_of(layout, "h100-80gb") == hopper
    assert connections(layout, "gb200-186gb") == blackwell


def test_megatron_fsdp_refuses_one_connection():
    assert refused_connections(Layout(data_parallel=2, zero_stage=2)) == ONE
    assert refused_connections(Layout(data_parallel=2, zero_stage=1)) == {}
