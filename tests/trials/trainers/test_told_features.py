"""Features of a model in the trainers' exports: what each is told, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from search_spaces.engines import ACCELERATE_LAUNCH
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.check import engine_violations
from tests.orchestrator.recipe.exported import exported, half, our_spec
from tests.trials.trainers.specs import LLAMA, spec_of
from trials.diagnostics.parity_models import SHAPES
from trials.trainers.nanotron.trainer import nanotron_config
from trials.trainers.registry import ENGINE_RULES, TRAINERS
from trials.trainers.torchtitan.config import reshard_policy
from trials.trainers.torchtitan.trainer import values_of

ROTARY = {"rotary_base": 1_000_000}
EXPERTS = {"num_experts": 4, "experts_per_token": 2}


def lines_of(model: ModelShape, **fields) -> list[str]:
    text = exported(our_spec(half(**fields), model))["megatron-lm"].files["megatron_args.txt"]
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_megatron_lm_is_told_of_an_auxiliary_loss_and_of_kernels_that_a_model_has_not():
    balanced = lines_of(replace(LLAMA, **EXPERTS, aux_loss_coefficient=0.01))
    assert {"--moe-router-load-balancing-type aux_loss", "--moe-aux-loss-coeff 0.01"} <= {*balanced}
    assert "--moe-grouped-gemm" in balanced
    in_fp32 = lines_of(replace(LLAMA, **EXPERTS), precision="fp32", attention_kernel="math")
    assert "--moe-grouped-gemm" not in in_fp32
    biased = replace(LLAMA, **EXPERTS, linear_biases=True)
    assert "--no-bias-dropout-fusion" in lines_of(biased)
    with_sinks = replace(LLAMA, attention_sinks=True)
    for kernel, backend in (("flash", "fused"), ("math", "unfused")):
        assert f"--attention-backend {backend}" in lines_of(with_sinks, attention_kernel=kernel)


@pytest.mark.parametrize(
    ("change", "theirs", "said"),
    [
        (ROTARY, {"rope_theta": 5e5}, {"rope_theta": 1e6}),
        ({"activation": "gelu"}, {}, {"hidden_act": "gelu_pytorch_tanh"}),
        ({"activation": "squared_relu"}, {"hidden_act": "silu"}, {"hidden_act": "relu2"}),
        ({"qkv_bias": True}, {"is_llama_config": True}, {"is_qwen2_config": True, "attention_bias": True}),
        ({}, {"is_qwen2_config": True, "hidden_act": "relu2"}, {"is_qwen2_config": True, "hidden_act": "silu"}),
    ],
)
def test_a_nanotron_config_has_the_models_features_in_place_of_the_templates(change, theirs, said):
    spec = spec_of("nanotron", replace(LLAMA, **change))
    config = nanotron_config(spec, {"model": {"model_config": theirs}})["model"]["model_config"]
    assert said.items() <= config.items()
    assert ("is_llama_config" in config) == (theirs.get("is_llama_config", False) and "is_qwen2_config" not in said)


def test_torchtitan_is_told_of_experts_and_of_the_degree_that_distributes_them():
    layout = half(zero_stage=2, attention_kernel="flex", engine="torchtitan", expert_parallel=2)
    said = values_of(our_spec(layout, SHAPES["deepseek-moe"]))
    experts = {"name": "qwen3", "num_experts": 8, "shared_expert_hidden_dim": 64, "expert_layer_every": 3}
    assert experts.items() <= said["model_spec"].items()
    assert said["model_spec"]["qk_norm"] is False
    assert said["parallelism"]["expert_parallel_degree"] == 2


def test_torchtitan_reshards_after_the_forward_pass_with_zero_3_also_in_a_pipeline():
    layout = Layout(data_parallel=4, zero_stage=2, grad_accum_steps=4)
    sharded = replace(layout, zero_stage=3)
    found = [reshard_policy(each) for each in (layout, sharded, replace(sharded, pipeline_parallel=2))]
    assert found == ["never", "default", "always"]


@pytest.mark.parametrize(
    ("routing", "option", "said"),
    [("balanced", ["--moe-router-force-load-balancing"], True), ("skewed(1.5)", [], True), ("learned", [], False)],
)
def test_a_forced_routing_of_experts_is_told_where_megatron_lm_has_it_and_said_anyway(routing, option, said):
    spec = our_spec(half(), replace(LLAMA, **EXPERTS))
    spec = replace(spec, measure=replace(spec.measure, routing=routing))
    text = exported(spec)["megatron-lm"].files["megatron_args.txt"]
    assert [line for line in text.splitlines() if "force" in line] == option
    assert (f"# Measured with measure.routing {routing}" in text) is said


@pytest.mark.parametrize("trainer", ["megatron-bridge", "gpt-neox"])
def test_an_mlp_without_a_gate_that_a_trainer_cannot_be_told_is_refused(trainer):
    export = exported(our_spec(half(zero_stage=2), SHAPES["nemotron"]))[trainer]
    assert export.files == {}
    assert str(export.rule).startswith(f"{trainer}.")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_script_of_accelerate_decides_its_model(shape):
    layout, model = half(engine=ACCELERATE_LAUNCH), replace(SHAPES[shape], document_length=None)
    assert not list(engine_violations(layout, model, ENGINE_RULES))


SHARDED = Layout(precision="bf16", attention_kernel="flash", zero_stage=1, data_parallel=8, grad_accum_steps=1)
FEATURES: dict[str, Any] = {
    "attention_head_size": 32,
    "rotary_base": 500_000,
    "sliding_window": 8,
    "activation": "relu",
}
FEATURES |= dict.fromkeys(("qkv_bias", "qk_norm", "linear_biases", "attention_sinks", "post_norms"), True)
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
    ("torchtitan", "attention_head_size"): '"head_dim": 32',
    ("torchtitan", "qk_norm"): '"qk_norm": True',
    ("torchtitan", "rotary_base"): '"rope_theta": 500000',
}
"""Words of an export for a feature; None: it leaves out the words for a model without."""


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("trainer", sorted({name for name, _ in SAID}))
def test_an_export_says_a_feature_of_a_model_or_refuses_it_by_name(trainer, feature):
    model = replace(LLAMA, **{feature: FEATURES[feature]})
    assert model.features == (feature,)
    form = TRAINERS[trainer].export
    stage = 3 if trainer == "torchtitan" else 1
    layout = replace(SHARDED, engine=form.engine, zero_stage=stage).canonical()
    problem = form.problem(layout, model)
    if (trainer, feature) not in SAID:
        assert problem is not None
        assert problem.code == f"{trainer}.{feature}"
        return
    assert problem is None, problem
    plain, text = (text_of(form, layout, each) for each in (LLAMA, model))
    words = SAID[trainer, feature]
    if words is None:
        assert ("--disable-bias-linear" in plain, "--disable-bias-linear" in text) == (True, False)
    else:
        assert words in text
        assert words not in plain


def text_of(form, layout, model) -> str:
    spec = spec_of("command", model)
    spec = replace(spec, layout=layout, num_gpus=8, global_batch_size=layout.global_batch_size)
    return "\n".join(" ".join(text.split()) for text in form.files(spec).values())
