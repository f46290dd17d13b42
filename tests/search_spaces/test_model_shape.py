"""FLOPs of recomputation."""

from __future__ import annotations

import pytest

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape

MODEL = ModelShape(8, 1024, 16, 16, 4096, False, 51200, 2048, False, "learned", "layernorm")
SCORES = 4 * 1024 * 2048
MLP = 2 * (2 * 4 * 1024**2 + 5 * 1024)
LAYER = 2 * MODEL.layer_parameters + SCORES
FULL, SELECTIVE = {"activation_checkpointing": "full"}, {"activation_checkpointing": "selective"}


@pytest.mark.parametrize(
    ("fields", "again"),
    [
        ({}, 0),
        (FULL, 8 * LAYER),
        ({**FULL, "recompute_layers": 3}, 3 * LAYER),
        ({**FULL, "recompute_layers": 1, "pipeline_parallel": 2, "virtual_pipeline_stages": 2}, 4 * LAYER),
        (SELECTIVE, 8 * SCORES),
        ({**SELECTIVE, "recompute_modules": "mlp"}, 8 * MLP),
        ({**SELECTIVE, "recompute_modules": "core_attn+mlp"}, 8 * (SCORES + MLP)),
        ({**SELECTIVE, "recompute_layers": 3}, 8 * SCORES),
        ({"recompute_modules": "mlp"}, 0),
    ],
)
def test_hardware_flops_are_those_of_the_model_and_of_what_is_computed_again(fields, again):
    assert MODEL.hardware_flops_per_token(Layout(**fields)) - MODEL.model_flops_per_token == again
