"""Rules of Megatron-LM: the arithmetic of products, weights, gradients and moments."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.check import engine_violations
from trials.trainers.registry import ENGINE_RULES

MODEL = ModelShape(4, 64, 4, 4, 256, False, 256, 64, False, "learned", "layernorm")
HALF = {"engine": "megatron-lm", "data_parallel": 2, "precision": "bf16", "attention_kernel": "flash"}


def broken(model: ModelShape, **fields) -> list[str]:
    layout = Layout(**{**HALF, **fields}, grad_accum_steps=4).canonical()
    return [problem.code for problem in engine_violations(layout, model, ENGINE_RULES)]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"matmul_precision": "fp8_tensorwise", "layers_in_16_bits": 2}, None),
        ({"matmul_precision": "fp8_rowwise"}, "matmul_precision"),
        ({"matmul_precision": "mxfp8", "precision": "fp32", "attention_kernel": "math"}, "matmul_precision"),
        ({"matmul_precision": "fp8_delayed", "layers_in_16_bits": 1}, "layers_in_16_bits"),
        ({"matmul_precision": "mxfp8", "layers_in_16_bits": 3, "pipeline_parallel": 2}, "layers_in_16_bits"),
        ({"matmul_precision": "mxfp8", "quantized_weights": True}, "quantized_weights"),
        ({"matmul_precision": "mxfp8", "quantized_weights": True, "zero_stage": 1}, None),
        (
            {"matmul_precision": "mxfp8", "quantized_weights": True, "zero_stage": 1, "offload": "optimizer"},
            "quantized_weights",
        ),
        ({"gradients_in_bf16": True}, None),
        ({"gradients_in_bf16": True, "precision": "fp16"}, "gradients_in_bf16"),
        ({"moment_dtype": "fp8", "zero_stage": 1}, None),
        ({"moment_dtype": "bf16"}, "moment_dtype"),
    ],
)
def test_megatron_lm_has_these_types_of_products_weights_gradients_and_moments(fields, code):
    assert broken(MODEL, **fields) == ([] if code is None else [f"megatron-lm.{code}"])


@pytest.mark.parametrize(
    ("word", "hidden_size", "refused"),
    [("fp8_delayed", 80, False), ("mxfp8", 96, False), ("mxfp8", 80, True), ("nvfp4", 80, True)],
)
def test_a_recipe_takes_multiples_of_its_own(word, hidden_size, refused):
    heads = hidden_size // 16
    sizes = {"hidden_size": hidden_size, "ffn_hidden_size": 128, "num_attention_heads": heads}
    shape = replace(MODEL, **sizes, num_key_value_heads=heads)
    assert broken(shape, matmul_precision=word) == ["megatron-lm.matmul_dimensions"] * refused


def test_delayed_scaling_recomputes_no_norm():
    layout = {"activation_checkpointing": "selective", "recompute_modules": "layernorm"}
    needing = "megatron-lm.recompute_modules"
    assert needing in broken(MODEL, matmul_precision="fp8_delayed", **layout)
    assert needing not in broken(MODEL, matmul_precision="fp8_tensorwise", **layout)
