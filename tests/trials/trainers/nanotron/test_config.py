from __future__ import annotations

import yaml

from tests.trials.trainers.specs import LLAMA, spec_of
from trials.trainers.nanotron.config import nanotron_config
from trials.trainers.registry import invocation

NANOTRON = {
    "general": {"project": "mine", "seed": 1},
    "model": {
        "ddp_bucket_cap_mb": 25,
        "dtype": "float32",
        "model_config": {"vocab_size": 7, "rope_theta": 5e5, "rms_norm_eps": 1e-5},
    },
    "optimizer": {"zero_stage": 0, "clip_grad": 1.0},
    "parallelism": {"dp": 9, "tp_linear_async_communication": True, "expert_parallel_size": 1},
    "tokens": {"limit_val_batches": 0, "train_steps": 1},
}


def test_a_nanotron_config_says_the_layout_and_keeps_the_rest():
    spec = spec_of(
        "nanotron",
        LLAMA,
        trainer={"template": NANOTRON},
        tensor_parallel=2,
        pipeline_parallel=2,
        pipeline_schedule="gpipe",
        sequence_parallel=True,
        zero_stage=1,
    )
    made = invocation(spec, "python", "/run/a1")
    assert made.command == ("python", "/opt/pretrain_gpt.py", "--config-file", "/run/a1/nanotron.yaml")
    config = yaml.safe_load(made.files["nanotron.yaml"])
    assert config["parallelism"] == {
        "dp": 2,
        "pp": 2,
        "tp": 2,
        "pp_engine": "afab",
        "tp_mode": "REDUCE_SCATTER",
        "recompute_layer": False,
        "tp_linear_async_communication": True,
        "expert_parallel_size": 1,
    }
    assert config["tokens"] == {
        "sequence_length": 32,
        "micro_batch_size": 1,
        "batch_accumulation_per_replica": 4,
        "train_steps": 40,
        "limit_val_batches": 0,
    }
    assert config["optimizer"] == {"zero_stage": 1, "clip_grad": 1.0}
    assert config["model"]["dtype"] == "bfloat16"
    assert config["model"]["model_config"]["num_key_value_heads"] == 2
    assert config["model"]["model_config"]["rms_norm_eps"] == 1e-5
    assert config["model"]["model_config"]["rope_theta"] == 10_000.0
    assert config["general"] == {"project": "mine", "seed": spec.seed}


def test_nanotron_overlaps_nothing_without_sequence_parallelism():
    config = nanotron_config(spec_of("nanotron", LLAMA), NANOTRON)
    assert config["parallelism"]["tp_mode"] == "ALL_REDUCE"
    assert config["parallelism"]["tp_linear_async_communication"] is False
