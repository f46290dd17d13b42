from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.engines import ENGINE_PROFILES, ENGINES, OWN_ENGINES
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.check import engine_violations, rule_violations
from search_spaces.rules.engine_rules import MEGATRON_RULES

MODEL = ModelShape(4, 64, 4, 4, 256, False, 256, 64, False, "learned", "layernorm")
LAYOUT = Layout(pipeline_parallel=2, data_parallel=2, grad_accum_steps=4, pipeline_schedule="1f1b")
LLAMA = {"norm": "rmsnorm", "position_embedding": "rotary", "gated_mlp": True, "num_key_value_heads": 2}


def broken(model: ModelShape = MODEL, **fields) -> list[str]:
    return [problem.code for problem in engine_violations(replace(LAYOUT, **fields), model)]


@pytest.mark.parametrize("engine", ["torch", "deepspeed"])
def test_our_engines_run_pipelines_with_tensor_and_data_parallelism(engine):
    assert broken(engine=engine) == []
    assert broken(engine="torch", precision="bf16") == []
    assert broken(engine=engine, tensor_parallel=2, activation_checkpointing="full", attention_kernel="flash") == []


@pytest.mark.parametrize("engine", [e for e in ENGINES if e not in OWN_ENGINES])
def test_other_trainers_are_not_ours(engine):
    assert broken(engine=engine) == [f"{engine}.engine_mismatch"]


@pytest.mark.parametrize(
    ("engine", "fields", "rule"),
    [
        ("torch", {"grad_accum_steps": 1}, "micro_batches"),
        ("torch", {"virtual_pipeline_stages": 2, "grad_accum_steps": 5}, "rounds"),
        ("deepspeed", {"pipeline_schedule": "gpipe"}, "pipeline_schedule"),
        ("torch", {"zero_stage": 2, "overlap_comm": True}, "fsdp"),
        ("torch", {"zero_stage": 3, "bucket_mib": 25}, "fsdp"),
        ("torch", {"tensor_parallel": 3, "sequence_parallel": True}, "sequence"),
        ("deepspeed", {"zero_stage": 2}, "zero_stage"),
        ("deepspeed", {"zero_stage": 3}, "zero_stage"),
        ("deepspeed", {"offload": "optimizer"}, "offload"),
        ("deepspeed", {"precision": "bf16"}, "precision"),
        ("deepspeed", {"precision": "fp16", "pipeline_parallel": 1}, "precision"),
        ("deepspeed", {"overlap_comm": True}, "overlap_comm"),
        ("deepspeed", {"overlap_comm": True, "zero_stage": 1}, "overlap_comm"),
        (
            "deepspeed",
            {"overlap_comm": True, "zero_stage": 1, "precision": "bf16", "pipeline_parallel": 1},
            "overlap_comm",
        ),
        ("deepspeed", {"bucket_mib": 25}, "bucket_mib"),
        ("deepspeed", {"bucket_mib": 25, "zero_stage": 1, "precision": "bf16"}, "bucket_mib"),
        ("deepspeed", {"overlap_comm": True, "zero_stage": 1, "precision": "bf16"}, "overlap_comm"),
        ("deepspeed", {"torch_compile": True, "zero_stage": 3, "pipeline_parallel": 1}, "torch_compile"),
        ("torch", {"activation_checkpointing": "full", "recompute_layers": 1}, "recompute_layers"),
        ("deepspeed", {"activation_checkpointing": "selective", "recompute_modules": "mlp"}, "recompute_modules"),
        # Two stages of four layers.
        ("megatron-core", {"activation_checkpointing": "full", "recompute_layers": 2}, "recompute_layers"),
        ("megatron-core", {"activation_checkpointing": "selective", "recompute_modules": "mlp"}, "recompute_modules"),
    ],
)
def test_what_an_engine_does_not_run_is_refused_by_name(engine, fields, rule):
    assert broken(engine=engine, **fields) == [f"{engine}.{rule}"]


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
    model = replace(MODEL, hidden_size=4 * head_size, **LLAMA)
    found = broken(model, engine=engine, precision="bf16", attention_kernel="flash")
    assert found == ([f"{engine}.flash_head_size"] if is_refused else [])
    other = "flex" if engine == "torchtitan" else "math"
    assert broken(model, engine=engine, precision="bf16", attention_kernel=other) == []


@pytest.mark.parametrize("engine", ["torch", "deepspeed"])
def test_llama_like_models_are_run_and_rotary_positions_turn_pairs(engine):
    assert broken(replace(MODEL, **LLAMA), engine=engine) == []
    odd = replace(MODEL, hidden_size=60, position_embedding="rotary")
    assert broken(odd, engine=engine) == [f"{engine}.rotary"]


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
    "key_value_latent_size": {
        "num_key_value_heads": 4,
        "key_value_latent_size": 32,
        "attention_head_size": 24,
        "rotary_head_size": 8,
        "value_head_size": 16,
    },
    "num_mtp_layers": {"num_mtp_layers": 1},
    "document_length": {"document_length": 8.0},
    "aux_loss_coefficient": {"num_experts": 4, "experts_per_token": 2, "aux_loss_coefficient": 0.01},
}


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_builds_a_feature_of_a_model_or_refuses_it_by_name(engine, name):
    model = replace(MODEL, **(LLAMA | FEATURES[name]))
    assert [*model.features] in ([name], ["num_experts", name])
    known = ENGINE_PROFILES[engine].model_features
    found = [problem.code for problem in engine_violations(Layout(engine=engine), model, {engine: ()})]
    assert found == [f"{engine}.{feature}" for feature in model.features if feature not in known]


def test_there_is_no_feature_of_a_model_without_a_test():
    assert {name for profile in ENGINE_PROFILES.values() for name in profile.model_features} == set(FEATURES)


@pytest.mark.parametrize("name", ["sliding_window", "attention_sinks"])
@pytest.mark.parametrize("engine", ["torch", "deepspeed"])
def test_torchs_flash_attention_has_neither_windows_nor_sinks(engine, name):
    model, layout = (
        replace(MODEL, **LLAMA, **FEATURES[name]),
        {"engine": engine, "precision": "bf16", "zero_stage": 1},
    )
    assert broken(model, attention_kernel="flash", **layout) == [f"{engine}.flash_mask"]
    assert broken(model, **layout) == []


@pytest.mark.parametrize(
    "fields",
    [
        *({"zero_stage": stage} for stage in (1, 2, 3)),
        {"offload": "optimizer"},
        {"activation_checkpointing": "selective"},
        {"tensor_parallel": 2, "sequence_parallel": True},
        {"virtual_pipeline_stages": 2},
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"torch_compile": True},
        {"rank_order": "tp-pp-dp"},
        {"zero_stage": 1, "overlap_comm": True, "bucket_mib": 25},
    ],
    ids=lambda fields: "-".join(f"{name}_{value}" for name, value in fields.items()),
)
def test_the_torch_engine_runs_every_axis(fields):
    assert broken(**fields) == []


ONE_STAGE = {"engine": "deepspeed", "pipeline_parallel": 1}


@pytest.mark.parametrize(
    "fields",
    [
        *({"zero_stage": stage, "offload": offload} for stage in (1, 2, 3) for offload in ("none", "optimizer")),
        *({"zero_stage": stage, "precision": "bf16"} for stage in (1, 2, 3)),
        {"zero_stage": 1, "precision": "fp16"},
        {"data_parallel": 1, "precision": "bf16"},
        {"tensor_parallel": 2, "sequence_parallel": True, "activation_checkpointing": "selective"},
        {"zero_stage": 2, "overlap_comm": True, "bucket_mib": 25, "torch_compile": True},
        {"zero_stage": 1, "overlap_comm": True, "precision": "bf16", "offload": "optimizer"},
        {"pipeline_parallel": 2, "zero_stage": 1, "offload": "optimizer", "precision": "bf16", "bucket_mib": 25},
        {"pipeline_parallel": 2, "rank_order": "tp-pp-dp", "torch_compile": True},
    ],
    ids=lambda fields: "-".join(f"{name}_{value}" for name, value in fields.items()),
)
def test_the_deepspeed_engine_runs_what_deepspeed_does(fields):
    assert broken(**ONE_STAGE | fields) == []


@pytest.mark.parametrize("engine", ["torch", "deepspeed"])
def test_uneven_stages_are_legal_and_empty_ones_are_not(engine):
    assert broken(replace(MODEL, num_layers=3), engine=engine) == []
    assert broken(replace(MODEL, num_layers=1), engine=engine) == [f"{engine}.layers"]


def test_deepspeed_and_gpipe_run_fewer_micro_batches_than_stages():
    assert broken(engine="deepspeed", grad_accum_steps=1) == []
    assert broken(pipeline_schedule="gpipe", grad_accum_steps=1) == []


EXPERTS = {**LLAMA, "num_experts": 4, "experts_per_token": 2, "num_dense_layers": 1}
_HEADS = {"attention_head_size": 24, "rotary_head_size": 8, "value_head_size": 16}
LATENT = {**LLAMA, "num_key_value_heads": 4, "key_value_latent_size": 16, **_HEADS}


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
        (LATENT, "layernorm+mla_up_proj", []),
    ],
)
def test_a_module_is_recomputed_where_the_model_has_it(features, modules, rules):
    layout = replace(
        LAYOUT,
        engine="megatron-lm",
        precision="bf16",
        activation_checkpointing="selective",
        recompute_modules=modules,
        attention_kernel="flash",
    )
    found = rule_violations("it", MEGATRON_RULES, layout, replace(MODEL, **features))
    assert [problem.code for problem in found] == [f"it.{rule}" for rule in rules]


def test_activations_of_experts_are_recomputed_where_their_products_are_grouped():
    fields = {"activation_checkpointing": "selective", "recompute_modules": "moe_act", "engine": "megatron-core"}
    assert broken(replace(MODEL, **EXPERTS), precision="bf16", **fields) == []
    assert broken(replace(MODEL, **EXPERTS), **fields) == ["megatron-core.grouped_products"]


def test_megatron_core_recomputes_some_layers_or_modules():
    full, selective = {"activation_checkpointing": "full"}, {"activation_checkpointing": "selective"}
    assert broken(engine="megatron-core", recompute_layers=1, **full) == []
    assert broken(replace(MODEL, **LLAMA), engine="megatron-core", recompute_modules="core_attn+mlp", **selective) == []
    chunks = {"virtual_pipeline_stages": 2, "pipeline_schedule": "interleaved_1f1b"}
    assert broken(engine="megatron-core", recompute_layers=1, **full, **chunks) == ["megatron-core.recompute_layers"]


def test_a_field_without_effect_breaks_no_rule():
    assert broken(activation_checkpointing="selective", recompute_layers=1) == []
    assert broken(activation_checkpointing="full", recompute_modules="mlp") == []
    assert broken(tensor_parallel=1, sequence_parallel=True) == []
    assert broken(data_parallel=1, zero_stage=3) == []
    assert broken(pipeline_parallel=1, pipeline_schedule="interleaved_1f1b", grad_accum_steps=1) == []


def test_a_refusal_names_the_numbers_the_rule_and_the_fix():
    (problem,) = engine_violations(replace(LAYOUT, grad_accum_steps=1), MODEL)
    assert problem.message == "1 micro-batches for 2 pipeline stages"
    assert "at least pipeline_parallel micro-batches" in problem.rule
    assert "micro_batch_size" in problem.fix
    (problem,) = engine_violations(replace(LAYOUT, engine="deepspeed", zero_stage=2), MODEL)
    assert problem.message == "zero_stage is 2 with pipeline_parallel 2"
    assert problem.rule == "DeepSpeed's pipeline engine supports ZeRO stages 0 and 1"
    assert problem.fix == "set zero_stage to 0 or 1, or pipeline_parallel to 1"


def broken_in_torchtitan(model: ModelShape | None = None, **fields) -> list[str]:
    base = {"engine": "torchtitan", "attention_kernel": "flex"}
    return broken(model or replace(MODEL, **LLAMA), **base | fields)


V_SCHEDULE = {"virtual_pipeline_stages": 2, "grad_accum_steps": 4}
FSDP = {"pipeline_parallel": 1, "data_parallel": 4, "zero_stage": 3}
OPS = {"activation_checkpointing": "selective", "recompute_modules": "ops"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"zero_stage": 2},
        {"zero_stage": 3, "precision": "bf16", "attention_kernel": "flash"},
        {**FSDP, "data_parallel_replicas": 2},
        {"tensor_parallel": 2, "sequence_parallel": True, "torch_compile": True, "tensor_parallel_overlap": True},
        {"pipeline_schedule": "interleaved_1f1b", "virtual_pipeline_stages": 2},
        {"pipeline_schedule": "zbv", **V_SCHEDULE},
        {"pipeline_schedule": "dualpipev", **V_SCHEDULE},
        {"activation_checkpointing": "selective"},
        OPS,
        {"activation_checkpointing": "full", "recompute_layers": 1},
        {"pipeline_schedule": "zbv", "activation_checkpointing": "full", **V_SCHEDULE},
        {"precision": "bf16", "matmul_precision": "fp8_rowwise"},
        {"precision": "bf16", "matmul_precision": "fp8_rowwise_with_gw_hp", "torch_compile": True},
        {"precision": "bf16", "matmul_precision": "fp8_tensorwise"},
        {"precision": "bf16", "matmul_precision": "mxfp8"},
    ],
)
def test_torchtitan_runs_what_its_trainer_does(fields):
    assert broken_in_torchtitan(**fields) == []


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"zero_stage": 1}, "zero_stage"),
        ({"precision": "fp16"}, "precision"),
        ({"attention_kernel": "math"}, "attention_kernel"),
        ({"attention_kernel": "flash"}, "attention_kernel"),
        ({"overlap_comm": True}, "overlap_comm"),
        ({"rank_order": "tp-pp-dp"}, "rank_order"),
        ({"grad_accum_steps": 1}, "micro_batches"),
        ({**FSDP, "data_parallel_replicas": 3}, "data_parallel_replicas"),
        ({**FSDP, "data_parallel_replicas": 4}, "data_parallel_replicas"),
        ({"pipeline_schedule": "zbv"}, "virtual_pipeline_stages"),
        ({"pipeline_schedule": "zbv", **V_SCHEDULE, "zero_stage": 3}, "zero_stage"),
        ({"pipeline_schedule": "zbv", "torch_compile": True, **V_SCHEDULE}, "torch_compile"),
        ({"pipeline_schedule": "zbv", **OPS, **V_SCHEDULE}, "activation_checkpointing"),
        ({"pipeline_schedule": "dualpipev", **V_SCHEDULE, "grad_accum_steps": 3}, "micro_batches"),
        ({"tensor_parallel": 2, "tensor_parallel_overlap": True}, "tensor_parallel_overlap"),
        ({"activation_checkpointing": "selective", "recompute_modules": "mlp"}, "recompute_modules"),
        ({"activation_checkpointing": "full", "recompute_layers": 2}, "recompute_layers"),
        ({"matmul_precision": "fp8_rowwise"}, "matmul_precision"),
        ({"precision": "bf16", "matmul_precision": "nvfp4"}, "matmul_precision"),
        ({"pipeline_schedule": "interleaved_1f1b", "virtual_pipeline_stages": 4}, "layers"),
    ],
)
def test_what_torchtitan_does_not_run_is_refused_by_name(fields, rule):
    assert broken_in_torchtitan(**fields) == [f"torchtitan.{rule}"]


@pytest.mark.parametrize(
    ("fields", "rules"),
    [
        ({}, []),
        # Replicas of one data-parallel rank each, which context-parallel ranks shard.
        ({"context_parallel": 4, "data_parallel_replicas": 4}, []),
        ({"zero_stage": 0}, ["zero_stage"]),
        ({"attention_kernel": "flash", "precision": "bf16"}, ["attention_kernel"]),
        ({"context_parallel": 8}, ["context_blocks"]),
        ({"tensor_parallel": 3, "sequence_parallel": True}, ["context_sequence", "sequence"]),
        ({"context_transport": "a2a"}, ["context_transport"]),
    ],
)
def test_torchtitan_splits_sequences_in_blocks_of_flex_attention(fields, rules):
    long = replace(MODEL, **LLAMA, seq_length=512)
    found = broken_in_torchtitan(long, **{**FSDP, "context_parallel": 2} | fields)
    assert found == [f"torchtitan.{rule}" for rule in rules]


def test_torchtitan_builds_llama_like_models_alone_and_ties_no_tables_in_a_pipeline():
    assert broken_in_torchtitan(MODEL) == [f"torchtitan.{name}" for name in ("norm", "position_embedding", "gated_mlp")]
    tied = replace(MODEL, **LLAMA, tied_embeddings=True)
    assert broken_in_torchtitan(tied) == ["torchtitan.tied_embeddings"]
    assert broken_in_torchtitan(tied, pipeline_parallel=1) == []


ACCELERATED = {"engine": "accelerate", "pipeline_parallel": 1, "data_parallel": 4, "zero_stage": 3}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"zero_stage": 0},
        {"zero_stage": 2, "precision": "bf16", "attention_kernel": "flash"},
        {"data_parallel_replicas": 2},
        {"activation_checkpointing": "full", "torch_compile": True},
    ],
)
@pytest.mark.parametrize("shape", [{}, LLAMA])
def test_accelerate_runs_gpt2_and_llama_over_data_parallel_ranks(fields, shape):
    assert broken(replace(MODEL, **shape), **ACCELERATED | fields) == []


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"tensor_parallel": 2}, "tensor_parallel"),
        ({"pipeline_parallel": 2}, "pipeline_parallel"),
        ({"zero_stage": 1}, "zero_stage"),
        ({"offload": "optimizer"}, "offload"),
        ({"activation_checkpointing": "selective"}, "activation_checkpointing"),
        ({"activation_checkpointing": "full", "recompute_layers": 1}, "recompute_layers"),
        ({"precision": "fp16"}, "precision"),
        ({"attention_kernel": "flex"}, "attention_kernel"),
        ({"data_parallel_replicas": 4}, "data_parallel_replicas"),
        ({"overlap_comm": True}, "overlap_comm"),
        ({"bucket_mib": 25}, "bucket_mib"),
    ],
)
def test_what_accelerate_does_not_run_is_refused_by_name(fields, rule):
    assert broken(**ACCELERATED | fields) == [f"accelerate.{rule}"]


def test_accelerate_builds_models_that_transformers_has():
    mixed = replace(MODEL, position_embedding="rotary")
    assert broken(mixed, **ACCELERATED) == ["accelerate.model"]
    assert broken(replace(MODEL, num_key_value_heads=2), **ACCELERATED) == ["accelerate.kv_heads"]


@pytest.mark.parametrize(
    ("changes", "fields", "named"),
    [
        ({}, {}, None),
        ({"hidden_size": 72, "num_attention_heads": 4}, {}, "hidden_size 72, size of all queries / tensor_parallel 72"),
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
    model = replace(MODEL, **LLAMA | changes)
    wanted = {
        "engine": "torchtitan",
        "attention_kernel": "flex",
        "precision": "bf16",
        "matmul_precision": "fp8_rowwise",
    }
    found = list(engine_violations(replace(LAYOUT, **wanted | fields), model))
    assert [problem.code for problem in found] == (["torchtitan.matmul_dimensions"] if named else [])
    if named:
        assert found[0].message == f"matmul_precision is {(wanted | fields)['matmul_precision']} with {named}"


@pytest.mark.parametrize("engine", ["torch", "deepspeed", "megatron-core", "accelerate"])
def test_8_bit_products_are_torchtitan_s_own(engine):
    assert f"{engine}.matmul_precision" in broken(engine=engine, matmul_precision="fp8_rowwise")


def test_torchtitan_converts_no_routers_to_8_bits():
    fields = {"engine": "torchtitan", "attention_kernel": "flex", "precision": "bf16"}
    experts = replace(MODEL, **LLAMA, num_experts=4, experts_per_token=2)
    assert broken(experts, **fields, matmul_precision="mxfp8") == ["torchtitan.expert_products"]
    assert broken(experts, **fields, matmul_precision="fp8_tensorwise") == []


QWEN3 = {**LLAMA, "qk_norm": True, "attention_head_size": 32, "rotary_base": 1_000_000}


@pytest.mark.parametrize(
    "shape",
    [
        {"activation": "squared_relu"},
        {**LLAMA, "activation": "gelu", "attention_head_size": 8},
        {**LLAMA, "qkv_bias": True, "num_attention_heads": 6, "attention_head_size": 32},
        {**QWEN3, "num_attention_heads": 6},
    ],
)
def test_accelerate_builds_features_of_transformers_models(shape):
    assert broken(replace(MODEL, **shape), **ACCELERATED) == []


@pytest.mark.parametrize(
    ("shape", "rule"),
    [
        ({"attention_head_size": 32}, "attention_head_size"),
        ({"qk_norm": True}, "qk_norm"),
        ({**LLAMA, "qk_norm": True, "qkv_bias": True}, "qk_norm"),
        ({**LLAMA, "num_attention_heads": 6, "attention_head_size": 32}, "attention_head_size"),
    ],
)
def test_features_that_transformers_models_lack_are_refused_by_name(shape, rule):
    assert broken(replace(MODEL, **shape), **ACCELERATED) == [f"accelerate.{rule}"]


def test_torchtitan_builds_qwen3_and_lacks_biases_and_activations():
    assert broken_in_torchtitan(replace(MODEL, **QWEN3)) == []
    lacking = replace(MODEL, **LLAMA, qkv_bias=True, activation="gelu")
    assert broken_in_torchtitan(lacking) == ["torchtitan.qkv_bias", "torchtitan.activation"]


def test_megatron_core_builds_features_of_several_models_together():
    mixed = replace(MODEL, **QWEN3, qkv_bias=True, activation="squared_relu")
    assert broken(mixed, engine="megatron-core") == []


@pytest.mark.parametrize("field", [{"pipeline_schedule": "zbv", **V_SCHEDULE}, {**FSDP, "data_parallel_replicas": 2}])
def test_v_schedules_and_replicas_are_torchtitan_s_own(field):
    [code] = broken(**field)
    assert code in ("torch.pipeline_schedule", "torch.data_parallel_replicas")
