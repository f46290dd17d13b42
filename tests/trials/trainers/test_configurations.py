"""Configurations of GPT-NeoX, nanotron and Megatron-DeepSpeed, and the user's data, tokenizer and packing."""

from __future__ import annotations

import base64
import json
import math
import shlex
from dataclasses import replace
from typing import Any

import pytest
import yaml

from tests.trials.trainers.specs import GPT2, LLAMA, spec_of
from trials.trainers.gpt_neox.trainer import neox_config
from trials.trainers.nanotron.trainer import nanotron_config
from trials.trainers.registry import TRAINERS, invocation
from trials.trainers.table import plain_yaml

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
    for model, activation, wider in (
        *((LLAMA, "swiglu", 3), (replace(LLAMA, activation="relu"), "reglu", 3)),
        *((GPT2, "gelu", 1), (replace(GPT2, activation="silu"), "silu", 1)),
    ):
        said = {"activation": activation, "mlp_multiple_of": 1, "intermediate_size": model.ffn_hidden_size * wider}
        theirs = {"activation": "geglu", "mlp_multiple_of": 256}
        assert said.items() <= neox_config(spec_of("gpt-neox", model), theirs).items()


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
    for zero_stage in (1, 2, 3):
        spec = spec_of("megatron-deepspeed", zero_stage=zero_stage, tensor_parallel=2, sequence_parallel=True)
        made = invocation(spec, "python", "/run/a1")
        assert (made.environment, made.refused) == ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, {})


@pytest.mark.parametrize(
    ("kind", "section", "settings", "words"),
    [
        (
            "megatron-lm",
            {"arguments": ["--lr", "1"]},
            "options.--flag= 'options.--n=1 2' options.--x=4",
            "--flag --n 1 2 --x=4",
        ),
        ("accelerate", {"arguments": ["--tp={tensor_parallel}"]}, "'options.--x={4}'", "--tp=1 --x={4}"),
        ("command", {"template": "train {options}", "patterns": {}}, "options.--x=4", "train --x=4"),
    ],
)
def test_a_searched_option_is_on_the_trainers_command_line(kind, section, settings, words):
    spec = spec_of(kind, settings=settings, trainer=section)
    assert shlex.join(invocation(spec, "python", ".").command).replace("'", "").endswith(words)


def test_a_searched_key_stands_in_the_trainers_configuration():
    options = {"template": {"model": {"dtype": "bfloat16", "x": 1}}}
    made = invocation(
        spec_of("nanotron", LLAMA, settings="options.model.x=2.5 options.y=true", trainer=options), "", "."
    )
    config = yaml.safe_load(made.files["nanotron.yaml"])
    assert (config["model"]["x"], config["y"]) == (2.5, True)


def test_every_reader_of_yaml_takes_a_number_for_a_number_and_what_is_none_is_refused():
    for number in (1e-5, 1.5e-5, -3e-12, -2.5e-7, 1e22, 1.25e22, 0.1, 5.0, 17, math.pi):
        given = {"a": number, "b": [number], "1e-05": "1e-05", 'quote"1e-5': True}
        text = plain_yaml(given)
        assert yaml.safe_load(text) == json.loads(text) == given
    with pytest.raises(ValueError, match="JSON compliant"):
        plain_yaml({"lr": math.nan})


MEGATRON = ("--data-path", "0.3", "/data/a", "0.7", "/data/b c", "--split", "98,2,0", "--tokenizer-type")
MEGATRON += ("HuggingFaceTokenizer", "--tokenizer-model", "/models/gpt2")
PACKED = ("--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss")
STAGES = [{"name": "a", "start_training_step": 1, "data": {"dataset": {"dataset_folder": ["/data/a"]}, "seed": 4}}]
NANOTRON_DATA = {"data_stages": STAGES, "tokenizer": {"tokenizer_name_or_path": "/models/llama"}}
NEOX_DATA = {"data_path": "/data/a_text", "vocab_file": "/data/vocab.json", "tokenizer_type": "HFTokenizer"}
SCRIPT = ("--data=/data/a b", "--pack", "--mbs={micro_batch_size}")

DATA: dict[str, dict[str, Any]] = {
    "megatron-lm": {"arguments": (*MEGATRON, *PACKED)},
    "megatron-deepspeed": {"arguments": (*MEGATRON, *PACKED)},
    "gpt-neox": {"template": NEOX_DATA, "arguments": ("--local_rank=0",)},
    "nanotron": {"template": NANOTRON_DATA, "arguments": ("--job-id", "7")},
    "torchtitan": {"arguments": ("--dataloader.dataset_path", "/data/a b", "--hf_assets_path", "/models/llama")},
    "accelerate": {"arguments": SCRIPT, "patterns": {"step_time_s": "(.+) s"}},
    "command": {"template": "train --data '/data/a b' --mbs {micro_batch_size}", "patterns": {"step_time_s": "(.+) s"}},
}


def test_every_trainer_of_others_has_a_case():
    assert DATA.keys() == {kind for kind, trainer in TRAINERS.items() if trainer.invocation is not None}


OF_LLAMA = ("nanotron", "torchtitan")
OF_SCRIPT = {"accelerate": ("--data=/data/a b", "--pack", "--mbs=1"), "command": ("--data", "/data/a b", "--mbs", "1")}
IN_FILES = {"gpt-neox": ("/data/a_text", "/data/vocab.json", "HFTokenizer"), "nanotron": ("/data/a", "/models/llama")}


@pytest.mark.parametrize("kind", DATA)
def test_a_trial_reads_the_users_data_and_no_mock_data(kind):
    of_kind = {"model": LLAMA, "zero_stage": 1 if kind == "nanotron" else 0} if kind in OF_LLAMA else {}
    started = invocation(spec_of(kind, trainer=DATA[kind], **of_kind), "python", "/attempt")
    words, text = started.command, "\n".join(started.files.values())
    assert not {"--mock-data", "NullTokenizer"} & {*words}
    users = OF_SCRIPT.get(kind) or DATA[kind]["arguments"]
    assert words[-len(users) :] == users
    assert all(path in text for path in IN_FILES.get(kind, ()))
