"""Rules of engines: what each runs, and what it refuses by the name of the rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from search_spaces.adapters import Adapters
from search_spaces.engines import ENGINE_PROFILES, ENGINES, OWN_ENGINES, is_emulated
from search_spaces.hardware.cluster import ACCELERATORS
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.check import engine_violations
from search_spaces.rules.engine_rules import MEGATRON_RULES
from search_spaces.rules.rule import OfModel, violations
from tests.kit import LLAMA as LLAMA_FIELDS
from tests.kit import model

MODEL = model(seq_length=64, vocab_size=256, tied_embeddings=False)
LAYOUT = Layout(pipeline_parallel=2, data_parallel=2, grad_accum_steps=4, pipeline_schedule="1f1b")
LLAMA = {**LLAMA_FIELDS, "num_key_value_heads": 2}
LLAMA_MODEL = replace(MODEL, **LLAMA)


def broken(model: ModelShape = MODEL, **fields: Any) -> list[str]:
    return [problem.code for problem in engine_violations(replace(LAYOUT, **fields), model)]


def name_of(value: object) -> str:
    """A case's name."""
    return "-".join(f"{k}_{v}" for k, v in value.items()) or "plain" if isinstance(value, dict) else str(value)


CORE = {"engine": "megatron-core"}
TITAN = {"engine": "torchtitan", "attention_kernel": "flex"}
ACCELERATE = {"engine": "accelerate", "pipeline_parallel": 1, "data_parallel": 4, "zero_stage": 3}
ONE_STAGE = {"engine": "deepspeed", "pipeline_parallel": 1}
BF16, FLASH = {"precision": "bf16"}, {"attention_kernel": "flash"}
FULL, SELECTIVE = {"activation_checkpointing": "full"}, {"activation_checkpointing": "selective"}
MLP, OPS = {**SELECTIVE, "recompute_modules": "mlp"}, {**SELECTIVE, "recompute_modules": "ops"}
ONE_LAYER = {**FULL, "recompute_layers": 1}
INTERLEAVED = {"pipeline_schedule": "interleaved_1f1b", "virtual_pipeline_stages": 2}
ZBV = {"pipeline_schedule": "zbv", "virtual_pipeline_stages": 2}
DUALPIPEV = {"pipeline_schedule": "dualpipev", "virtual_pipeline_stages": 2}
FSDP = {"pipeline_parallel": 1, "data_parallel": 4, "zero_stage": 3}
SEQUENCE = {"tensor_parallel": 2, "sequence_parallel": True}

RUNS = {
    "torch": [
        *({}, BF16, {"precision": "fp16"}, {"offload": "optimizer"}, SELECTIVE, SEQUENCE, {"torch_compile": True}),
        *({"zero_stage": stage} for stage in (1, 2, 3)),
        *({"virtual_pipeline_stages": 2}, {"rank_order": "tp-pp-dp"}, {"tensor_parallel": 2, **FULL, **FLASH}),
        {"zero_stage": 1, "overlap_comm": True, "bucket_mib": 25},
        {"pipeline_schedule": "gpipe", "grad_accum_steps": 1},
        # Fields without effect break no rule.
        *({**SELECTIVE, "recompute_layers": 1}, {**FULL, "recompute_modules": "mlp"}, {"sequence_parallel": True}),
        *({"data_parallel": 1, "zero_stage": 3}, {"pipeline_parallel": 1, **INTERLEAVED, "grad_accum_steps": 1}),
    ],
    "deepspeed": [
        *({}, {"tensor_parallel": 2, **FULL, **FLASH}, {"grad_accum_steps": 1}),
        *({**ONE_STAGE, "zero_stage": z, "offload": o} for z in (1, 2, 3) for o in ("none", "optimizer")),
        *({**ONE_STAGE, "zero_stage": stage, **BF16} for stage in (1, 2, 3)),
        {**ONE_STAGE, "zero_stage": 1, "precision": "fp16"},
        {**ONE_STAGE, "data_parallel": 1, **BF16},
        {**ONE_STAGE, **SEQUENCE, **SELECTIVE},
        {**ONE_STAGE, "zero_stage": 2, "overlap_comm": True, "bucket_mib": 25, "torch_compile": True},
        {**ONE_STAGE, "zero_stage": 1, "overlap_comm": True, **BF16, "offload": "optimizer"},
        {"zero_stage": 1, "offload": "optimizer", **BF16, "bucket_mib": 25},
        {"rank_order": "tp-pp-dp", "torch_compile": True},
    ],
    "megatron-core": [ONE_LAYER],
    "torchtitan": [
        *({}, {"zero_stage": 2}, {"zero_stage": 3, **BF16, **FLASH}, {**FSDP, "data_parallel_replicas": 2}),
        {**SEQUENCE, "torch_compile": True, "tensor_parallel_overlap": True},
        *(INTERLEAVED, ZBV, DUALPIPEV, SELECTIVE, OPS, ONE_LAYER, {**ZBV, **FULL}),
        *({**BF16, "matmul_precision": word} for word in ("fp8_rowwise", "fp8_tensorwise", "mxfp8")),
        {**BF16, "matmul_precision": "fp8_rowwise_with_gw_hp", "torch_compile": True},
    ],
    "accelerate": [
        *({}, {"zero_stage": 0}, {"zero_stage": 2, **BF16, **FLASH}, {"data_parallel_replicas": 2}),
        {**FULL, "torch_compile": True},
    ],
}
"""Fields that the engines run, beside those of BASE."""
BASE = {"torchtitan": TITAN, "accelerate": ACCELERATE}
SHAPES = {"torch": [MODEL, LLAMA_MODEL], "torchtitan": [LLAMA_MODEL], "accelerate": [MODEL, LLAMA_MODEL]}


@pytest.mark.parametrize(("engine", "fields"), [(e, f) for e, all_of in RUNS.items() for f in all_of], ids=name_of)
def test_an_engine_runs_what_its_trainer_does(engine, fields):
    for shape in SHAPES.get(engine, [MODEL]):
        assert broken(shape, **{"engine": engine} | BASE.get(engine, {}) | fields) == []


REFUSED = {
    "torch": [
        ({"grad_accum_steps": 1}, "micro_batches"),
        ({"virtual_pipeline_stages": 2, "grad_accum_steps": 5}, "rounds"),
        ({"zero_stage": 2, "overlap_comm": True}, "overlap_comm"),
        ({"zero_stage": 3, "bucket_mib": 25}, "bucket_mib"),
        ({"tensor_parallel": 3, "sequence_parallel": True}, "sequence"),
        (ONE_LAYER, "recompute_layers"),
        (ZBV, "pipeline_schedule"),
        ({**FSDP, "data_parallel_replicas": 2}, "data_parallel_replicas"),
        ({"matmul_precision": "fp8_rowwise"}, "matmul_precision"),
    ],
    "deepspeed": [
        ({"pipeline_schedule": "gpipe"}, "pipeline_schedule"),
        ({"zero_stage": 2}, "zero_stage"),
        ({"zero_stage": 3}, "zero_stage"),
        ({"offload": "optimizer"}, "offload"),
        (BF16, "precision"),
        ({"precision": "fp16", "pipeline_parallel": 1}, "precision"),
        ({"overlap_comm": True}, "overlap_comm"),
        ({"overlap_comm": True, "zero_stage": 1, **BF16, "pipeline_parallel": 1}, "overlap_comm"),
        ({"bucket_mib": 25}, "bucket_mib"),
        ({"bucket_mib": 25, "zero_stage": 1, **BF16}, "bucket_mib"),
        ({"torch_compile": True, "zero_stage": 3, "pipeline_parallel": 1}, "torch_compile"),
        (MLP, "recompute_modules"),
        ({"matmul_precision": "fp8_rowwise"}, "matmul_precision"),
    ],
    "megatron-core": [
        # Two stages of four layers.
        ({**FULL, "recompute_layers": 2}, "recompute_layers"),
        ({**ONE_LAYER, **INTERLEAVED}, "recompute_layers"),
        (MLP, "recompute_modules"),
    ],
    "torchtitan": [
        ({"zero_stage": 1}, "zero_stage"),
        ({"precision": "fp16"}, "precision"),
        ({"attention_kernel": "math"}, "attention_kernel"),
        (FLASH, "attention_kernel"),
        ({"overlap_comm": True}, "overlap_comm"),
        ({"rank_order": "tp-pp-dp"}, "rank_order"),
        ({"grad_accum_steps": 1}, "micro_batches"),
        ({**FSDP, "data_parallel_replicas": 3}, "data_parallel_replicas"),
        ({**FSDP, "data_parallel_replicas": 4}, "data_parallel_replicas"),
        ({"pipeline_schedule": "zbv"}, "pipeline_schedule"),
        ({**ZBV, "zero_stage": 3}, "zero_stage"),
        ({**ZBV, "torch_compile": True}, "torch_compile"),
        ({**ZBV, **OPS}, "activation_checkpointing"),
        ({**DUALPIPEV, "grad_accum_steps": 3}, "micro_batches"),
        ({"tensor_parallel": 2, "sequence_parallel": True, "tensor_parallel_overlap": True}, "tensor_parallel_overlap"),
        (MLP, "recompute_modules"),
        ({**FULL, "recompute_layers": 2}, "recompute_layers"),
        ({"matmul_precision": "fp8_rowwise"}, "matmul_precision"),
        ({**BF16, "matmul_precision": "nvfp4"}, "matmul_precision"),
    ],
    "accelerate": [
        ({"tensor_parallel": 2}, "tensor_parallel"),
        ({"pipeline_parallel": 2}, "pipeline_parallel"),
        ({"zero_stage": 1}, "zero_stage"),
        ({"offload": "optimizer"}, "offload"),
        (SELECTIVE, "activation_checkpointing"),
        (ONE_LAYER, "recompute_layers"),
        ({"precision": "fp16"}, "precision"),
        ({"attention_kernel": "flex"}, "attention_kernel"),
        ({"data_parallel_replicas": 4}, "data_parallel_replicas"),
        ({"overlap_comm": True}, "overlap_comm"),
        ({"bucket_mib": 25}, "bucket_mib"),
        ({"matmul_precision": "fp8_rowwise"}, "matmul_precision"),
    ],
}


@pytest.mark.parametrize(
    ("engine", "fields", "rule"), [(e, f, rule) for e, rows in REFUSED.items() for f, rule in rows], ids=name_of
)
def test_what_an_engine_does_not_run_is_refused_by_name(engine, fields, rule):
    shape = LLAMA_MODEL if engine == "torchtitan" else MODEL
    assert broken(shape, **{"engine": engine} | BASE.get(engine, {}) | fields) == [f"{engine}.{rule}"]


@pytest.mark.parametrize("engine", [e for e in ENGINES if e not in OWN_ENGINES])
def test_other_trainers_are_not_ours(engine):
    assert broken(engine=engine) == [f"{engine}.engine_mismatch"]


LATENT_HEADS = {"attention_head_size": 24, "rotary_head_size": 8, "value_head_size": 16}
FEATURES = {
    "attention_head_size": {"attention_head_size": 32},
    "qkv_bias": {"qkv_bias": True},
    "qk_norm": {"qk_norm": True},
    "activation": {"activation": "relu"},
    "clamped_swiglu": {"activation": "clamped_swiglu"},
    "rotary_base": {"rotary_base": 500_000},
    "linear_biases": {"linear_biases": True},
    "sliding_window": {"sliding_window": 8},
    "attention_sinks": {"attention_sinks": True},
    "post_norms": {"post_norms": True},
    "num_experts": {"num_experts": 8, "experts_per_token": 2},
    "key_value_latent_size": {"num_key_value_heads": 4, "key_value_latent_size": 32, **LATENT_HEADS},
    "num_mtp_layers": {"num_mtp_layers": 1},
    "document_length": {"document_length": 8.0},
    "aux_loss_coefficient": {"num_experts": 4, "experts_per_token": 2, "aux_loss_coefficient": 0.01},
    "adapters": {"adapters": Adapters(4), "trainable": ()},
    "qlora": {"adapters": Adapters(4, "qlora"), "trainable": ()},
    "trainable": {"trainable": ("q_proj",)},
}


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_builds_a_feature_of_a_model_or_refuses_it_by_name(engine, name):
    assert {name for profile in ENGINE_PROFILES.values() for name in profile.model_features} == set(FEATURES)
    shape = replace(LLAMA_MODEL, **FEATURES[name])
    assert [*shape.features] in ([name], ["num_experts", name])
    known = ENGINE_PROFILES[engine].model_features
    found = [problem.code for problem in engine_violations(Layout(engine=engine), shape, {engine: ()})]
    assert found == [f"{engine}.{feature}" for feature in shape.features if feature not in known]


QWEN3 = {**LLAMA, "qk_norm": True, "attention_head_size": 32, "rotary_base": 1_000_000}
EXPERTS = {**LLAMA, "num_experts": 4, "experts_per_token": 2, "num_dense_layers": 1}
ZERO = {"zero_stage": 1, **BF16}
MIXED = {**QWEN3, "qkv_bias": True, "activation": "squared_relu"}


@pytest.mark.parametrize(
    ("shape", "fields", "rules"),
    [
        *(({"num_layers": 3}, {"engine": engine}, []) for engine in ("torch", "deepspeed")),
        *(
            ({"hidden_size": 60, "position_embedding": "rotary"}, {"engine": engine}, ["rotary"])
            for engine in ("torch", "deepspeed")
        ),
        # torch's flash attention has neither windows nor sinks
        *(
            ({**LLAMA, **FEATURES[name]}, {"engine": engine, **ZERO, **kernel}, ["attention_kernel"] if kernel else [])
            for name in ("sliding_window", "attention_sinks")
            for engine in ("torch", "deepspeed")
            for kernel in ({}, FLASH)
        ),
        (MIXED, CORE, []),
        (EXPERTS, {**CORE, **SELECTIVE, **BF16, "recompute_modules": "moe_act"}, []),
        (EXPERTS, {**CORE, **SELECTIVE, "recompute_modules": "moe_act"}, ["recompute_modules"]),
        ({}, TITAN, ["norm", "position_embedding", "gated_mlp"]),
        ({**LLAMA, "tied_embeddings": True}, TITAN, ["pipeline_parallel"]),
        ({**LLAMA, "tied_embeddings": True}, {**TITAN, "pipeline_parallel": 1}, []),
        (QWEN3, TITAN, []),
        ({**LLAMA, "qkv_bias": True, "activation": "gelu"}, TITAN, ["qkv_bias", "activation"]),
        ({**EXPERTS, "num_dense_layers": 0}, {**TITAN, **BF16, "matmul_precision": "mxfp8"}, ["matmul_precision"]),
        ({**EXPERTS, "num_dense_layers": 0}, {**TITAN, **BF16, "matmul_precision": "fp8_tensorwise"}, []),
        ({"position_embedding": "rotary"}, ACCELERATE, ["model"]),
        ({"num_key_value_heads": 2}, ACCELERATE, ["kv_heads"]),
        ({"activation": "squared_relu"}, ACCELERATE, []),
        ({**LLAMA, "qkv_bias": True, "num_attention_heads": 6, "attention_head_size": 32}, ACCELERATE, []),
        ({"attention_head_size": 32}, ACCELERATE, ["attention_head_size"]),
        ({"qk_norm": True}, ACCELERATE, ["qk_norm"]),
        ({**LLAMA, "num_attention_heads": 6, "attention_head_size": 32}, ACCELERATE, ["attention_head_size"]),
    ],
    ids=name_of,
)
def test_a_rule_about_a_model_is_of_the_engine_and_the_layout(shape, fields, rules):
    assert broken(replace(MODEL, **shape), **fields) == [f"{fields['engine']}.{rule}" for rule in rules]


@pytest.mark.bad_input(54)
@pytest.mark.parametrize(
    ("engine", "head_size", "is_refused"),
    [
        *((engine, size, False) for engine in ("megatron-core", "torchtitan") for size in (8, 80, 256)),
        *((engine, size, True) for engine in ("megatron-core", "torchtitan") for size in (84, 264)),
        ("torch", 84, False),
    ],
)
def test_heads_for_which_an_engine_has_no_flash_kernel_are_refused(engine, head_size, is_refused):
    shape = replace(LLAMA_MODEL, hidden_size=4 * head_size)
    found = broken(shape, engine=engine, **BF16, **FLASH)
    assert found == ([f"{engine}.flash_head_size"] if is_refused else [])
    other = "flex" if engine == "torchtitan" else "math"
    assert broken(shape, engine=engine, **BF16, attention_kernel=other) == []


@pytest.mark.parametrize(
    ("features", "modules", "rules"),
    [
        ({}, "layernorm", ["recomputed_part"]),
        ({}, "moe", ["recomputed_part"]),
        ({}, "mla_up_proj", ["recomputed_part"]),
        (EXPERTS, "layernorm+mlp+moe+moe_act", []),
        (EXPERTS, "shared_experts", ["recomputed_part"]),
        ({**EXPERTS, "shared_expert_ffn_hidden_size": 64}, "shared_experts", []),
        ({**EXPERTS, "num_dense_layers": 0}, "mlp", ["recomputed_part"]),
        ({**LLAMA, **FEATURES["key_value_latent_size"]}, "layernorm+mla_up_proj", []),
    ],
)
def test_a_module_is_recomputed_where_the_model_has_it(features, modules, rules):
    recomputed = {**SELECTIVE, "recompute_modules": modules}
    layout = replace(LAYOUT, engine="megatron-lm", **BF16, **FLASH, **recomputed)
    found = violations(MEGATRON_RULES, layout.canonical(), OfModel(replace(MODEL, **features)), "it")
    assert [problem.code for problem in found] == [f"it.{rule}" for rule in rules]


def test_a_refusal_names_the_numbers_the_rule_and_the_fix():
    (problem,) = engine_violations(replace(LAYOUT, grad_accum_steps=1), MODEL)
    assert problem.message == "grad_accum_steps is 1 with pipeline_parallel 2 and pipeline_schedule 1f1b"
    assert "at least pipeline_parallel micro-batches" in problem.rule
    assert "micro_batch_size" in problem.fix
    (problem,) = engine_violations(replace(LAYOUT, engine="deepspeed", zero_stage=2), MODEL)
    assert problem.message == "zero_stage is 2 with pipeline_parallel 2"
    assert problem.rule == "DeepSpeed's pipeline engine supports ZeRO stages 0 and 1"
    assert problem.fix == "set zero_stage to 0 or 1, or pipeline_parallel to 1"


@pytest.mark.parametrize(
    ("fields", "rules"),
    [
        ({}, []),
        # Replicas of one data-parallel rank each, which context-parallel ranks shard.
        ({"context_parallel": 4, "data_parallel_replicas": 4}, []),
        ({"zero_stage": 0}, ["context_parallel"]),
        ({**FLASH, **BF16}, ["context_parallel"]),
        ({"context_parallel": 8}, ["context_blocks"]),
        ({"tensor_parallel": 3, "sequence_parallel": True}, ["context_sequence", "sequence"]),
        ({"context_transport": "a2a"}, ["context_transport"]),
    ],
)
def test_torchtitan_splits_sequences_in_blocks_of_flex_attention(fields, rules):
    found = broken(replace(LLAMA_MODEL, seq_length=512), **{**TITAN, **FSDP, "context_parallel": 2} | fields)
    assert found == [f"torchtitan.{rule}" for rule in rules]


@pytest.mark.parametrize(
    ("changes", "fields", "named"),
    [
        ({}, {}, None),
        (
            {"hidden_size": 72, "num_attention_heads": 4},
            {},
            "hidden_size 72 and size of all queries / tensor_parallel 72",
        ),
        ({"ffn_hidden_size": 200}, {}, "ffn_hidden_size / tensor_parallel 200"),
        # Queries, keys and values of 8 heads of 16 elements, over two ranks.
        ({}, {"tensor_parallel": 2}, None),
        ({"ffn_hidden_size": 208}, {"tensor_parallel": 2}, "ffn_hidden_size / tensor_parallel 104"),
        ({"seq_length": 24}, {}, "micro_batch_size x seq_length 24"),
        ({"seq_length": 24}, {"micro_batch_size": 2}, None),
        ({"seq_length": 24}, {"matmul_precision": "fp8_rowwise_with_gw_hp"}, None),
        ({"seq_length": 48}, {"matmul_precision": "fp8_tensorwise"}, None),
        ({"seq_length": 48}, {"matmul_precision": "mxfp8"}, "micro_batch_size x seq_length 48"),
    ],
)
def test_products_with_dimensions_that_8_bits_do_not_take_are_refused_with_them(changes, fields, named):
    wanted = {**TITAN, **BF16, "matmul_precision": "fp8_rowwise"} | fields
    found = list(engine_violations(replace(LAYOUT, **wanted), replace(LLAMA_MODEL, **changes)))
    assert [problem.code for problem in found] == (["torchtitan.matmul_dimensions"] if named else [])
    assert not named or found[0].message == f"matmul_precision is {wanted['matmul_precision']} with {named}"


NATIVE = {"torch", "deepspeed", "command", "accelerate-launch"}
"""Engines that run on a CPU as they are; what a command does is its user's."""


def test_what_is_written_for_gpus_is_emulated_on_a_cpu_and_nowhere_else():
    assert {engine for engine in ENGINES if not is_emulated(engine, "cpu")} == NATIVE
    gpus = set(ACCELERATORS) - {"cpu"}
    assert not any(is_emulated(engine, gpu) for engine in ENGINES for gpu in gpus)
    with pytest.raises(KeyError):
        is_emulated("megatron", "cpu")
