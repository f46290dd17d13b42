"""Rules of Megatron-Bridge: precisions that its overrides name."""

from __future__ import annotations

import pytest

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.trainers.megatron_bridge.overrides import MIXED_PRECISIONS, quantization_of
from trials.trainers.megatron_bridge.trainer import RULES as BRIDGE_RULES

MODEL = ModelShape(4, 64, 4, 4, 256, False, 256, 64, False, "learned", "layernorm")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"matmul_precision": "fp8_tensorwise", "layers_in_16_bits": 1, "quantized_weights": True}, None),
        ({"matmul_precision": "fp8_tensorwise", "quantized_weights": True}, "quantization"),
        ({"gradients_in_bf16": True}, "gradients_in_bf16"),
        ({"moment_dtype": "bf16"}, "moment_dtype"),
    ],
)
def test_megatron_bridge_has_whole_precisions_by_their_names(fields, code):
    layout = Layout(
        engine="megatron-lm", data_parallel=2, zero_stage=1, precision="bf16", attention_kernel="flash", **fields
    )
    found = [violation.name for rule in BRIDGE_RULES for violation in rule(layout, MODEL)]
    assert found == ([] if code is None else [code])
    if code is None:
        assert MIXED_PRECISIONS[quantization_of(layout)] == "bf16_with_fp8_current_scaling_mixed"
