"""torchtitan's words for a layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.trainers.specs import LLAMA
from trials.trainers.torchtitan.config import (
    converter,
    modules_by_chunk,
    parallelism_arguments,
    recomputation_policy,
    reshard_policy,
    training_arguments,
)


@pytest.mark.parametrize(
    ("fields", "degrees", "policy"),
    [
        ({}, (4, 1), "never"),
        ({"zero_stage": 2}, (1, 4), "never"),
        ({"zero_stage": 3}, (1, 4), "default"),
        ({"zero_stage": 3, "data_parallel_replicas": 2}, (2, 2), "default"),
        ({"zero_stage": 2, "pipeline_parallel": 2}, (1, 4), "never"),
        ({"zero_stage": 3, "pipeline_parallel": 2}, (1, 4), "always"),
    ],
)
def test_ranks_shard_the_model_or_hold_replicas_and_zero_3_reshards_after_the_forward_pass(fields, degrees, policy):
    layout = Layout(data_parallel=4, grad_accum_steps=4, **fields, engine="torchtitan")
    made = parallelism_arguments(LLAMA, layout)
    assert (made["data_parallel_replicate_degree"], made["data_parallel_shard_degree"]) == degrees
    assert reshard_policy(layout) == policy


def test_a_pipeline_takes_a_steps_sequences_and_float8_leaves_routers_alone():
    fields = {"micro_batch_size": 2, "grad_accum_steps": 4, "data_parallel": 2}
    assert training_arguments(LLAMA, Layout(**fields))["local_batch_size"] == 2
    assert training_arguments(LLAMA, Layout(**fields, pipeline_parallel=2))["local_batch_size"] == 8
    assert training_arguments(LLAMA, Layout(**fields))["global_batch_size"] == 16
    chunks = modules_by_chunk(LLAMA, Layout(pipeline_parallel=2, virtual_pipeline_stages=2))
    assert chunks is not None
    assert [module for chunk in chunks for module in chunk] == [
        *("tok_embeddings", *(f"layers.{layer}" for layer in range(LLAMA.num_layers)), "norm", "lm_head")
    ]
    assert len(chunks) == 4
    assert modules_by_chunk(LLAMA, Layout()) is None
    with_experts = replace(LLAMA, num_experts=4, experts_per_token=2)
    made = converter(with_experts, Layout(precision="bf16", matmul_precision="fp8_rowwise"))
    assert made[1]["filter_fqns"] == ["lm_head", "router.gate"]


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({}, None),
        ({"activation_checkpointing": "selective"}, "SelectiveAC"),
        ({"activation_checkpointing": "full"}, "FullAC"),
        ({"activation_checkpointing": "full", "recompute_layers": 2}, "FirstLayersAC"),
    ],
)
def test_each_recomputation_is_a_policy(fields, policy):
    found = recomputation_policy(Layout(**fields))
    assert (None if found is None else found[0]) == policy


@pytest.mark.parametrize(
    ("word", "name", "arguments"),
    [
        ("fp8_rowwise", "Float8LinearConverter", {"recipe_name": "rowwise", "filter_fqns": ["lm_head"]}),
        ("fp8_rowwise_with_gw_hp", "Float8LinearConverter", {"recipe_name": "rowwise_with_gw_hp"}),
        ("fp8_tensorwise", "Float8LinearConverter", {"recipe_name": "tensorwise"}),
        ("mxfp8", "MXFP8LinearConverter", {"fqns": ["layers."]}),
    ],
)
def test_all_linear_layers_but_head_and_routers_are_converted_by_the_recipe(word, name, arguments):
    layout = Layout(precision="bf16", matmul_precision=word, torch_compile=True)
    made = converter(LLAMA, layout)
    assert made == (name, made[1] | arguments | {"model_compile_enabled": True})
    assert converter(LLAMA, Layout(precision="bf16")) is None
