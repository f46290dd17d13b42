"""Exports of layouts that cover the axes, as the installed DeepSpeed and accelerate understand them.

torchtitan's are in tests/trials/trainers/torchtitan/test_export.py, megatron-core's in test_megatron_core.py beside it.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest

from search_spaces.engines import ACCELERATE
from search_spaces.layouts.layout import Layout
from tests.oracles.cases import NUM_CASES, SHAPES, Case, export_cases
from tests.oracles.configs import of_deepspeed as deepspeed_config
from tests.oracles.meanings import differences, of_deepspeed
from tests.oracles.parsers import read_back
from trials.trainers.common.deepspeed_config import ds_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LATENT = {"deepseek", "latent"}
WITH_EXPERTS = {"mixtral", "qwen3-moe", "gpt-oss-moe"}
REFUSED_SHAPES = {
    "megatron-lm": {"geglu", "reglu"},
    "megatron-deepspeed": {"geglu", "reglu", "qwen2", "qwen3", "gpt-oss", *WITH_EXPERTS, *LATENT},
    "gpt-neox": {
        *("geglu", "mistral", "qwen2", "qwen3", "nemotron", "gpt2-squared-relu", "gpt-oss"),
        *WITH_EXPERTS,
        *LATENT,
    },
    "deepspeed": LATENT,
}


@pytest.mark.parametrize("trainer", REFUSED_SHAPES)
def test_the_layouts_of_a_trainer_are_different_and_have_every_degree_precision_and_shape(trainer):
    layouts = [case.spec.layout for case in export_cases(trainer)]
    assert len({(case.spec.layout.key, case.spec.model) for case in export_cases(trainer)}) == NUM_CASES
    for name in ("tensor_parallel", "pipeline_parallel", "data_parallel"):
        assert {getattr(layout, name) for layout in layouts} == {1, 2, 4}
    assert {layout.precision for layout in layouts} == {"fp32", "bf16", "fp16"}
    assert {layout.zero_stage for layout in layouts} == {0, 1, 2, 3}
    shapes = {name for name, model in SHAPES.items() if any(case.spec.model == model for case in export_cases(trainer))}
    assert shapes == set(SHAPES) - REFUSED_SHAPES[trainer]


@pytest.mark.parametrize(
    ("trainer", "axis", "values"),
    [
        ("megatron-lm", "expert_parallel", {1, 2, 4}),
        ("megatron-lm", "expert_tensor_parallel", {1, 2, 4}),
        (ACCELERATE, "zero_stage", {0, 2, 3}),
        (ACCELERATE, "data_parallel_replicas", {1, 2}),
        (ACCELERATE, "torch_compile", {False, True}),
        (ACCELERATE, "activation_checkpointing", {"none", "full"}),
    ],
)
def test_layouts_have_every_value_of_a_trainer_s_own_axes(trainer, axis, values):
    assert {getattr(case.spec.layout, axis) for case in export_cases(trainer)} == values


@pytest.mark.processes
@pytest.mark.parametrize("trainer", ["deepspeed", ACCELERATE])
def test_the_trainer_understands_every_layout_as_it_is(trainer, tmp_path):
    if find_spec(trainer) is None:
        pytest.skip("accelerate is not installed: the extra `trainers`")
    found = read_back(trainer, export_cases(trainer), tmp_path)
    assert [one for one in found if one.differing or not one.is_loaded] == []
    assert len(found) == NUM_CASES
    assert all(one.compared >= 7 for one in found)


@pytest.mark.processes
def test_an_export_that_its_parser_refuses_is_not_loaded(tmp_path):
    case = export_cases("deepspeed")[0]
    [found] = read_back("deepspeed", [Case(case.spec, {"ds_config.json": "{}"})], tmp_path)
    assert not found.is_loaded
    assert found.differing[0].startswith("not loaded, ")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"train_batch_size": 64, "gradient_accumulation_steps": None}, "deepspeed_batch is"),
        ({"bf16": None, "fp16": {"enabled": True}}, "deepspeed_precision is 'fp16'"),
        ({"data_types": {"grad_accum_dtype": "bf16"}}, "gradient_dtype is 'bf16'"),
        ({"zero_optimization": {"stage": 1}}, "deepspeed_zero_stage is 1"),
        (
            {"zero_optimization": {"stage": 2, "reduce_bucket_size": 3 * 2**20, "allgather_bucket_size": 1}},
            "bucket_mib",
        ),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, "offload is 'optimizer'"),
    ],
)
def test_a_change_to_deepspeeds_configuration_is_seen(change, sentence):
    layout = Layout(data_parallel=2, grad_accum_steps=16, zero_stage=2, precision="bf16", bucket_mib=3)
    layout = replace(layout, engine="deepspeed").canonical()
    trial = replace(export_cases("deepspeed")[0].spec, layout=layout, num_gpus=2)
    config = ds_config(layout, 32, 1.0)
    assert not differences(trial, of_deepspeed(deepspeed_config(config, 2, False)))
    changed = {name: value for name, value in {**config, **change}.items() if value is not None}
    found = differences(trial, of_deepspeed(deepspeed_config(changed, 2, False)))
    assert any(one.startswith(sentence) for one in found), found
