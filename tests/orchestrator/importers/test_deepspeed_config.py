from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from orchestrator.importers.deepspeed_config import looks_like_deepspeed, read_ds_config
from orchestrator.importers.deepspeed_options import DEEPSPEED_OPTIONS
from search_spaces.errors import InputError
from search_spaces.layouts.layout import BATCH_RULE
from tests.orchestrator.importers.config_tables import require_table, with_key

BASE = yaml.safe_load("""
{train_batch_size: 32, train_micro_batch_size_per_gpu: 2, gradient_accumulation_steps: 4, zero_optimization: {stage: 2},
bf16: {enabled: true}}
""")
WHOLE = yaml.safe_load("""
{train_batch_size: 256, train_micro_batch_size_per_gpu: 4, gradient_accumulation_steps: 8, steps_per_print: 2000,
optimizer: {type: AdamW, params: {lr: 1.0e-4, betas: [0.9, 0.95]}}, gradient_clipping: 1.0, aio: {},
scheduler: {type: WarmupLR, params: {warmup_num_steps: 500}}, bf16: {enabled: true},
fp16: {enabled: false, loss_scale: 0}, zero_optimization: {stage: 3, offload_optimizer: {device: cpu, pin_memory: true},
offload_param: {device: none}, overlap_comm: true, contiguous_gradients: true, reduce_bucket_size: 1.0e+8,
stage3_max_live_parameters: 2.0e+9, zero_hpz_partition_size: 1}, flops_profiler: {enabled: true},
data_efficiency: {enabled: false, data_sampling: {enabled: true}}, pipeline: {activation_checkpoint_interval: 1},
wall_clock_breakdown: false}
""")


def read(config: dict[str, Any]):
    return read_ds_config(json.dumps(config))


def read_yaml(text: str):
    return read(yaml.safe_load(text))


def test_a_configuration_gives_layout_and_batch():
    found = read(WHOLE)
    assert looks_like_deepspeed(WHOLE)
    assert found.layout == yaml.safe_load("""
        {data_parallel: 8, micro_batch_size: 4, grad_accum_steps: 8, zero_stage: 3, offload: optimizer,
        activation_checkpointing: full, precision: bf16, overlap_comm: true, bucket_mib: 191}
    """)
    assert found.global_batch_size == 256
    assert found.notes == (
        "zero_optimization.stage3_max_live_parameters was left out: it changes how ranks communicate.",
    )
    assert found.origins["baseline.zero_stage"] == "zero_optimization.stage"
    assert found.origins["global_batch_size"] == "train_batch_size"


def test_the_reader_keeps_to_its_table(monkeypatch):
    autocast = {"torch_autocast": {"enabled": True}, "compile": {"passes": ["z3"]}}
    require_table(read_yaml, DEEPSPEED_OPTIONS, BASE, [WHOLE, {"train_batch_size": 8, **autocast}], monkeypatch)


def test_auto_and_missing_values_are_reported_and_left_out():
    found = read({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": "auto"}})
    assert found.global_batch_size is None
    assert found.layout == {"micro_batch_size": 2, "zero_stage": 0}
    assert found.notes == (
        "train_batch_size is 'auto', which was not used: the program that starts DeepSpeed sets it.",
        "bf16.enabled is 'auto', which was not used: the program that starts DeepSpeed sets it.",
        "gradient_accumulation_steps is not in the file: DeepSpeed derives it from the ranks.",
    )
    assert found.left_open == ("activation_checkpointing", "attention_kernel", "precision")


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("zero_optimization", True, "zero_stage", 1),
        ("zero_optimization", {"stage": 3}, "overlap_comm", True),
        ("zero_optimization.overlap_comm", True, "overlap_comm", True),
        ("zero_optimization.cpu_offload", True, "offload", "optimizer"),
        ("zero_optimization.reduce_bucket_size", 5e8, "bucket_mib", None),
        ("zero_optimization.reduce_bucket_size", 5e7, "bucket_mib", 95),
        ("bf16", None, "precision", "fp32"),
        ("pipeline.activation_checkpoint_interval", 2, "activation_checkpointing", "full"),
        ("tensor_parallel.autotp_size", 4, "tensor_parallel", 4),
    ],
)
def test_a_key_sets_its_layout_field(name, value, field, expected):
    assert read(with_key(BASE, name, value)).layout.get(field) == expected


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        ({"bfloat16": {"enabled": True}}, "precision", "bf16"),
        ({"torch_autocast": {"enabled": True, "dtype": "torch.bfloat16"}}, "precision", "bf16"),
        ({"torch_autocast": {"enabled": True}}, "precision", "fp16"),
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": True}}, "precision", "fp16"),
        ({}, "grad_accum_steps", 1),
        ({"train_micro_batch_size_per_gpu": 2}, "grad_accum_steps", None),
    ],
)
def test_the_section_that_is_on_has_the_precision_and_one_batch_size_alone_no_accumulation(config, field, value):
    assert read({"train_batch_size": 8, **config}).layout.get(field) == value


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("zero_optimization.stage", 4, "a ZeRO stage is 0, 1, 2 or 3"),
        ("zero_optimization.offload_optimizer.ratio", 0.3, "offload moves the whole optimizer"),
        ("zero_optimization.reduce_bucket_size", -1, "a number of elements above 0"),
        ("optimizer.type", "OneBitAdam", "compressed to one bit"),
        ("torch_autocast.dtype", "int8", "precision is fp32, bf16 or fp16"),
        ("compile.passes", ["autosp"], "Ulysses"),
        ("pipeline.activation_checkpoint_interval", True, "a whole number"),
    ],
)
def test_what_no_search_file_expresses_is_refused_by_name(name, value, rule):
    with pytest.raises(InputError, match=rule) as refused:
        read(with_key(BASE, name, value))
    (problem,) = refused.value.problems
    assert problem.key == name


def test_layers_recomputed_together_are_another_baseline_and_other_optimizers_and_autocast_noted():
    name = "pipeline.activation_checkpoint_interval"
    changed = [[problem.key for problem in read(with_key(BASE, name, layers)).changed] for layers in (1, 2)]
    assert changed == [[], [name]]
    (note,) = read(with_key(BASE, "optimizer.type", "Lion")).notes
    assert note.startswith("optimizer.type is Lion; trials train with AdamW")
    notes = read(with_key(BASE, "torch_autocast.enabled", True)).notes
    assert any(each.startswith("torch_autocast keeps parameters and gradients in fp32") for each in notes)


def test_batch_sizes_that_contradict_each_other_may_leave_one_to_the_trainer():
    config = {"train_batch_size": 10, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    with pytest.raises(InputError) as refused:
        read(config)
    assert refused.value.problems[0].rule == BATCH_RULE
    assert refused.value.problems[0].fix.startswith("a multiple of 8, or auto")
    assert read(config | {"train_batch_size": "auto"}).layout["grad_accum_steps"] == 4
