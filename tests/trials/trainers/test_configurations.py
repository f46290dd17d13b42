"""Configurations of GPT-NeoX, nanotron and Megatron-DeepSpeed: the layout's values, and the rest of the template."""

from __future__ import annotations

import base64
import json
import math

import pytest
import yaml

from tests.trials.trainers.specs import GPT2, LLAMA, spec_of
from trials.trainers.common.plain_yaml import plain_yaml
from trials.trainers.gpt_neox.config import neox_config
from trials.trainers.nanotron.config import nanotron_config
from trials.trainers.registry import invocation

NEOX = {
    "pipe-parallel-size": 7,
    "data-path": "/data/c4",
    "save": "/precious/checkpoints",
    "checkpoint-factor": 100,
    "optimizer": {"type": "Adam", "params": {"lr": 0.0006}},
    "zero_optimization": {"stage": 3, "contiguous_gradients": True, "cpu_offload": True},
    "fp16": {"enabled": True, "loss_scale_window": 1000},
}


def test_a_neox_config_says_the_layout_and_keeps_the_rest():
    spec = spec_of("gpt-neox", tensor_parallel=2, pipeline_parallel=2, zero_stage=1, activation_checkpointing="full")
    config = neox_config(spec, NEOX)
    said = {"pipe_parallel_size": 2, "model_parallel_size": 2, "checkpoint_activations": True, "num_layers": 8}
    said |= {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4}
    said |= {"attention_config": [[["flash"], 8]], "precision": "bfloat16", "fp16": {"enabled": False}}
    said |= {"train_iters": 40, "log_interval": 1, "intermediate_size": GPT2.ffn_hidden_size}
    said |= {"data_path": "/data/c4", "optimizer": NEOX["optimizer"]}
    assert said.items() <= config.items()
    assert config["zero_optimization"] == {"stage": 1, "contiguous_gradients": True, "overlap_comm": False}
    assert not {"save", "checkpoint_factor", "pipe-parallel-size"} & set(config)


def test_a_neox_config_leaves_the_pipeline_for_zero_2_and_tells_biases():
    spec = spec_of("gpt-neox", zero_stage=2, offload="optimizer", precision="fp16")
    config = neox_config(spec, NEOX)
    assert config["pipe_parallel_size"] == 0
    assert config["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
    assert config["fp16"] == {"enabled": True, "loss_scale_window": 1000}
    assert "bf16" not in config
    said = {"use_bias_in_attn_linear": False, "use_bias_in_mlp": False, "norm": "rmsnorm", "num_kv_heads": 2}
    assert said.items() <= neox_config(spec_of("gpt-neox", LLAMA), {}).items()
    theirs = {"use_bias_in_mlp": False, "num_kv_heads": 2, "rotary_emb_base": 500_000, "use_qk_layernorm": True}
    ours = {"use_bias_in_mlp": True, "num_kv_heads": 4, "rotary_emb_base": 10_000, "use_qk_layernorm": False}
    assert ours.items() <= neox_config(spec_of("gpt-neox"), theirs).items()


@pytest.mark.parametrize(
    ("model", "theirs", "activation"), [(LLAMA, "gelu", "swiglu"), (GPT2, "geglu", "gelu"), (GPT2, "relu", "gelu")]
)
def test_a_neox_model_has_a_gate_where_ours_has_one(model, theirs, activation):
    config = neox_config(spec_of("gpt-neox", model), {"activation": theirs, "mlp_multiple_of": 256})
    assert (config["activation"], config["mlp_multiple_of"]) == (activation, 1)
    assert config["intermediate_size"] == model.ffn_hidden_size * (3 if model.gated_mlp else 1)


def test_neox_takes_its_config_from_its_words():
    spec = spec_of("gpt-neox", trainer={"template": NEOX, "arguments": ["--extra"]})
    made = invocation(spec, "/env/python", "/run/a1")
    assert made.command[:3] == ("/env/python", "/opt/pretrain_gpt.py", "--megatron_config")
    told = json.loads(base64.urlsafe_b64decode(made.command[3]))
    assert told == neox_config(spec, NEOX) == yaml.safe_load(made.files["gpt_neox.yml"])
    assert made.command[4:] == ("--extra",)


NANOTRON = {
    "general": {"project": "mine", "seed": 1},
    "model": {
        "ddp_bucket_cap_mb": 25,
        "dtype": "float32",
        "model_config": {"vocab_size": 7, "rope_theta": 1e-5, "rms_norm_eps": 1e-6},
    },
    "optimizer": {"zero_stage": 0, "clip_grad": 1.0},
    "parallelism": {"dp": 9, "tp_linear_async_communication": True, "expert_parallel_size": 1},
    "tokens": {"limit_val_batches": 0, "train_steps": 1},
}


def test_a_nanotron_config_says_the_layout_and_keeps_the_rest():
    fields = {"tensor_parallel": 2, "pipeline_parallel": 2, "sequence_parallel": True, "zero_stage": 1}
    spec = spec_of("nanotron", LLAMA, {"template": NANOTRON}, pipeline_schedule="gpipe", **fields)
    made = invocation(spec, "python", "/run/a1")
    assert made.command == ("python", "/opt/pretrain_gpt.py", "--config-file", "/run/a1/nanotron.yaml")
    config = yaml.safe_load(made.files["nanotron.yaml"])
    degrees = {"dp": 2, "pp": 2, "tp": 2, "pp_engine": "afab", "tp_mode": "REDUCE_SCATTER", "recompute_layer": False}
    kept = {"tp_linear_async_communication": True, "expert_parallel_size": 1}
    assert config["parallelism"] == degrees | kept
    batch = {"sequence_length": 32, "micro_batch_size": 1, "batch_accumulation_per_replica": 4}
    assert config["tokens"] == batch | {"train_steps": 40, "limit_val_batches": 0}
    assert config["optimizer"] == {"zero_stage": 1, "clip_grad": 1.0}
    assert config["model"]["dtype"] == "bfloat16"
    shape = {"num_key_value_heads": 2, "rope_theta": 10_000, "rms_norm_eps": 1e-6}
    assert shape.items() <= config["model"]["model_config"].items()
    assert config["general"] == {"project": "mine", "seed": spec.seed}


def test_nanotron_overlaps_nothing_alone_and_megatron_deepspeed_finds_its_config():
    config = nanotron_config(spec_of("nanotron", LLAMA), NANOTRON)
    assert config["parallelism"]["tp_mode"] == "ALL_REDUCE"
    assert config["parallelism"]["tp_linear_async_communication"] is False
    spec = spec_of("megatron-deepspeed", zero_stage=0, bucket_mib=10)
    made = invocation(spec, "python", "/run/a1")
    config = json.loads(made.files["megatron_deepspeed_config.json"])
    assert config["train_batch_size"] == spec.global_batch_size
    assert config["bf16"] == {"enabled": True}
    assert config["zero_optimization"]["stage"] == 0  # the layout's, and that of --zero-stage
    assert "/run/a1/megatron_deepspeed_config.json" in made.command


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_one_connection_is_its_default_with_every_zero_stage_since_sequence_parallelism_needs_it(zero_stage):
    spec = spec_of("megatron-deepspeed", zero_stage=zero_stage, tensor_parallel=2, sequence_parallel=True)
    made = invocation(spec, "python", "/run/a1")
    assert (made.environment, made.refused) == ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, {})


@pytest.mark.parametrize("number", [1e-5, -3e-12, 1e22, 0.1, 5.0, 17, math.pi])
def test_every_reader_of_yaml_takes_a_number_for_a_number(number):
    text = plain_yaml({"a": number, "b": [number], "1e-05": "1e-05", 'quote"1e-5': True})
    data = yaml.safe_load(text)
    assert data == json.loads(text) == {"a": number, "b": [number], "1e-05": "1e-05", 'quote"1e-5': True}


def test_not_a_number_is_refused():
    with pytest.raises(ValueError, match="JSON compliant"):
        plain_yaml({"lr": math.nan})
