"""Oracle of exports: layouts that cover the axes, questions to a parser, and answers compared with the layout."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from benchmarks import real_parsers
from benchmarks.check_exports import checked, question
from benchmarks.export_cases import NUM_CASES, SHAPES, Case, export_cases
from benchmarks.export_meanings import differences, gradient_dtype, of_deepspeed
from benchmarks.real_configs import of_deepspeed as deepspeed_config
from search_spaces.layouts.layout import Layout
from tests.orchestrator.recipe.export_readers import words_of
from trials.trainers.common.deepspeed_config import ds_config

pytestmark = pytest.mark.slow

LATENT = {"deepseek", "latent"}
WITH_EXPERTS = {"mixtral", "qwen3-moe", "gpt-oss-moe"}
REFUSED_SHAPES = {
    "megatron-lm": {"geglu", "reglu"},
    "megatron-deepspeed": {"geglu", "reglu", "qwen2", "qwen3", "gpt-oss", *WITH_EXPERTS, *LATENT},
    "gpt-neox": {
        "geglu",
        "mistral",
        "qwen2",
        "qwen3",
        "nemotron",
        "gpt2-squared-relu",
        "gpt-oss",
        *WITH_EXPERTS,
        *LATENT,
    },
    "deepspeed": LATENT,
}
TRAINERS = tuple(REFUSED_SHAPES)


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Case]]:
    return {trainer: export_cases(trainer) for trainer in TRAINERS}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_layouts_of_a_trainer_are_different_and_have_every_degree_precision_and_shape(trainer, cases):
    layouts = [case.spec.layout for case in cases[trainer]]
    assert len({(case.spec.layout.key, case.spec.model) for case in cases[trainer]}) == NUM_CASES
    for name in ("tensor_parallel", "pipeline_parallel", "data_parallel"):
        assert {getattr(layout, name) for layout in layouts} == {1, 2, 4}
    assert {layout.precision for layout in layouts} == {"fp32", "bf16", "fp16"}
    assert {layout.zero_stage for layout in layouts} == {0, 1, 2, 3}
    shapes = {name for name, model in SHAPES.items() if any(case.spec.model == model for case in cases[trainer])}
    assert shapes == set(SHAPES) - REFUSED_SHAPES[trainer]


def test_megatron_lms_layouts_of_models_with_experts_distribute_and_split_them(cases):
    layouts = [case.spec.layout for case in cases["megatron-lm"] if case.spec.model.num_experts is not None]
    assert {layout.expert_parallel for layout in layouts} == {1, 2, 4}
    assert {layout.expert_tensor_parallel for layout in layouts} == {1, 2, 4}


def test_a_question_has_the_words_of_the_files_and_the_size_of_the_training(cases, tmp_path):
    case = cases["megatron-lm"][0]
    asked = question("megatron-lm", case, tmp_path / "0")
    words = words_of(case.files["megatron_args.txt"])
    assert asked["words"][: len(words)] == words
    assert asked["world"] == case.spec.num_gpus
    asked = question("megatron-deepspeed", cases["megatron-deepspeed"][0], tmp_path / "1")
    assert asked["deepspeed"]["train_batch_size"] == case.spec.global_batch_size
    assert json.loads((tmp_path / "1" / "megatron_deepspeed_config.json").read_text()) == asked["deepspeed"]


def test_nanotrons_parser_is_never_a_mock(monkeypatch):
    monkeypatch.setitem(sys.modules, "dacite", None)
    with pytest.raises(ImportError, match="dacite"):
        real_parsers._nanotron({"words": ["nanotron.yaml"]})


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({"error": "ValueError: no such degree"}, "not loaded, ValueError: no such degree"),
        ({"error": None, "failed_check": "AssertionError: batch"}, "not loaded, AssertionError: batch"),
        ({"error": None, "unknown": ["--zero", "1"]}, "it does not know --zero 1"),
    ],
)
def test_an_export_that_its_parser_refuses_is_not_loaded(answer, sentence, cases):
    found = checked("megatron-lm", cases["megatron-lm"][0], answer)
    assert (found.is_loaded, found.differing) == (False, (sentence,))


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
def test_deepspeeds_own_configuration_shows_what_is_not_the_layouts(change, sentence, cases):
    layout = Layout(data_parallel=2, grad_accum_steps=16, zero_stage=2, precision="bf16", bucket_mib=3)
    layout = replace(layout, engine="deepspeed").canonical()
    spec = replace(cases["deepspeed"][0].spec, layout=layout, num_gpus=2)
    config = ds_config(layout, 32, 1.0)
    assert not differences(spec, of_deepspeed(deepspeed_config(config, 2, False), {}))
    changed = {name: value for name, value in {**config, **change}.items() if value is not None}
    found = differences(spec, of_deepspeed(deepspeed_config(changed, 2, False), {}))
    assert any(one.startswith(sentence) for one in found), found


@pytest.mark.parametrize(
    ("engine", "precision", "zero_stage", "dtype"),
    [
        ("megatron-lm", "fp16", 0, "fp32"),
        ("deepspeed", "bf16", 1, "fp32"),
        ("megatron-deepspeed", "bf16", 1, "fp32"),
        ("megatron-deepspeed", "bf16", 0, "bf16"),
        ("gpt-neox", "fp16", 2, "fp16"),
        ("gpt-neox", "fp32", 0, "fp32"),
    ],
)
def test_gradients_are_summed_in_the_dtype_whose_bytes_the_memory_model_counts(
    engine, precision, zero_stage, dtype, cases
):
    layout = Layout(data_parallel=2, zero_stage=zero_stage, precision=precision, engine=engine)
    assert gradient_dtype(replace(cases["deepspeed"][0].spec, layout=layout)) == dtype
