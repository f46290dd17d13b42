from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.engines import ACCELERATE, PARLAY, TRAINER_ENGINES, TRAINER_KINDS, engines_of
from search_spaces.errors import Problem
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.check import engine_violations
from search_spaces.rules.rule import OfModel, violations
from tests.kit import model
from tests.sources import ROOT
from trials.trainers.common.megatron_options import environment_of
from trials.trainers.megatron_bridge.trainer import MIXED_PRECISIONS, quantization_of
from trials.trainers.megatron_bridge.trainer import RULES as BRIDGE_RULES
from trials.trainers.registry import ENGINE_RULES, TRAINERS

GPT2 = model(vocab_size=256, seq_length=64, tied_embeddings=False)
LLAMA = replace(GPT2, num_key_value_heads=2, gated_mlp=True, position_embedding="rotary", norm="rmsnorm")
LAYOUT = Layout(
    pipeline_parallel=2,
    data_parallel=2,
    grad_accum_steps=4,
    pipeline_schedule="1f1b",
    precision="bf16",
    attention_kernel="flash",
)
TP2 = {"tensor_parallel": 2, "sequence_parallel": True}
OTHERS = [kind for kind in TRAINER_KINDS if kind != PARLAY]


def broken(kind: str, shape: ModelShape = LLAMA, **fields) -> list[str]:
    layout = replace(LAYOUT, engine=engines_of(kind)[-1], **fields)
    return [problem.code for problem in engine_violations(layout, shape, TRAINERS[kind].rules)]


@pytest.mark.parametrize("kind", [kind for kind in OTHERS if kind != ACCELERATE])
def test_every_trainer_but_accelerate_runs_a_plain_pipeline(kind):
    assert broken(kind, LLAMA) == []


@pytest.mark.parametrize(
    ("engine", "fields", "rule"),
    [
        ("megatron-lm", {"pipeline_schedule": "gpipe"}, "pipeline_schedule"),
        ("megatron-lm", {"offload": "optimizer"}, "offload"),
        ("megatron-lm", {"zero_stage": 1, "data_parallel_replicas": 2}, "data_parallel_replicas"),
        ("megatron-lm", {"tensor_parallel": 2, "tensor_parallel_overlap": True}, "tensor_parallel_overlap"),
        ("megatron-lm", {"pipeline_split": "embedding+loss", "last_stage_layers": 3}, "pipeline_split"),
        ("megatron-lm", {"bucket_mib": 25}, "bucket_mib"),
        ("megatron-lm", {"virtual_pipeline_stages": 4}, "layers"),
        ("megatron-lm", {"virtual_pipeline_stages": 2, "grad_accum_steps": 3}, "micro_batches"),
        ("megatron-lm", {"precision": "fp32"}, "attention_kernel"),
        ("megatron-deepspeed", {"zero_stage": 2}, "zero_stage"),
        ("megatron-deepspeed", {"virtual_pipeline_stages": 2}, "pipeline_schedule"),
        ("megatron-deepspeed", {"offload": "optimizer"}, "offload"),
        ("megatron-deepspeed", {"rank_order": "tp-pp-dp"}, "rank_order"),
        ("megatron-deepspeed", {**TP2, "tensor_parallel_overlap": True}, "tensor_parallel_overlap"),
        ("gpt-neox", {"zero_stage": 2}, "zero_stage"),
        ("gpt-neox", {"offload": "optimizer"}, "offload"),
        ("nanotron", {"zero_stage": 2}, "zero_stage"),
        ("nanotron", {"pipeline_parallel": 4, "grad_accum_steps": 2}, "micro_batches"),
        ("nanotron", {"attention_kernel": "math"}, "attention_kernel"),
        ("megatron-lm", {"virtual_pipeline_stages": 2}, None),
        ("megatron-lm", {"tensor_parallel": 2, "sequence_parallel": True, "context_parallel": 2}, None),
        ("megatron-lm", {"pipeline_parallel": 1, "zero_stage": 3}, None),
        ("megatron-lm", {"zero_stage": 1, "offload": "optimizer"}, None),
        ("megatron-deepspeed", {"pipeline_parallel": 1, "zero_stage": 2, "offload": "optimizer"}, None),
        ("nanotron", {"pipeline_schedule": "gpipe", "zero_stage": 1, "grad_accum_steps": 1}, None),
    ],
)
def test_what_a_trainer_cannot_express_is_refused_by_name(engine, fields, rule):
    assert broken(engine, **fields) == ([] if rule is None else [f"{engine}.{rule}"])


EXPERTS = replace(LLAMA, num_experts=4, experts_per_token=2)
TP_PP = {"rank_order": "tp-pp-dp", **TP2}
BIASED = replace(EXPERTS, linear_biases=True)


@pytest.mark.parametrize(
    ("shape", "fields", "rules"),
    [
        (EXPERTS, {"tensor_parallel": 2}, ["tensor_parallel", "expert_groups"]),
        (EXPERTS, {"tensor_parallel": 2, "sequence_parallel": True, "expert_parallel": 2}, []),
        (EXPERTS, {"expert_parallel": 2, "expert_dispatcher": "deepep", "precision": "fp16"}, ["expert_dispatcher"]),
        (replace(EXPERTS, experts_per_token=1), {}, []),
        (replace(EXPERTS, experts_per_token=1, aux_loss_coefficient=0.01), {}, ["experts_per_token"]),
        (EXPERTS, {"expert_tensor_parallel": 2}, ["expert_groups"]),
        (EXPERTS, {"rank_order": "tp-pp-dp", "expert_tensor_parallel": 2}, ["expert_groups", "expert_rank_order"]),
        (EXPERTS, {"rank_order": "tp-pp-dp", "expert_parallel": 2}, ["expert_rank_order"]),
        (EXPERTS, {**TP_PP, "expert_parallel": 2, "expert_tensor_parallel": 2}, ["expert_rank_order"]),
        (BIASED, {**TP2, "expert_tensor_parallel": 2}, ["expert_tensor_parallel"]),
        (replace(BIASED, shared_expert_ffn_hidden_size=64), {}, ["shared_expert_ffn_hidden_size"]),
        (replace(BIASED, gated_mlp=False, activation="gelu"), {}, ["activation"]),
        (replace(LLAMA, num_mtp_layers=1), {}, []),
        (replace(LLAMA, num_mtp_layers=1, position_embedding="learned"), {}, ["num_mtp_layers"]),
    ],
)
def test_megatron_lm_refuses_what_it_cannot_train_of_experts_and_further_tokens(shape, fields, rules):
    assert broken("megatron-lm", shape, **fields) == [f"megatron-lm.{rule}" for rule in rules]


@pytest.mark.parametrize("trainer", ["megatron-deepspeed", "gpt-neox"])
@pytest.mark.parametrize(("field", "value"), [("overlap_comm", True), ("bucket_mib", 25)])
def test_a_reduction_setting_that_deepspeeds_bf16_optimizer_ignores_is_refused(trainer, field, value):
    zero1 = {"pipeline_parallel": 1, "zero_stage": 1, "precision": "bf16"}
    assert broken(trainer, **zero1, **{field: value}) == [f"{trainer}.{field}"]
    for other in ({"zero_stage": 2}, {"precision": "fp16"}, {"offload": "optimizer"}):
        assert broken(trainer, **{**zero1, **other}, **{field: value}) == []


def test_a_model_or_a_norm_that_a_trainer_has_not_is_refused_and_a_command_refuses_none():
    assert broken("nanotron", GPT2) == ["nanotron.gated_mlp", "nanotron.norm", "nanotron.position_embedding"]
    wild = {"zero_stage": 3, "pipeline_schedule": "gpipe", "torch_compile": True, "bucket_mib": 1}
    assert broken("command", **wild) == []
    layout = {"activation_checkpointing": "selective", "recompute_modules": "layernorm"}
    needing = "megatron-lm.recompute_modules"
    assert needing in of_types(GPT2, matmul_precision="fp8_delayed", **layout)
    assert needing not in of_types(GPT2, matmul_precision="fp8_tensorwise", **layout)


@pytest.mark.parametrize(
    ("fields", "rules"),
    [
        ({"tensor_parallel": 2}, ["tensor_parallel"]),
        ({"pipeline_parallel": 2, "pipeline_schedule": "1f1b"}, ["pipeline_parallel"]),
        ({"zero_stage": 1}, ["zero_stage"]),
        ({"activation_checkpointing": "full"}, ["activation_checkpointing"]),
        ({"activation_checkpointing": "selective", "zero_stage": 3}, ["activation_checkpointing"]),
        ({"zero_stage": 3, "data_parallel": 6, "data_parallel_replicas": 4}, ["data_parallel_replicas"]),
        ({"zero_stage": 3, "activation_checkpointing": "full", "precision": "fp32"}, []),
        ({"zero_stage": 3, "data_parallel": 4, "data_parallel_replicas": 2}, []),
    ],
)
def test_accelerate_runs_data_parallel_ranks_and_checkpoints_with_fsdp_only(fields, rules):
    found = broken(ACCELERATE, GPT2, **{"pipeline_parallel": 1, "pipeline_schedule": "none", **fields})
    assert found == [f"accelerate-launch.{rule}" for rule in rules]


MXFP8 = {"matmul_precision": "mxfp8"}
HALF = {"engine": "megatron-lm", "data_parallel": 2, "precision": "bf16", "attention_kernel": "flash"}


def problems_of(shape: ModelShape, **fields) -> list[Problem]:
    layout = Layout(**{**HALF, **fields}, grad_accum_steps=4).canonical()
    return [*engine_violations(layout, shape, ENGINE_RULES)]


def of_types(shape: ModelShape, **fields) -> list[str]:
    return [problem.code for problem in problems_of(shape, **fields)]


def messages(shape: ModelShape, **fields) -> list[str]:
    return [problem.message for problem in problems_of(shape, **fields)]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"matmul_precision": "fp8_tensorwise"}, None),
        ({"matmul_precision": "fp8_rowwise"}, "matmul_precision"),
        ({"matmul_precision": "mxfp8", "precision": "fp32", "attention_kernel": "math"}, "matmul_precision"),
        ({"matmul_precision": "mxfp8", "quantized_weights": True, "zero_stage": 1}, None),
        ({**MXFP8, "quantized_weights": True, "zero_stage": 1, "offload": "optimizer"}, "quantized_weights"),
        ({"gradients_in_bf16": True, "precision": "fp16"}, "gradients_in_bf16"),
        ({"moment_dtype": "fp8", "zero_stage": 1}, None),
        ({"moment_dtype": "bf16"}, "moment_dtype"),
    ],
)
def test_megatron_lm_has_these_types_of_products_weights_gradients_and_moments(fields, code):
    assert of_types(GPT2, **fields) == ([] if code is None else [f"megatron-lm.{code}"])


@pytest.mark.parametrize(
    ("word", "hidden_size", "refused"),
    [("fp8_delayed", 80, False), ("mxfp8", 96, False), ("mxfp8", 80, True), ("nvfp4", 80, True)],
)
def test_a_recipe_takes_multiples_of_its_own(word, hidden_size, refused):
    heads = hidden_size // 16
    sizes = {"hidden_size": hidden_size, "ffn_hidden_size": 128, "num_attention_heads": heads}
    shape = replace(GPT2, **sizes, num_key_value_heads=heads)
    assert of_types(shape, matmul_precision=word) == ["megatron-lm.matmul_dimensions"] * refused


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"matmul_precision": "fp8_tensorwise", "quantized_weights": True}, None),
        ({"matmul_precision": "fp8_tensorwise"}, "quantization"),
        ({"gradients_in_bf16": True}, "gradients_in_bf16"),
        ({"moment_dtype": "bf16"}, "moment_dtype"),
    ],
)
def test_megatron_bridge_has_whole_precisions_by_their_names(fields, code):
    layout = Layout(**HALF, zero_stage=1, **fields)
    found = [problem.code for problem in violations(BRIDGE_RULES, layout.canonical(), OfModel(GPT2), "it")]
    assert found == ([] if code is None else [f"it.{code}"])
    if code is None:
        assert MIXED_PRECISIONS[quantization_of(layout)] == "bf16_with_fp8_current_scaling_mixed"


@pytest.mark.parametrize(("ranks", "heads", "refused"), [(2, 8, True), (4, 8, False), (6, 8, False), (4, 1, True)])
def test_a_hierarchy_has_several_inner_groups_of_two_that_share_heads(ranks, heads, refused):
    shape = replace(GPT2, num_attention_heads=heads, num_key_value_heads=heads)
    layout = Layout(**HALF, context_parallel=ranks, context_transport="a2a_p2p")
    found = [problem.code for problem in engine_violations(layout, shape, TRAINERS["megatron-lm"].rules)]
    assert ("megatron-lm.context_transport" in found) is refused


# -- how Megatron-LM carries out a step

STAGES = {"pipeline_parallel": 2, "virtual_pipeline_stages": 2, "pipeline_schedule": "interleaved_1f1b"}
CAPTURED = {"cuda_graphs": "full_iteration", "expert_parallel": 2, "expert_dispatcher": "hybridep"}
SPLIT = {"tensor_parallel": 2, "sequence_parallel": True, "expert_tensor_parallel": 2}
SQUARED = {"gated_mlp": False, "activation": "squared_relu"}
ROUTED = {"cuda_graphs": "moe_router+moe_preprocess"}
SELECTIVE = {"activation_checkpointing": "selective"}


@pytest.mark.parametrize(
    ("accelerator", "gpus", "fields", "told"),
    [
        ("b200-180gb", 8, {}, "8"),
        ("b200-180gb", 8, {"expert_tensor_parallel": 2, "tensor_parallel": 2, "sequence_parallel": True}, "4"),
        ("gb200-186gb", 4, {}, None),
        ("b200-180gb", 8, {"expert_parallel": 8}, None),
        ("b200-180gb", 8, {"expert_dispatcher": "deepep"}, None),
    ],
)
def test_hybridep_is_told_the_ranks_of_a_domain_where_an_expert_group_has_several(accelerator, gpus, fields, told):
    """NVIDIA-NeMo/Megatron-Bridge, issue 6043: 64 experts' ranks in nodes of 8, and in an NVL72."""
    ranks = {"num_nodes": 64 // gpus, "data_parallel": 64, "expert_parallel": 64}
    layout = Layout(**ranks | {"expert_dispatcher": "hybridep"} | fields)
    assert environment_of(layout, accelerator, gpus).get("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN") == told


def test_overlapped_all_to_alls_want_more_connections():
    plain = Layout(expert_parallel=2, data_parallel=2, engine="megatron-lm")
    overlapped = replace(plain, settings="options.--overlap-moe-expert-parallel-comm=")
    assert environment_of(overlapped, "h100-80gb", 8) == {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    assert environment_of(plain, "h100-80gb", 8) == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    captured = environment_of(replace(plain, **CAPTURED), "h100-80gb", 8)
    assert captured == {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "NVTE_CUTEDSL_FUSED_GROUPED_MLP": "1"}


@pytest.mark.parametrize(
    ("model", "fields", "others"),
    [
        (LLAMA, {"cuda_graphs": "full_iteration", "activation_checkpointing": "full", **STAGES}, []),
        (EXPERTS, {"cuda_graphs": "attn+moe_router", "expert_parallel": 2}, []),
        (EXPERTS, {**ROUTED, **SELECTIVE, "recompute_modules": "layernorm"}, []),
        (replace(EXPERTS, num_dense_layers=1), {"cuda_graphs": "mlp"}, []),
        (LLAMA, {"cuda_graphs": "attn", "activation_checkpointing": "full"}, ["activation_checkpointing full"]),
        (LLAMA, {"cuda_graphs": "attn", "zero_stage": 3}, ["zero_stage 3"]),
        (EXPERTS, {"cuda_graphs": "attn+moe_preprocess"}, [""]),
        (EXPERTS, {"cuda_graphs": "attn+mlp"}, ["layers with an MLP 0"]),
        (EXPERTS, {"cuda_graphs": "full_iteration"}, ["model.num_experts 4 and expert_dispatcher alltoall"]),
        (EXPERTS, {**CAPTURED, **SPLIT}, ["model.num_experts 4 and expert_tensor_parallel 2"]),
        (replace(EXPERTS, **SQUARED), CAPTURED, ["model.num_experts 4 and model.activation squared_relu"]),
        (
            EXPERTS,
            {**ROUTED, **SELECTIVE, "recompute_modules": "moe"},
            ["activation_checkpointing selective and recompute_modules moe"],
        ),
        (
            *(EXPERTS, {"cuda_graphs": "moe_router", **SELECTIVE, "recompute_modules": "layernorm+moe_act"}),
            ["recompute_modules layernorm+moe_act and expert_dispatcher alltoall"],
        ),
    ],
)
def test_graphs_capture_what_megatron_lm_asserts_nothing_of(model, fields, others):
    found = [message.partition(" with ") for message in messages(model, **fields)]
    assert found == [(f"cuda_graphs is {fields['cuda_graphs']}", " with " * bool(o), o) for o in others]


def test_every_package_is_a_trainer_of_the_list_or_shared():
    packages = {path.parent.name for path in (ROOT / "trials" / "trainers").glob("*/__init__.py")}
    assert packages == {"common", *(name.replace("-", "_") for name in TRAINER_ENGINES)}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_trainer_has_rules_for_its_engines_can_be_started_and_its_log_be_read(kind):
    trainer = TRAINERS[kind]
    assert tuple(trainer.rules) == tuple(TRAINER_ENGINES[kind])
    assert trainer.invocation is not None
    assert trainer.log_format is not None or trainer.is_observed or "patterns" in trainer.required_keys
