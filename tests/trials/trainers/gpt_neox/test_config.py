from __future__ import annotations

import base64
import json

import pytest
import yaml

from tests.trials.trainers.specs import GPT2, LLAMA, spec_of
from trials.trainers.gpt_neox.config import neox_config
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
    said = {
        "pipe_parallel_size": 2,
        "model_parallel_size": 2,
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 4,
        "checkpoint_activations": True,
        "attention_config": [[["flash"], 8]],
        "precision": "bfloat16",
        "train_iters": 40,
        "log_interval": 1,
        "num_layers": 8,
        "intermediate_size": GPT2.ffn_hidden_size,
        "data_path": "/data/c4",
        "optimizer": {"type": "Adam", "params": {"lr": 0.0006}},
        "fp16": {"enabled": False},
    }
    assert said.items() <= config.items()
    assert config["zero_optimization"] == {"stage": 1, "contiguous_gradients": True, "overlap_comm": False}
    assert not {"save", "checkpoint_factor", "pipe-parallel-size"} & set(config)


def test_a_neox_config_leaves_the_pipeline_for_zero_2_and_keeps_the_users_loss_scaling():
    spec = spec_of("gpt-neox", zero_stage=2, offload="optimizer", precision="fp16")
    config = neox_config(spec, NEOX)
    assert config["pipe_parallel_size"] == 0
    assert config["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
    assert config["fp16"] == {"enabled": True, "loss_scale_window": 1000}
    assert "bf16" not in config


def test_a_neox_model_without_biases_is_told_so():
    said = {"use_bias_in_attn_linear": False, "use_bias_in_mlp": False, "norm": "rmsnorm", "num_kv_heads": 2}
    assert said.items() <= neox_config(spec_of("gpt-neox", LLAMA), {}).items()
    theirs = {"use_bias_in_mlp": False, "num_kv_heads": 2, "rotary_emb_base": 500_000, "use_qk_layernorm": True}
    ours = {"use_bias_in_mlp": True, "num_kv_heads": 4, "rotary_emb_base": 10_000, "use_qk_layernorm": False}
    assert ours.items() <= neox_config(spec_of("gpt-neox"), theirs).items()


@pytest.mark.parametrize(
    ("model", "theirs", "activation"),
    [(LLAMA, "gelu", "swiglu"), (GPT2, "swiglu", "gelu"), (GPT2, "geglu", "gelu"), (GPT2, "relu", "gelu")],
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
