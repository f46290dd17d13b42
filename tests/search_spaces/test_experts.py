"""Experts, latent attention and further tokens: parameters, FLOPs and rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.workload import Workload
from search_spaces.rules.layout_rules import layout_violations
from tests.kit import LLAMA, gpt

DENSE = gpt(6, 64, 4, num_key_value_heads=2, ffn_hidden_size=96, vocab_size=256, seq_length=32, **LLAMA)
EXPERTS = {"num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 48}
LATENT = {
    "num_key_value_heads": 4,
    "attention_head_size": 24,
    "key_value_latent_size": 32,
    "query_latent_size": 40,
    "rotary_head_size": 8,
    "value_head_size": 20,
}


def test_each_expert_is_an_mlp_and_a_token_passes_some():
    model, expert = replace(DENSE, **EXPERTS), 3 * 64 * 48
    router = 8 * 64
    assert model.parameters - DENSE.parameters == 6 * (8 * expert + router - 3 * 64 * 96)
    assert model.active_parameters == model.parameters - 6 * 6 * expert
    dense_as_active = replace(DENSE, ffn_hidden_size=96)
    assert model.model_flops_per_token - dense_as_active.model_flops_per_token == 6 * 6 * router
    assert replace(DENSE, **EXPERTS | {"expert_ffn_hidden_size": 96}).expert_ffn_hidden_size is None


def test_some_layers_keep_their_mlp():
    model = replace(DENSE, **EXPERTS, num_dense_layers=1, expert_layer_every=2, shared_expert_ffn_hidden_size=16)
    assert [model.has_experts(layer) for layer in range(6)] == [False, False, True, False, True, False]
    assert model.num_expert_layers == 2
    of_layer = 8 * 3 * 64 * 48 + 8 * 64 + 3 * 64 * 16
    assert model.parameters - DENSE.parameters == 2 * (of_layer - 3 * 64 * 96)
    assert model.routed_parameters == 2 * 8 * 3 * 64 * 48


def test_latent_attention_and_a_layer_for_further_tokens_have_products_of_their_own():
    model = replace(DENSE, **LATENT)
    queries = 64 * 40 + 40 + 40 * 4 * 24
    keys_and_values = 64 * (32 + 8) + 32 + 32 * 4 * (16 + 20)
    assert model.attention_parameters == queries + keys_and_values + 4 * 20 * 64
    scores = 6 * 6 * 4 * (24 + 20) * 32
    assert model.model_flops_per_token == 6 * (model.parameters - 256 * 64) + scores
    model = replace(DENSE, num_mtp_layers=1)
    layer = DENSE.layer_parameters + 2 * 64 * 64 + 3 * 64
    assert model.parameters - DENSE.parameters == layer
    scores = 12 * 64 * 32
    assert model.model_flops_per_token - DENSE.model_flops_per_token == 6 * (layer + 256 * 64) + scores


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"num_experts": 8}, "experts_per_token"),
        ({"num_dense_layers": 1}, "num_dense_layers"),
        (EXPERTS | {"num_dense_layers": 6}, "num_dense_layers"),
        ({"rotary_head_size": 8}, "rotary_head_size"),
        (LATENT | {"rotary_head_size": 24}, "rotary_head_size"),
        (LATENT | {"qk_norm": True}, "qk_norm"),
        ({"num_mtp_layers": -1}, "num_mtp_layers"),
    ],
)
def test_fields_that_contradict_each_other_are_refused_by_name(fields, key):
    with pytest.raises(InputError) as caught:
        replace(DENSE, **fields)
    assert caught.value.problems[0].key == f"model.{key}"


WORKLOAD = Workload(replace(DENSE, **EXPERTS), Cluster(ACCELERATORS["h100-80gb"], 8, 1), 16)
LAYOUT = {"tensor_parallel": 2, "data_parallel": 4, "grad_accum_steps": 4, "engine": "megatron-lm"}


@pytest.mark.parametrize(
    ("model", "fields", "rule"),
    [
        ({}, {"expert_parallel": 8}, None),
        ({}, {"expert_parallel": 4, "expert_tensor_parallel": 2}, None),
        ({}, {"expert_parallel": 8, "expert_tensor_parallel": 2}, "expert_ranks"),
        ({}, {"expert_parallel": 3}, "experts"),
        ({"expert_ffn_hidden_size": 50}, {"expert_tensor_parallel": 4}, "expert_width"),
        (dict.fromkeys(EXPERTS), {}, None),
        (dict.fromkeys(EXPERTS), {"expert_parallel": 2}, "experts"),
    ],
)
def test_experts_are_distributed_over_the_ranks_of_a_stage(model, fields, rule):
    workload = replace(WORKLOAD, model=replace(WORKLOAD.model, **model))
    broken = [problem.code for problem in layout_violations(Layout(**LAYOUT | fields), workload)]
    assert rule in broken if rule else not broken


@pytest.mark.parametrize(
    ("accelerator", "dispatcher", "is_refused"),
    [
        ("h100-80gb", "deepep", False),
        ("gb200-186gb", "deepep", True),
        ("gb200-186gb", "hybridep", False),
        ("mi300x-192gb", "hybridep", True),
    ],
)
def test_a_librarys_dispatcher_needs_an_accelerator_that_it_runs_on(accelerator, dispatcher, is_refused):
    workload = replace(WORKLOAD, cluster=Cluster(ACCELERATORS[accelerator], 8, 1))
    layout = Layout(**LAYOUT, expert_parallel=2, expert_dispatcher=dispatcher)
    broken = [problem.code for problem in layout_violations(layout, workload)]
    assert broken == ["expert_dispatcher"] * is_refused


def test_an_expert_is_sharded_over_the_ranks_that_hold_it():
    assert Layout(**LAYOUT, expert_parallel=4).expert_shards == 2
    assert Layout(**LAYOUT, expert_parallel=2, expert_tensor_parallel=2).expert_shards == 2
    assert Layout(**LAYOUT).expert_shards == 8
