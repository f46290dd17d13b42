from __future__ import annotations

from typing import Any

import pytest
import yaml

from orchestrator.config.importers.launch_script import read_launch_script
from orchestrator.config.importers.megatron_bridge import (
    imported_overrides,
    looks_like_megatron_bridge,
    read_bridge_config,
)
from orchestrator.config.importers.ranks import Ranks
from orchestrator.config.importers.settings import Setting
from search_spaces.errors import InputError
from tests.orchestrator.config.importers.samples import BRIDGE, with_keys

BASE = {"model": {"tensor_model_parallel_size": 2, "normalization": "RMSNorm"}, "train": {"global_batch_size": 64}}

STAGES = {"model__pipeline_model_parallel_size": 4}
LISTED = [["embedding", *["decoder"] * 3], ["decoder"] * 3, ["decoder"] * 3, ["decoder", "mtp", "loss"]]
BLOCK = {"model__recompute_granularity": "full", "model__recompute_method": "block"}
GRAPHS = {"model__cuda_graph_impl": "transformer_engine"}
UNREAD = "The recipe of these overrides was not read; it decides"
EXPERTS = {"model__num_moe_experts": 8, "model__expert_model_parallel_size": 4}
SQUARED_RELU = {"_target_": "megatron.core.activations.squared_relu", "_call_": False}


def read(**keys: Any):
    named = {name.replace("__", "."): value for name, value in keys.items()}
    return read_bridge_config(yaml.safe_dump(with_keys(BASE, named)))


def overrides(recipe: str | None = None, *ranks: Ranks):
    given = {"model.tensor_model_parallel_size": 2, "model.pipeline_model_parallel_size": 2}
    return imported_overrides({name: Setting(value) for name, value in given.items()}, recipe, *ranks)


def test_overrides_leave_the_rest_to_the_recipe():
    found = read_bridge_config(BRIDGE)
    assert looks_like_megatron_bridge(yaml.safe_load(BRIDGE))
    assert (found.source, found.engine, found.global_batch_size) == ("megatron-bridge", "megatron-lm", 64)
    assert {*found.left_open} == {
        *("offload", "rank_order", "bucket_mib", "recompute_modules", "data_parallel_replicas"),
        *("pipeline_split", "first_stage_layers", "last_stage_layers", "cuda_graphs"),
    }
    assert found.origins["baseline.zero_stage"] == "ddp.use_distributed_optimizer (line 24)"


@pytest.mark.parametrize(
    ("keys", "field", "expected"),
    [
        ({"mixed_precision": "fp16_mixed"}, "precision", "fp16"),
        ({"mixed_precision": "bf16-with-mxfp8-mixed"}, "matmul_precision", "mxfp8"),
        ({"model__virtual_pipeline_model_parallel_size": None}, "virtual_pipeline_stages", 1),
        ({**GRAPHS, "model__num_moe_experts": None, "model__cuda_graph_scope": []}, "cuda_graphs", "attn+mlp"),
        ({**STAGES, "model__pipeline_model_parallel_layout": "Ettt|(tttt|)*2tL"}, "first_stage_layers", 3),
        ({**STAGES, "model__pipeline_model_parallel_layout": LISTED}, "pipeline_split", "own"),
        ({"comm_overlap__tp_comm_overlap": False, "model__tp_comm_overlap": True}, "tensor_parallel_overlap", False),
        ({"comm_overlap__tp_comm_overlap": True, "model__sequence_parallel": False}, "tensor_parallel_overlap", False),
        ({"ddp__overlap_grad_reduce": True, "comm_overlap__overlap_grad_reduce": False}, "overlap_comm", False),
        ({"model__num_query_groups": None, "model__num_attention_heads": 8}, "num_key_value_heads", 8),
        ({"model__ffn_hidden_size": None, "model__hidden_size": 256}, "ffn_hidden_size", 1024),
        ({"model__vocab_size": 1000, "model__should_pad_vocab": True}, "vocab_size", 1024),
        ({"model__activation_func": SQUARED_RELU}, "activation", "squared_relu"),
        ({"model__gated_linear_unit": True, "model__activation_func": "gelu"}, "activation", "gelu"),
        ({"optimizer__exp_avg_dtype": "torch.bfloat16", "optimizer__exp_avg_sq_dtype": "bf16"}, "moment_dtype", "bf16"),
        ({"model__gated_linear_unit": True, "model__activation_func": "torch.nn.functional.silu"}, "activation", None),
        ({"model__rotary_base": 500000, "model__position_embedding_type": "learned_absolute"}, "rotary_base", None),
        ({"model__vocab_size": 1000}, "vocab_size", None),  # the recipe may pad it
        ({"ddp__grad_reduce_in_fp32": False}, "gradients_in_bf16", None),  # the recipe's precision decides it
    ],
)
def test_an_override_sets_its_field_and_with_the_usual_value_none(keys, field, expected):
    found = read(**keys)
    assert {**found.layout, **found.model}.get(field) == expected


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({"mixed_precision": "fp32"}, "precision is bf16 or fp16"),
        (
            {"mixed_precision": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "custom"}},
            "the recipes delayed, tensorwise",
        ),
        ({**STAGES, "model__pipeline_model_parallel_layout": [1]}, "the text has E"),
        ({"model__is_hybrid_model": True}, "no field of the model section"),
        ({"peft": {"_target_": "megatron.bridge.peft.dora.DoRA", "dim": 8}}, "those of megatron.bridge.peft.lora.LoRA"),
        ({"peft__target_modules": ["linear_q", "linear_proj"]}, "linear modules of every layer: linear_qkv,"),
        ({"peft__target_modules": ["*.layers.0.*.linear_qkv"]}, "linear modules of every layer: linear_qkv,"),
        ({"peft": {"dim": 8, "exclude_modules": ["linear_fc1"]}}, "adapters are those of peft.target_modules"),
        ({"model__teacher": {"name": "a"}}, "a search trains a GPT by itself"),
    ],
)
def test_what_no_search_file_expresses_is_refused_by_name(keys, rule):
    with pytest.raises(InputError, match=rule) as refused:
        read(**keys)
    (problem,) = refused.value.problems
    assert any(str(problem.key).startswith(name.replace("__", ".")) for name in keys)
    assert problem.fix


def test_a_recipe_or_command_for_another_training_is_refused():
    with pytest.raises(InputError, match="of a recipe in 8 or 4 bits only the name is known"):
        overrides("llama3_8b_pretrain_8gpu_h100_fp8cs_config")
    with pytest.raises(InputError, match="this is a model of images or sound"):
        overrides("gemma3_vl_4b_sft_1gpu_h100_bf16_config")
    with pytest.raises(InputError, match="adapters are those of megatron"):
        started("--model llama3_8b --mode dora")
    with pytest.raises(InputError, match="it chooses among a node's GPUs"):
        read_launch_script("deepspeed --include localhost:0 run_recipe.py --model llama3_8b")


def test_a_recipe_is_named_decides_experts_and_its_name_has_the_precision():
    assert {"expert_parallel", "expert_tensor_parallel"} <= {*overrides("qwen3_30b_a3b_pretrain_config").left_open}
    assert "expert_parallel" not in overrides("llama3_8b_pretrain_config").left_open
    found = overrides("llama3_8b_pretrain_8gpu_h100_bf16_config", Ranks(2, 8))
    assert (found.layout["precision"], found.layout["data_parallel"], found.layout["num_nodes"]) == ("bf16", 4, 2)
    assert found.origins["baseline.precision"] == "the name of the recipe llama3_8b_pretrain_8gpu_h100_bf16_config"
    assert "precision" not in found.left_open
    assert found.notes[0].startswith(
        "The recipe llama3_8b_pretrain_8gpu_h100_bf16_config was not read; it decides virtual_pipeline_stages, "
    )


LORA = {"kind": "lora", "rank": 16, "alpha": 32, "target_modules": ["linear_qkv", "linear_fc2"]}


@pytest.mark.parametrize(
    ("words", "adapters"),
    [
        ("--model llama3_8b --mode sft", {}),
        ("--recipe llama3_8b_sft_2gpu_h100_bf16_config", {}),
        ("--model llama3_8b --mode lora", {"kind": "lora"}),
        ("--recipe llama3_8b_peft_1gpu_h100_bf16_config 'peft={dim: 16}'", {"kind": "lora", "rank": 16}),
        ("--model a --mode lora peft.dim=16 peft.alpha=32 'peft.target_modules=[linear_qkv,linear_fc2]'", LORA),
    ],
)
def test_a_fine_tuning_is_read_by_its_mode_and_its_adapters_by_their_overrides(words, adapters):
    found = started(words)
    assert (found.finetunes, dict(found.adapters)) == (True, adapters)
    assert found.engine == ("command" if adapters else "megatron-lm")


def test_adapters_of_a_whole_configuration_are_read_and_their_dropout_is_noted():
    of_bridge = {"_target_": "megatron.bridge.peft.lora.LoRA", "dim": 16, "alpha": 32, "dropout": 0.1}
    found = read(peft={**of_bridge, "target_modules": ["linear_qkv", "linear_fc2"], "exclude_modules": []})
    assert dict(found.adapters) == LORA
    assert found.origins["adapters.rank"] == "peft._target_ (line 5), peft.dim (line 7)"
    assert "Trials train without dropout; the overrides set peft.dropout." in found.notes


def test_layers_that_are_recomputed_together_are_another_baseline():
    for granularity, changed in (("full", ["model.recompute_num_layers"]), ("selective", [])):
        found = read(model__recompute_granularity=granularity, model__recompute_num_layers=2)
        assert [problem.key for problem in found.changed] == changed


def test_a_whole_configuration_is_read_without_the_names_of_its_classes():
    found = read(
        model___target_="megatron.bridge.models.llama.llama_provider.Llama3ModelProvider8B",
        model__activation_func={"_target_": "torch.nn.functional.silu", "_call_": False},
        optimizer__main_grads_dtype={"_target_": "torch.float32", "_call_": False},
        optimizer__main_params_dtype={"_target_": "torch.float16", "_call_": False},
    )
    assert "Not read: optimizer.main_grads_dtype, optimizer.main_params_dtype." in found.notes


@pytest.mark.parametrize(
    "name",
    [
        *("ddp.check_for_nan_in_grad", "model.log_max_attention_logit", "ddp.outer_dp_sharding_strategy"),
        *("model.moe_router_force_biased", "optimizer.use_precision_aware_optimizer", "logger.log_interval"),
        "mixed_precision.fp8_margin",
    ],
)
def test_what_no_row_reads_is_named(name):
    (note,) = [note for note in read(**{name: 17, "mixed_precision__bf16": True}).notes if "Not read" in note]
    assert (name if name.partition(".")[0] != "logger" else "logger") in note


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        (
            {"mixed_precision": "bf16_mixed", "model__attention_backend": "fused"},
            "Trials run --attention-backend flash",
        ),
        ({"model__hidden_dropout": 0.1}, "Trials train without dropout; the overrides set hidden_dropout."),
        (
            {"mixed_precision": "bf16_with_fp8_current_scaling_mixed"},
            "Not read: mixed_precision.first_last_layers_bf16.",
        ),
        ({"model__activation_func": "core.fused.quick_gelu"}, "model.activation_func is quick_gelu; the MLP"),
        (BLOCK, f"{UNREAD} pipeline_parallel, virtual_pipeline_stages, pipeline_split, first_stage_layers"),
        ({"model__tensor_model_parallel_size": "${TP}"}, "model.tensor_model_parallel_size is '${TP}', which was not"),
    ],
)
def test_a_difference_from_a_trial_is_noted(keys, note):
    assert any(each.startswith(note) for each in read(**keys).notes)


# -- overrides on a command line


def started(words: str, read_file=None):
    return read_launch_script(f"torchrun --nproc-per-node 8 run_recipe.py {words}", read_file)


def test_an_override_prevails_and_names_a_script_of_ones_own():
    words = "--recipe a_pretrain_config --config-file a.yaml -tp 4 -pp 8 model.pipeline_model_parallel_size=1"
    layout = started(words, lambda name: {"a.yaml": BRIDGE}[name]).layout
    assert (layout["tensor_parallel"], layout["pipeline_parallel"]) == (4, 1)
    assert layout["micro_batch_size"] == 2
    notes = started("--recipe a_pretrain_config --config-file a.yaml train.micro_batch_size=$MBS").notes
    assert "The file behind --config-file was not read; what only it sets is missing." in notes
    assert any(note.startswith("train.micro_batch_size is '$MBS', which was not used") for note in notes)
    found = read_launch_script("torchrun my_train.py model.num_layers=4 train.global_batch_size=8")
    assert (found.source, found.model, found.global_batch_size) == ("megatron-bridge", {"num_layers": 4}, 8)


def test_an_option_of_the_program_is_none_of_the_launchers():
    found = started("--recipe a_pretrain_config --num_gpus 64 -ms 5 --dump_env -xy")
    assert (found.num_nodes, found.gpus_per_node) == (1, 8)
    assert "Not read: --num-gpus, --dump-env, -ms, -xy." in found.notes
    known = "model.num_layers=4 train.global_batch_size=8"
    found = read_launch_script(f"torchrun --nproc-per-node 4 --foo 1 -m my.training --num_gpus 64 {known}")
    assert found.gpus_per_node == 4
    assert "Not read: --foo, --num-gpus." in found.notes
