from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from orchestrator.config.importers.accelerate import looks_like_accelerate, read_accelerate
from search_spaces.errors import InputError
from tests.orchestrator.config.importers.samples import CORPUS, with_key

FSDP, DEEPSPEED, MEGATRON = (
    yaml.safe_load((CORPUS / f"accelerate_{kind}.yaml").read_text()) for kind in ("fsdp", "deepspeed", "megatron")
)
NAMED = DEEPSPEED | {"deepspeed_config": {"deepspeed_config_file": "ds.json"}}
IN_8_BITS = {"mixed_precision": "fp8", "fp8_config": {"backend": "AO", "pad_inner_dim": True}}
REPLICAS = {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 8}
DELAYED, MXFP8 = ("matmul_precision", "fp8_delayed"), ("matmul_precision", "mxfp8")
FSDP_2 = FSDP | {"fsdp_config": {"fsdp_version": 2}}


def read(config: dict[str, Any], files: dict[str, Any] | None = None):
    named = None if files is None else (lambda name: json.dumps(files[name]))
    return read_accelerate(yaml.safe_dump(config), named)


@pytest.mark.parametrize(
    ("config", "engine"), [(FSDP, "accelerate-launch"), (DEEPSPEED, "deepspeed"), (MEGATRON, "megatron-lm")]
)
def test_a_configuration_has_the_engine_of_its_type_and_what_it_does_not_say_is_open(config, engine):
    found = read(config | {"deepspeed_config": {**config.get("deepspeed_config", {}), "zero3_init_flag": True}})
    assert looks_like_accelerate(config)
    assert (found.engine, found.global_batch_size) == (engine, None)
    release, program, *kernel, unread = found.notes
    assert [note[:36] for note in kernel] == ["Trials run --attention-backend flash"] * (config is MEGATRON)
    assert release == "Defaults are those of accelerate 1.15.0."
    assert program == "The model and the micro-batch are in the training script, not in the file."
    assert unread.startswith("Not read: ")
    assert "deepspeed_config.zero3_init_flag" in unread
    assert found.origins["baseline.precision"].startswith("mixed_precision (line ")
    assert ("attention_kernel" in found.left_open) == (config is not MEGATRON)


def test_a_named_deepspeed_configuration_is_read_and_accelerate_fills_in_its_precision():
    stated = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 3}}
    found = read(NAMED, {"ds.json": {**stated, "bf16": {"enabled": "auto"}}})
    assert (found.layout["zero_stage"], found.layout["micro_batch_size"], found.layout["precision"]) == (3, 2, "bf16")
    assert found.global_batch_size == 64
    assert found.origins["baseline.zero_stage"] == "ds.json: zero_optimization.stage"
    assert read(NAMED, {"ds.json": stated}).layout["precision"] == "bf16"
    assert read(NAMED, {"ds.json": {**stated, "fp16": {"enabled": True}}}).layout["precision"] == "fp16"
    with pytest.raises(InputError) as refused:
        read(NAMED, {"ds.json": {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}})
    (problem,) = refused.value.problems
    assert (problem.file, problem.key) == ("ds.json", "zero_optimization.offload_param.device")


@pytest.mark.parametrize(
    ("base", "name", "value", "field", "expected"),
    [
        (FSDP, "fsdp_config.fsdp_sharding_strategy", 3, "zero_stage", 0),
        (FSDP, "fsdp_config.fsdp_reshard_after_forward", "SHARD_GRAD_OP", "zero_stage", 2),
        (FSDP_2, "fsdp_config.fsdp_reshard_after_forward", False, "zero_stage", 2),
        (FSDP, "deepspeed_config", {"zero_stage": 1}, "zero_stage", 3),
        (FSDP, "parallelism_config", {"parallelism_config_tp_size": 4}, "tensor_parallel", 4),
        (FSDP, "parallelism_config", REPLICAS, "data_parallel_replicas", 2),
        (FSDP, "parallelism_config", REPLICAS, "data_parallel", 16),
        (FSDP, "dynamo_config", {"dynamo_backend": "INDUCTOR"}, "torch_compile", True),
        (DEEPSPEED, "deepspeed_config", {}, "zero_stage", 2),
        (MEGATRON, "megatron_lm_config.megatron_lm_recompute_granularity", "full", "activation_checkpointing", "full"),
        (MEGATRON, "megatron_lm_config.megatron_lm_optimizer_cpu_offload", True, "offload", "optimizer"),
        (FSDP | IN_8_BITS, "fp8_config", {"fp8_backend": "te", "fp8_use_mxfp8_block_scaling": True}, *MXFP8),
        (DEEPSPEED | IN_8_BITS, "fp8_config", {"backend": "TE"}, *DELAYED),
        (FSDP_2 | IN_8_BITS, "debug", False, "matmul_precision", "fp8_tensorwise"),
        ({"distributed_type": "MULTI_GPU", "num_processes": 2}, "fp16", True, "precision", "fp16"),
    ],
)
def test_a_key_sets_its_layout_field(base, name, value, field, expected):
    assert read(with_key(base, name, value)).layout.get(field) == expected


def test_with_fsdp_2_transformer_engine_multiplies_in_bf16_with_a_note():
    found = read(FSDP_2 | IN_8_BITS | {"fp8_config": {"backend": "TE"}})
    assert (found.layout["precision"], found.layout["matmul_precision"]) == ("bf16", "same")
    assert any(each.startswith("With FSDP 2 accelerate never") for each in found.notes)


@pytest.mark.parametrize(
    ("base", "name", "value", "rule"),
    [
        (FSDP, "distributed_type", "MULTI_XPU", "the types that can be read are"),
        (FSDP, "compute_environment", "AMAZON_SAGEMAKER", "SageMaker"),
        (FSDP, "mixed_precision", "fp8", "fp8_config names the backend of fp8, TE or AO"),
        (FSDP | IN_8_BITS, "fp8_config", {"backend": "TE", "override_linear_precision": [False, True]}, "all of whose"),
        (MEGATRON | IN_8_BITS, "num_processes", 8, "ranks are those of NO, MULTI_GPU, FSDP, DEEPSPEED"),
        (FSDP, "fsdp_config.fsdp_sharding_strategy", "HYBRID_SHARD", "replicas beside shards"),
        (FSDP, "parallelism_config", {"parallelism_config_cp_size": 8}, "context parallelism"),
        (FSDP, "parallelism_config", {"parallelism_config_dp_shard_size": 2}, "num_nodes x gpus_per_node"),
        (DEEPSPEED, "parallelism_config", {"parallelism_config_sp_size": 2}, "Ulysses"),
        (
            DEEPSPEED,
            "parallelism_config",
            {"parallelism_config_dp_replicate_size": 2},
            "data_parallel_replicas is written 1",
        ),
        (MEGATRON, "megatron_lm_config.megatron_lm_tp_degree", 3, "num_nodes x gpus_per_node"),
        (FSDP, "dynamo_backend", "EAGER", "torch_compile is the inductor's"),
        (FSDP, "num_processes", 15, "a multiple of num_machines 2: a search has equal nodes"),
    ],
)
def test_what_no_search_file_expresses_is_refused_by_name(base, name, value, rule):
    with pytest.raises(InputError) as refused:
        read(with_key(base, name, value))
    (problem,) = refused.value.problems
    assert (rule in problem.rule, "did you mean" in problem.fix) == (True, False)
    assert rule.startswith("num_nodes") or problem.line
    assert rule.startswith("num_nodes") or problem.key.startswith(name) or problem.value == "fp8"


@pytest.mark.parametrize(
    ("config", "cluster"),
    [
        ({"distributed_type": "NO"}, (1, 1, None)),
        ({"distributed_type": "MULTI_CPU", "num_machines": 4, "num_processes": 16}, (4, 4, "cpu")),
        ({"distributed_type": "MULTI_GPU", "use_cpu": True, "num_processes": 4}, (1, 4, "cpu")),
    ],
)
def test_the_cluster_is_that_of_the_processes(config, cluster):
    found = read(config)
    assert (found.num_nodes, found.gpus_per_node, found.accelerator) == cluster
    assert any(note.startswith("mixed_precision is not in the file: fp32 is its default") for note in found.notes)
