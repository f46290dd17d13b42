"""Published throughputs read as layouts: what can be said, why the rest cannot, and errors by family."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.published_throughput import (
    Reading,
    family_lines,
    layout_values,
    memory_line,
    model_of,
    read_rows,
    readable,
    readings_lines,
    said_line,
    unknown_values,
)
from search_spaces.layouts.layout import Layout
from tests.benchmarks.published_rows import BRIDGE, QWEN, TITAN, reading, row

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "published" / "throughput_2023_2026.csv"


def test_a_row_that_says_all_is_a_training_with_a_predicted_rate():
    training = reading().training
    assert training is not None
    assert training.model.parameters == 6_658_859_008  # llm-foundry, scripts/train/benchmarking/README.md
    assert (training.layout.zero_stage, training.layout.grad_accum_steps) == (3, 2)
    assert training.predicted == pytest.approx(4641, rel=0.15)


def test_an_accelerator_whose_attention_kernels_are_unknown_has_a_predicted_rate():
    training = reading(accelerator="mi300x-192gb").training
    assert training is not None
    assert (training.older_kernel_s, training.predicted > 0) == (0.0, True)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"note": "LoRA"}, "fine-tuning (LoRA)"),
        ({"model": "Nemotron_3_Nano", "hidden_size": "0"}, "no published shape of a GPT"),
        (TITAN | {"pp": "3", "num_gpus": "24"}, "torchtitan."),
    ],
)
def test_a_row_that_cannot_be_said_has_a_reason(changed: dict[str, str], reason: str):
    found = reading(**changed)
    assert found.training is None
    assert any(each.startswith(reason) for each in found.reasons)


def test_fields_and_words_that_no_layout_has_are_named():
    known = layout_values(row())
    assert not [*unknown_values(known)]
    assert [*unknown_values(known | {"offload": "moon", "warp_parallel": 2})] == ["offload moon", "warp_parallel"]


@pytest.mark.parametrize(
    ("changed", "family"),
    [
        ({}, "dense FSDP"),
        ({"tp": "2", "dp": "4"}, "dense 3D"),
        ({"precision": "fp8"}, "8 and 4 bits"),
        ({"cp": "2", "dp": "4", "precision": "fp8"}, "context"),
        (BRIDGE | QWEN, "experts"),
    ],
)
def test_each_row_has_one_family(changed: dict[str, str], family: str):
    assert reading(**changed).family == family


def test_a_ready_made_model_counts_and_has_the_length_of_the_row():
    model = model_of(row(**QWEN))
    assert model is not None
    assert (model.experts_per_token, model.seq_length) == (8, 2048)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (BRIDGE, {"activation_checkpointing": "none"}),
        (BRIDGE | {"model": "LLAMA3_70B", "zero_stage": "3"}, {"offloaded_layers": 40}),
        (BRIDGE | {"model": "LLAMA3_8B", "zero_stage": "3", "section": "25.11"}, {"recompute_layers": 5}),
        (BRIDGE | {"model": "GPT OSS 120B", "accelerator": "dgx-b200"}, {"recompute_modules": "layernorm+moe_act"}),
        (TITAN | {"pp": "2"}, {"zero_stage": 2, "activation_checkpointing": "selective"}),
        (TITAN | {"precision": "fp8", "tokens_per_s_per_gpu": "624.8"}, {"matmul_precision": "fp8_rowwise"}),
        ({"precision": "fp8"}, {"matmul_precision": "fp8_delayed"}),
    ],
)
def test_recipes_and_code_tell_what_the_row_leaves_open(changed: dict[str, str], told: dict[str, object]):
    assert layout_values(row(**changed)).items() >= told.items()


@pytest.mark.parametrize("changed", [{"tokens_per_s_per_gpu": "624.8"}, {"note": "microbatch not stated"}])
def test_a_row_with_a_named_fault_or_without_its_micro_batch_counts_for_no_error(changed: dict[str, str]):
    found = reading(**TITAN | {"precision": "fp8"} | changed)
    assert found.training is not None
    assert [*family_lines([found])] == []


def test_tensorwise_scaling_of_torchtitan_can_be_said():
    found = reading(**TITAN | {"precision": "fp8"})
    assert (found.family, found.training.layout.matmul_precision) == ("8 and 4 bits", "fp8_tensorwise")


def test_errors_are_told_by_family_and_by_the_release_that_was_measured():
    readings = [reading(), reading(tokens_per_s_per_gpu="1"), reading(**TITAN), reading(note="SFT")]
    assert [(line["family"], line["stack"], line["count"]) for line in family_lines(readings)] == [
        ("dense FSDP", "all", 3),
        ("dense FSDP", "composer-fsdp", 2),
        ("dense FSDP", "torchtitan", 1),
    ]
    assert reading(**BRIDGE, section="26.04 NeMo Container").stack == "megatron-bridge 26.04"
    said = said_line(readings)
    assert (said["rows"], said["from_start"], said["said"], said["reasons"]) == (4, 3, 3, {"fine-tuning (SFT)": 1})
    lines = [said, *readings_lines(readings), *family_lines(readings), memory_line(readings)]
    assert all(readable(line) for line in lines)


@pytest.mark.parametrize(
    ("model", "machine", "release", "values"),
    [
        ("LLAMA3_8B", "dgx-b200", "25.09", ("attn+mlp", False, "alltoall")),
        ("LLAMA3_8B", "dgx-gb200", "25.11", ("full_iteration", False, "alltoall")),
        ("Qwen3_30B_a3B", "h100-80gb", "26.02", ("none", True, "deepep")),
        ("Qwen3_30B_a3B", "dgx-b200", "26.02", ("moe_router+moe_preprocess", False, "alltoall")),
        ("Qwen3_30B_a3B", "dgx-b200", "26.02.01", ("attn+moe_router+moe_preprocess", False, "hybridep")),
        ("GPT OSS 120B", "dgx-gb300", "26.06.01", ("full_iteration", True, "hybridep")),
        ("LLAMA3_70B", "dgx-gb200", "26.06", ("none", False, "alltoall")),
    ],
)
def test_recipes_of_the_row_s_release_say_what_graphs_capture_and_how_tokens_reach_experts(
    model, machine, release, values
):
    found = Layout(**layout_values(row(**BRIDGE, model=model, accelerator=machine, section=f"{release} NeMo", ep="8")))
    assert (found.cuda_graphs, found.expert_overlap, found.expert_dispatcher) == values


def test_rows_that_ran_are_counted_by_their_probability_to_fit():
    larger = reading(micro_batch_size="64", grad_accum="1")
    assert memory_line([reading(), larger, reading(note="SFT")]) == {
        "ran": 2,
        "said_not_to_fit": 1,
        "below_one_half": 1,
    }


def test_composer_reduces_every_micro_batch_and_keeps_no_fp32_logits():
    one, two = (reading(grad_accum=accumulation).training for accumulation in ("1", "2"))
    assert one.fit_probability == two.fit_probability


def test_torchtitan_exchanged_keys_and_values_of_every_query_head():
    """Two ranks of a node, each with 4096 tokens: three more copies of 1024 elements, in bf16, in four passes."""
    titan = TITAN | {"cp": "2", "dp": "4", "recompute": "full", "precision": "fp8", "seq_length": "8192"}
    of_heads = reading(**titan, micro_batch_size="1").training
    assert of_heads is not None
    rate = of_heads.cluster.links.domains[-1].bus_gb_per_s * 1e9
    assert of_heads.repeated_heads_s == pytest.approx(32 * 4 * 3 * (2 * 2 * 4096 * 1024) / rate)
    assert reading(**titan | {"cp": "1", "dp": "8"}).training.repeated_heads_s == 0
    as_now = replace(of_heads, model=replace(of_heads.model, num_key_value_heads=32))
    assert as_now.repeated_heads_s == 0


@pytest.mark.skipif(not PUBLISHED.exists(), reason="no measured tables beside the checkout")
def test_all_published_rows_are_read_and_those_that_cannot_be_said_have_reasons():
    readings = [Reading.of(row) for row in read_rows(PUBLISHED)]
    assert len(readings) == 384
    assert all((found.training is None) == bool(found.reasons) for found in readings)
    assert said_line(readings)["from_start"] == 374
    assert said_line(readings)["said"] >= 0.9 * 374
    memory = memory_line(readings)
    assert memory["said_not_to_fit"] <= 0.02 * memory["ran"]
    assert memory["below_one_half"] <= 0.15 * memory["ran"]
