from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from orchestrator.importers.accelerate import looks_like_accelerate, read_accelerate
from orchestrator.importers.accelerate_options import ACCELERATE_OPTIONS
from orchestrator.importers.option_table import Handling
from search_spaces.errors import InputError
from tests.orchestrator.importers import config_tables
from tests.orchestrator.importers.config_tables import keys_with, with_key

FSDP = yaml.safe_load("""
{compute_environment: LOCAL_MACHINE, debug: false, distributed_type: FSDP, downcast_bf16: 'no', machine_rank: 0,
main_training_function: main, mixed_precision: bf16, num_machines: 2, num_processes: 16, rdzv_backend: static,
same_network: true, tpu_env: [], use_cpu: false, fsdp_config: {fsdp_activation_checkpointing: true,
fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_backward_prefetch: BACKWARD_PRE, fsdp_forward_prefetch: false,
fsdp_cpu_ram_efficient_loading: true, fsdp_offload_params: false, fsdp_sharding_strategy: FULL_SHARD,
fsdp_state_dict_type: SHARDED_STATE_DICT, fsdp_use_orig_params: true}}
""")
DEEPSPEED = yaml.safe_load("""
{distributed_type: DEEPSPEED, mixed_precision: fp16, num_processes: 8, deepspeed_config: {zero_stage: 2,
gradient_accumulation_steps: 4, offload_optimizer_device: cpu, offload_param_device: none, zero3_init_flag: false}}
""")
MEGATRON = yaml.safe_load("""
{distributed_type: MEGATRON_LM, mixed_precision: bf16, num_processes: 8, megatron_lm_config: {megatron_lm_tp_degree: 2,
megatron_lm_pp_degree: 2, megatron_lm_num_micro_batches: 4, megatron_lm_sequence_parallelism: true,
megatron_lm_recompute_activations: true, megatron_lm_use_distributed_optimizer: true,
megatron_lm_gradient_clipping: 1.0}}
""")
NAMED = yaml.safe_load("""
{distributed_type: DEEPSPEED, deepspeed_config: {deepspeed_config_file: ds.json}, mixed_precision: bf16,
num_processes: 8}
""")
IN_8_BITS = {"mixed_precision": "fp8", "fp8_config": {"backend": "AO", "pad_inner_dim": True}}
FSDP_IN_8_BITS = FSDP | IN_8_BITS
IN_SCRIPT = "The model and the micro-batch are in the training script, not in the file."


def read(config: dict[str, Any], files: dict[str, Any] | None = None):
    named = None if files is None else (lambda name: json.dumps(files[name]))
    return read_accelerate(yaml.safe_dump(config), named)


def kind_of(name: str) -> dict[str, Any]:
    """A configuration that uses the section of this key."""
    section = name.partition("_config.")[0]
    return {"deepspeed": DEEPSPEED, "megatron_lm": MEGATRON}.get(section, FSDP)


@pytest.mark.parametrize(
    ("config", "engine"), [(FSDP, "accelerate-launch"), (DEEPSPEED, "deepspeed"), (MEGATRON, "megatron-lm")]
)
def test_a_configuration_has_the_engine_of_its_type_and_no_batch(config, engine):
    found = read(config)
    assert looks_like_accelerate(config)
    assert (found.engine, found.global_batch_size) == (engine, None)
    assert [note for note in found.notes if "auto_wrap_policy" not in note] == [IN_SCRIPT]
    assert found.origins["baseline.precision"].startswith("mixed_precision (line ")


def test_replicas_of_shards_are_data_parallel_ranks_too_and_ranks_that_degrees_do_not_fill_are_refused():
    sizes = {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 8}
    layout = read({**FSDP, "parallelism_config": sizes}).layout
    assert (layout["data_parallel"], layout["data_parallel_replicas"]) == (16, 2)
    with pytest.raises(InputError, match="8 ranks are not a multiple of tensor 3"):
        read(with_key(MEGATRON, "megatron_lm_config.megatron_lm_tp_degree", 3))
    with pytest.raises(InputError, match="data_parallel is 2 in the file, but 16 follows"):
        read(with_key(FSDP, "parallelism_config.parallelism_config_dp_shard_size", 2))


def test_a_named_deepspeed_configuration_is_read_and_accelerate_fills_in_its_precision():
    zero = {"stage": 3, "overlap_comm": False}
    stated = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "zero_optimization": zero}
    found = read(NAMED, {"ds.json": {**stated, "bf16": {"enabled": "auto"}}})
    assert (found.layout["zero_stage"], found.layout["micro_batch_size"], found.layout["precision"]) == (3, 2, "bf16")
    assert found.global_batch_size == 64
    assert found.origins["baseline.zero_stage"] == "ds.json: zero_optimization.stage"
    assert read(NAMED, {"ds.json": stated}).layout["precision"] == "bf16"
    assert read(NAMED, {"ds.json": {**stated, "fp16": {"enabled": True}}}).layout["precision"] == "fp16"


def test_a_named_configuration_that_is_not_read_leaves_the_stage_open_and_a_refusal_of_one_names_its_file():
    found = read(NAMED)
    assert "zero_stage" not in found.layout
    assert found.left_open == ("activation_checkpointing", "attention_kernel", "zero_stage")
    assert found.notes[0].startswith("ds.json of deepspeed_config_file was not read")
    with pytest.raises(InputError) as refused:
        read(NAMED, {"ds.json": {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}})
    (problem,) = refused.value.problems
    assert (problem.file, problem.key) == ("ds.json", "zero_optimization.offload_param.device")


def test_a_section_of_another_distributed_type_has_no_effect_and_is_noted():
    found = read({**FSDP, "deepspeed_config": {"zero_stage": 1, "offload_param_device": "cpu"}})
    assert found.layout == read(FSDP).layout
    assert "deepspeed_config has no effect with distributed_type FSDP." in found.notes


@pytest.mark.parametrize(
    ("base", "name", "value", "field", "expected"),
    [
        (FSDP, "fsdp_config.fsdp_sharding_strategy", 3, "zero_stage", 0),
        (FSDP, "fsdp_config.fsdp_reshard_after_forward", "SHARD_GRAD_OP", "zero_stage", 2),
        (FSDP, "fsdp_config", {"fsdp_version": 2, "fsdp_reshard_after_forward": False}, "zero_stage", 2),
        (FSDP, "fsdp_config", {"fsdp_version": 2}, "zero_stage", 3),
        (FSDP, "fsdp_config", {}, "zero_stage", 3),
        (FSDP, "parallelism_config", {"parallelism_config_tp_size": 4}, "tensor_parallel", 4),
        (FSDP, "dynamo_backend", "NO", "torch_compile", None),
        (DEEPSPEED, "deepspeed_config", {}, "zero_stage", 2),
        (MEGATRON, "megatron_lm_config.megatron_lm_recompute_granularity", "full", "activation_checkpointing", "full"),
        (MEGATRON, "megatron_lm_config.megatron_lm_optimizer_cpu_offload", True, "offload", "optimizer"),
        ({"distributed_type": "MULTI_GPU", "num_processes": 2}, "fp16", True, "precision", "fp16"),
    ],
)
def test_a_key_sets_its_layout_field(base, name, value, field, expected):
    assert read(with_key(base, name, value)).layout.get(field) == expected


def test_each_key_keeps_to_its_table(monkeypatch):
    config_tables.require_one_handling_of_each_key(ACCELERATE_OPTIONS)
    for base in (FSDP, DEEPSPEED, MEGATRON):
        for handling, require in (
            (Handling.REFUSED, config_tables.require_refusals),
            (Handling.NOTED, config_tables.require_notes),
            (Handling.NO_EFFECT, config_tables.require_no_effect),
        ):
            names = [name for name in keys_with(ACCELERATE_OPTIONS, handling) if kind_of(name) is base]
            require(read_accelerate, names, base)
    old = {"distributed_type": "MULTI_GPU", "num_processes": 2, "fp16": True}
    configs = [FSDP, FSDP_IN_8_BITS, DEEPSPEED, MEGATRON, NAMED, old, with_key(FSDP, "fsdp_config.fsdp_version", 2)]
    config_tables.require_all_read(read_accelerate, ACCELERATE_OPTIONS, configs, monkeypatch)


@pytest.mark.parametrize(
    ("base", "backend", "word", "note"),
    [
        (FSDP, {"backend": "TE", "override_linear_precision": [False] * 3}, "fp8_delayed", None),
        (FSDP, {"fp8_backend": "te", "fp8_use_mxfp8_block_scaling": True}, "mxfp8", None),
        (FSDP, {"backend": "AO"}, "fp8_tensorwise", "accelerate leaves the first and the last linear layer"),
        (DEEPSPEED, {"backend": "TE"}, "fp8_delayed", None),
        (with_key(FSDP, "fsdp_config.fsdp_version", 2), {"backend": "TE"}, "same", "With FSDP 2 accelerate converts"),
    ],
)
def test_fp8_is_the_recipe_of_its_backend(base, backend, word, note):
    found = read(base | {"mixed_precision": "fp8", "fp8_config": backend})
    assert (found.layout["precision"], found.layout["matmul_precision"]) == ("bf16", word)
    notes = ("accelerate leaves the first", "With FSDP 2 accelerate converts")
    told = [each for each in found.notes if each.startswith(notes)]
    assert len(told) == (note is not None)
    assert all(each.startswith(str(note)) for each in told)


@pytest.mark.parametrize(
    ("base", "name", "value", "rule"),
    [
        (FSDP, "distributed_type", "MULTI_XPU", "the types that can be read are"),
        (FSDP, "compute_environment", "AMAZON_SAGEMAKER", "SageMaker"),
        (FSDP, "mixed_precision", "fp8", "fp8_config names the backend of fp8, TE or AO"),
        (FSDP_IN_8_BITS, "fp8_config", {"backend": "MSAMP"}, "fp8_config names the backend"),
        (FSDP_IN_8_BITS, "fp8_config", {"backend": "TE", "override_linear_precision": [False, False, True]}, "all of"),
        (MEGATRON | IN_8_BITS, "num_processes", 8, "ranks are those of NO, MULTI_GPU, FSDP, DEEPSPEED"),
        (FSDP, "fsdp_config.fsdp_sharding_strategy", "HYBRID_SHARD", "replicas beside shards"),
        (FSDP, "parallelism_config", {"parallelism_config_cp_size": 8}, "context parallelism"),
        (DEEPSPEED, "parallelism_config", {"parallelism_config_sp_size": 2}, "Ulysses"),
        (DEEPSPEED, "parallelism_config", {"parallelism_config_dp_replicate_size": 2}, "replicas of shards are FSDP's"),
        (MEGATRON, "megatron_lm_config.megatron_lm_attention_backend", "ring", "attention_kernel is math or flash"),
        (FSDP, "num_processes", 15, "a multiple of num_machines 2: a search has equal nodes"),
    ],
)
def test_what_no_search_file_expresses_is_refused_by_name(base, name, value, rule):
    with pytest.raises(InputError, match=rule) as refused:
        read(with_key(base, name, value))
    (problem,) = refused.value.problems
    assert problem.key.startswith(name) or problem.value == "fp8"
    assert problem.line


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
