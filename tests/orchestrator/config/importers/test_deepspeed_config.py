from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.config.importers.deepspeed_config import read_ds_config
from search_spaces.errors import InputError
from search_spaces.layouts.layout import BATCH_RULE
from tests.orchestrator.config.importers.samples import with_key

SIZES = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
BASE = SIZES | {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}


def read(config: dict[str, Any]):
    return read_ds_config(json.dumps(config))


def test_auto_and_missing_values_are_reported_and_left_out():
    found = read({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": "auto"}})
    assert found.global_batch_size is None
    assert not {"grad_accum_steps", "precision", "data_parallel"} & found.layout.keys()
    assert found.notes == (
        "train_batch_size is 'auto', which was not used: the program that starts DeepSpeed sets it.",
        "bf16.enabled is 'auto', which was not used: the program that starts DeepSpeed sets it.",
        "Defaults are those of DeepSpeed 0.19.",
        "gradient_accumulation_steps is not in the file: DeepSpeed derives it from the ranks.",
    )
    assert found.left_open == ("activation_checkpointing", "attention_kernel", "precision")


@pytest.mark.parametrize(
    ("config", "field", "expected"),
    [
        ({"zero_optimization": True}, "zero_stage", 1),
        ({"zero_optimization": {"stage": 3}}, "overlap_comm", True),
        ({"zero_optimization": {"cpu_offload": True}}, "offload", "optimizer"),
        ({"zero_optimization": {"mics_shard_size": -1, "reduce_bucket_size": 5e8}}, "bucket_mib", None),
        ({"pipeline": {"activation_checkpoint_interval": 1}}, "activation_checkpointing", "full"),
        ({"tensor_parallel": {"autotp_size": 4}}, "tensor_parallel", 4),
        ({"bf16": None, "torch_autocast": {"enabled": True, "dtype": "torch.bfloat16"}}, "precision", "bf16"),
        ({"bf16": None, "torch_autocast": {"enabled": True}}, "precision", "fp16"),
        ({"train_micro_batch_size_per_gpu": None, "gradient_accumulation_steps": None}, "grad_accum_steps", 1),
        ({"gradient_accumulation_steps": None}, "grad_accum_steps", None),
        ({"data_efficiency": {"enabled": False, "data_sampling": {"enabled": True}}}, "zero_stage", 2),
    ],
)
def test_a_key_sets_its_layout_field(config, field, expected):
    assert read(BASE | config).layout.get(field) == expected


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("zero_optimization.stage", 4, "zero_stage is written 0, 1, 2 or 3"),
        ("zero_optimization.offload_optimizer.ratio", 0.3, "offload moves the whole optimizer"),
        ("zero_optimization.reduce_bucket_size", -1, "a number of elements above 0"),
        ("zero_optimization.zero_quantized_weights", True, "quantized weights"),
        ("pipeline.activation_checkpoint_interval", 2, "one layer at a time"),
        ("data_types.grad_accum_dtype", "bf16", "sum gradients in fp32"),
        ("compression_training.weight_quantization.shared_parameters.enabled", True, "no field of the model"),
        ("data_efficiency", {"enabled": True}, "changing length"),
    ],
)
def test_what_no_search_file_expresses_is_refused_by_name(name, value, rule):
    with pytest.raises(InputError, match=rule) as refused:
        read(with_key(BASE, name, value))
    (problem,) = refused.value.problems
    assert problem.key.startswith(name)


def test_differences_are_noted():
    _, note = read(with_key(BASE, "optimizer.type", "OneBitAdam")).notes
    assert note.startswith("optimizer.type is OneBitAdam; trials train with AdamW")
    notes = read(with_key(BASE, "torch_autocast.enabled", True)).notes
    assert any(each.startswith("torch_autocast keeps parameters and gradients in fp32") for each in notes)


def test_batch_sizes_that_contradict_each_other_may_leave_one_to_the_trainer():
    with pytest.raises(InputError) as refused:
        read(BASE | {"train_batch_size": 10})
    assert refused.value.problems[0].rule == BATCH_RULE
    assert read(BASE | {"train_batch_size": "auto"}).layout["grad_accum_steps"] == 4
