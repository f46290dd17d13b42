"""Rules of how Megatron-LM carries out a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.check import engine_violations
from tests.trials.trainers.specs import LLAMA
from trials.trainers.common.megatron_options import environment_of
from trials.trainers.registry import ENGINE_RULES

EXPERTS = replace(LLAMA, num_experts=4, experts_per_token=2)
OVERLAPPED = {"expert_overlap": True, "expert_parallel": 2}
STAGES = {"pipeline_parallel": 2, "virtual_pipeline_stages": 2, "pipeline_schedule": "interleaved_1f1b"}
CAPTURED = {"cuda_graphs": "full_iteration", "expert_parallel": 2, "expert_dispatcher": "hybridep"}
SPLIT = {"tensor_parallel": 2, "sequence_parallel": True, "expert_tensor_parallel": 2}
SQUARED = {"gated_mlp": False, "activation": "squared_relu"}
ROUTED = {"cuda_graphs": "moe_router+moe_preprocess"}
SELECTIVE = {"activation_checkpointing": "selective"}


def broken(model: ModelShape, **fields) -> list[str]:
    half = {"engine": "megatron-lm", "data_parallel": 2, "precision": "bf16", "attention_kernel": "flash"}
    layout = Layout(**{**half, "grad_accum_steps": 4, **fields}).canonical()
    return [problem.message for problem in engine_violations(layout, model, ENGINE_RULES)]


@pytest.mark.parametrize(
    ("fields", "mtp_layers", "other"),
    [
        (OVERLAPPED, 0, None),
        ({**OVERLAPPED, **STAGES}, 1, None),
        ({**OVERLAPPED, **SELECTIVE, "recompute_modules": "layernorm+moe_act"}, 0, None),
        ({**OVERLAPPED, "pipeline_parallel": 2}, 0, "pipeline_parallel 2 and virtual_pipeline_stages 1"),
        ({**OVERLAPPED, "activation_checkpointing": "full"}, 0, "activation_checkpointing full of experts"),
        ({**OVERLAPPED, "zero_stage": 2}, 0, "zero_stage 2"),
        ({**OVERLAPPED, "expert_dispatcher": "allgather"}, 0, "expert_dispatcher allgather"),
        (OVERLAPPED, 1, "model.num_mtp_layers 1 and pipeline_parallel 1"),
        ({**OVERLAPPED, **STAGES}, 2, "model.num_mtp_layers 2 and pipeline_parallel 2"),
    ],
)
def test_all_to_alls_overlap_where_megatron_lm_asserts_nothing(fields, mtp_layers, other):
    expected = [] if other is None else [f"expert_overlap is true with {other}"]
    assert broken(replace(EXPERTS, num_mtp_layers=mtp_layers), **fields) == expected


def test_overlapped_all_to_alls_want_more_connections():
    layout = Layout(**OVERLAPPED, data_parallel=2, engine="megatron-lm")
    assert environment_of(layout, "h100-80gb") == {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    plain = replace(layout, expert_overlap=False)
    assert environment_of(plain, "h100-80gb") == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    captured = environment_of(replace(plain, **CAPTURED), "h100-80gb")
    assert captured == {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "NVTE_CUTEDSL_FUSED_GROUPED_MLP": "1"}


@pytest.mark.parametrize(
    ("model", "fields", "others"),
    [
        (LLAMA, {"cuda_graphs": "full_iteration", "activation_checkpointing": "full", **STAGES}, []),
        (EXPERTS, {"cuda_graphs": "attn+moe_router", **OVERLAPPED}, []),
        (EXPERTS, {**ROUTED, **SELECTIVE, "recompute_modules": "layernorm"}, []),
        (replace(EXPERTS, num_dense_layers=1), {"cuda_graphs": "mlp"}, []),
        (LLAMA, {"cuda_graphs": "attn", "activation_checkpointing": "full"}, ["activation_checkpointing full"]),
        (LLAMA, {"cuda_graphs": "attn", "zero_stage": 3}, ["zero_stage 3"]),
        (EXPERTS, {"cuda_graphs": "attn+moe_preprocess"}, ["no moe_router"]),
        (EXPERTS, {"cuda_graphs": "attn+mlp"}, ["experts in every layer"]),
        (EXPERTS, {"cuda_graphs": "full_iteration"}, ["experts and expert_dispatcher alltoall"]),
        (EXPERTS, {**CAPTURED, **SPLIT}, ["expert_tensor_parallel 2"]),
        (replace(EXPERTS, **SQUARED), CAPTURED, ["experts and model.activation squared_relu"]),
        (replace(EXPERTS, num_dense_layers=1), {"cuda_graphs": "mlp", **OVERLAPPED}, ["expert_overlap true"]),
        (EXPERTS, {**ROUTED, **SELECTIVE, "recompute_modules": "moe"}, ["recompute_modules moe"]),
        (
            *(EXPERTS, {"cuda_graphs": "moe_router", **SELECTIVE, "recompute_modules": "layernorm+moe_act"}),
            ["recompute_modules layernorm and expert_dispatcher alltoall"],
        ),
    ],
)
def test_graphs_capture_what_megatron_lm_asserts_nothing_of(model, fields, others):
    assert broken(model, **fields) == [f"cuda_graphs is {fields['cuda_graphs']} with {other}" for other in others]
