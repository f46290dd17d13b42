"""Features of a model beyond GPT-2's and Llama's, in each trainer's own words or refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.trainers.specs import GPT2, LLAMA
from tests.trials.trainers.specs import spec_of as spec_of_trainer
from trials.trainers.registry import TRAINERS

LAYOUT = Layout(precision="bf16", attention_kernel="flash", zero_stage=1, data_parallel=8, grad_accum_steps=1)
FEATURES: dict[str, Any] = {
    "attention_head_size": 32,
    "qkv_bias": True,
    "qk_norm": True,
    "rotary_base": 500_000,
    "linear_biases": True,
    "sliding_window": 8,
    "attention_sinks": True,
    "post_norms": True,
    "activation": "relu",
}
SAID = {
    ("megatron-lm", "attention_head_size"): "--kv-channels 32",
    ("megatron-lm", "qkv_bias"): "--add-qkv-bias",
    ("megatron-lm", "qk_norm"): "--qk-layernorm",
    ("megatron-lm", "rotary_base"): "--rotary-base 500000",
    ("megatron-lm", "linear_biases"): None,
    ("megatron-lm", "sliding_window"): "--window-size 7,0",
    ("megatron-lm", "attention_sinks"): "--softmax-type learnable",
    ("megatron-bridge", "attention_sinks"): "model.softmax_type=learnable",
    ("megatron-bridge", "attention_head_size"): "model.kv_channels=32",
    ("megatron-bridge", "qkv_bias"): "model.add_qkv_bias=true",
    ("megatron-bridge", "qk_norm"): "model.qk_layernorm=true",
    ("megatron-bridge", "rotary_base"): "model.rotary_base=500000",
    ("megatron-bridge", "linear_biases"): "model.add_bias_linear=true",
    ("megatron-deepspeed", "attention_head_size"): "--kv-channels 32",
    ("megatron-deepspeed", "rotary_base"): "--rotary-position-embeddings-theta 500000",
    ("megatron-deepspeed", "linear_biases"): None,
    ("gpt-neox", "rotary_base"): '"rotary_emb_base": 500000',
    ("gpt-neox", "linear_biases"): '"use_bias_in_mlp": true',
    ("gpt-neox", "activation"): '"activation": "reglu"',
    ("nanotron", "rotary_base"): '"rope_theta": 500000.0',
    ("nanotron", "activation"): '"hidden_act": "relu"',
    ("nanotron", "qkv_bias"): '"is_qwen2_config": true',
    ("torchtitan", "attention_head_size"): "head_dim=32",
    ("torchtitan", "qk_norm"): "qk_norm=True",
    ("torchtitan", "rotary_base"): "rope_theta=500000",
}
"""Words of an export for a feature; None: it leaves out the words for a model without."""
LEFT_OUT = {
    "megatron-lm": "--disable-bias-linear",
    "megatron-deepspeed": "--disable-bias-linear",
}


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("trainer", sorted({name for name, _ in SAID}))
def test_an_export_says_a_feature_of_a_model_or_refuses_it_by_name(trainer, feature):
    model = replace(LLAMA, **{feature: FEATURES[feature]})
    assert model.features == (feature,)
    form = TRAINERS[trainer].export
    stage = 3 if trainer == "torchtitan" else 1
    layout = replace(LAYOUT, engine=form.engine, zero_stage=stage).canonical()
    problem = form.problem(layout, model)
    if (trainer, feature) not in SAID:
        assert problem is not None
        assert problem.code == f"{trainer}.{feature}"
        return
    assert problem is None, problem
    plain, text = (exported(form, layout, each) for each in (LLAMA, model))
    words = SAID[trainer, feature]
    if words is None:
        assert LEFT_OUT[trainer] in plain
        assert LEFT_OUT[trainer] not in text
    else:
        assert words in text
        assert words not in plain


def exported(form, layout, model) -> str:
    spec = spec_of_trainer("command", model)
    spec = replace(spec, layout=layout, num_gpus=8, global_batch_size=layout.global_batch_size)
    return "\n".join(" ".join(text.split()) for text in form.files(spec).values())


@pytest.mark.parametrize(
    ("model", "activation", "is_said"),
    [(GPT2, "squared_relu", True), (GPT2, "relu", False), (LLAMA, "gelu", False), (LLAMA, "squared_relu", False)],
)
def test_megatron_lm_has_two_activations_and_a_gate_with_silu(model, activation, is_said):
    form = TRAINERS["megatron-lm"].export
    layout = replace(LAYOUT, engine=form.engine)
    given = replace(model, activation=activation)
    problem = form.problem(layout, given)
    assert (problem is None) == is_said
    if is_said:
        assert {"--squared-relu", "--no-bias-gelu-fusion"} <= set(exported(form, layout, given).split())
    else:
        assert problem.code == "megatron-lm.activation"
