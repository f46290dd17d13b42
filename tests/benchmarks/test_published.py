"""Published step times and throughputs: what a row says, its prediction, and errors without each family's tuning."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.published import COLUMNS, Row, columns_of, published_lines, read_rows
from benchmarks.published_choices import choice_lines, replay_lines
from benchmarks.published_left_out import TUNED, changed, lines
from benchmarks.published_throughput import (
    Reading,
    errors_of,
    layout_values,
    memory_line,
    readings_in,
    said_line,
)

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "published" / "throughput_2023_2026.csv"
PAPERS = """# where it comes from
source,table,model,n_layers,hidden,n_heads,vocab,seq_len,gpu,n_gpus,tp,pp,dp,vp,global_batch,micro_batch,zero_stage,\
recompute,seq_parallel,iter_time_s,tflops_gpu,mfu
Narayanan et al. SC21 arXiv:2104.04473,Table 1,GPT-1.7B,24,2304,24,51200,2048,A100-80GB,32,1,1,32,,512,16,0,full,no,\
,137,
Korthikanti et al. arXiv:2205.05198,Table 5,175B,96,12288,96,51200,2048,A100-80GB,64,8,8,1,3,64,1,0,selective,yes,\
13.75,,51.4
Smith et al. MT-NLG arXiv:2201.11990 sec 2.4,text,530B,105,20480,128,50257,2048,A100-80GB,2240,8,35,8,,1920,1,,full,,\
60.1,126,
"""
SAYS_TOO_LITTLE = [
    "Korthikanti,Table 4,22B layer,,,6144,64,,2048,A100-80GB,8,8,1,,,,4,,full,,0.0272,,",
    # The stated numbers are no layout: 8 x 8 ranks of 32, and a batch of 10 over 32 ranks.
    "SC21,x,x,24,2304,24,51200,2048,A100-80GB,32,8,8,32,,512,16,0,full,no,3.5,,",
    "SC21,x,x,24,2304,24,51200,2048,A100-80GB,32,1,1,32,,10,1,0,full,no,3.5,,",
    # Megatron-DeepSpeed's authors do not say whether they count recomputation.
    "MT-NLG,x,x,105,20480,128,50257,2048,A100-80GB,2240,8,35,8,,1920,1,,full,,,126,",
]


def paper_lines(tmp_path: Path, text: str) -> list[dict]:
    (tmp_path / "papers.csv").write_text(text)
    assert columns_of(tmp_path / "papers.csv") >= COLUMNS
    return list(published_lines([tmp_path / "papers.csv"]))


def test_rows_that_state_layout_and_time_or_counting_are_met_within_15_percent(tmp_path: Path):
    *found, sc21, korthikanti, mt_nlg = paper_lines(tmp_path, PAPERS)
    assert [line["source"] for line in found] == ["SC21 Table 1", "Korthikanti Table 5", "MT-NLG text"]
    # 96 B s L h^2 (1 + s / 6h + V / 16Lh) at 137 TFLOP/s on 32 GPUs: the paper's own formula.
    assert found[0]["published"] == pytest.approx(3.53, abs=0.01)
    assert all(abs(line["error"]) <= 0.15 for line in found)
    assert [line["error_max"] for line in (sc21, korthikanti, mt_nlg)] == [abs(line["error"]) for line in found]


def test_rows_that_say_too_little_are_left_out(tmp_path: Path):
    header = PAPERS.splitlines()[1]
    assert paper_lines(tmp_path, "\n".join([header, *SAYS_TOO_LITTLE]) + "\n") == []


# -- throughputs

MPT_CSV = """\
model,num_layers,hidden_size,num_attention_heads,num_key_value_heads,ffn_hidden_size,gated_mlp,vocab_size,\
seq_length,tied_embeddings,position_embedding,norm,num_experts,accelerator,num_gpus,gpus_per_node,trainer,\
section,tp,pp,vp,dp,cp,ep,zero_stage,micro_batch_size,grad_accum,recompute,sequence_parallel,compile,precision,\
tokens_per_s_per_gpu,note
mpt-7b,32,4096,32,32,16384,0,50368,2048,1,learned,layernorm,,a100-80gb,8,8,composer-fsdp,,1,1,1,8,1,1,3,6,2,\
none,0,0,bf16,4641.25,
"""
MPT: Row = next(csv.DictReader(MPT_CSV.splitlines()))
TITAN = {"trainer": "torchtitan", "model": "llama3-8b", "recompute": "selective-op"}
BRIDGE = {"trainer": "megatron-bridge", "recompute": "?", "zero_stage": "1"}


def reading(**changed: str) -> Reading:
    return Reading.of(row(**changed))


def row(**changed: str) -> Row:
    return MPT | changed


def test_a_row_that_says_all_is_a_training_with_a_predicted_rate():
    training = reading().training
    assert training is not None
    assert training.model.parameters == 6_658_859_008  # llm-foundry, scripts/train/benchmarking/README.md
    assert (training.layout.zero_stage, training.layout.grad_accum_steps) == (3, 2)
    assert training.predicted == pytest.approx(4641, rel=0.15)


def test_a_row_of_a_chip_whose_attention_kernels_are_unknown_has_a_predicted_rate():
    training = reading(accelerator="mi300x-192gb").training
    assert training is not None
    assert (training.older_kernel_s, training.predicted > 0) == (0.0, True)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"note": "LoRA"}, "fine-tuning (LoRA)"),
        (TITAN | {"pp": "3", "num_gpus": "24"}, "torchtitan."),
        (BRIDGE | {"model": "LLAMA3_70B", "zero_stage": "3"}, "activation_checkpointing none, with 20 or 40 layers"),
    ],
)
def test_a_row_that_cannot_be_said_has_a_reason(changed: dict[str, str], reason: str):
    found = reading(**changed)
    assert found.training is None
    assert any(each.startswith(reason) for each in found.reasons)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (BRIDGE, {"activation_checkpointing": "none"}),
        (BRIDGE | {"model": "GPT OSS 120B", "accelerator": "dgx-b200"}, {"recompute_modules": "layernorm+moe_act"}),
        (TITAN | {"precision": "fp8", "tokens_per_s_per_gpu": "624.8"}, {"matmul_precision": "fp8_rowwise"}),
        ({"precision": "fp8"}, {"matmul_precision": "fp8_delayed"}),
    ],
)
def test_recipes_and_code_tell_what_the_row_leaves_open(changed: dict[str, str], told: dict[str, object]):
    assert layout_values(row(**changed)).items() >= told.items()


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


SINCE = PUBLISHED.parent / "rows_2026.csv"


@pytest.fixture(scope="module")
def rows_since() -> list[Reading]:
    if not SINCE.exists():
        pytest.skip("no measured tables beside the checkout")
    return readings_in([SINCE])


def test_rows_that_are_said_already_are_predicted_within_their_source_and_what_set_a_constant_is_left_out(rows_since):
    assert [found.counts for found in rows_since] == [True] * 65
    found = [line for line in lines(rows_since, None) if "summary" not in line]
    assert [(line["left_out"], line["count"]) for line in found[-2:]] == [("MooreThreads", 43), ("awslabs", 22)]
    over_efa = [reading for reading in rows_since if reading.source == "awslabs"]
    shipped = errors_of(over_efa)
    with changed({"all-to-alls over EFA": TUNED["all-to-alls over EFA"].without}):
        assert all(fast >= slow for fast, slow in zip(errors_of(over_efa), shipped, strict=True))
    assert errors_of(over_efa) == shipped


def test_a_choice_is_of_rows_that_differ_in_it_alone_and_a_replay_has_the_regret_of_both_orders(rows_since):
    *choices, summary = choice_lines(rows_since, "expert_dispatcher")
    assert (len(choices), summary["choices"]) == (9, 9)
    assert all(choice["measured"].keys() == {"alltoall", "deepep"} for choice in choices)
    assert all((choice["regret"] == 0) == choice["right"] for choice in choices)
    kimi = [reading for reading in rows_since if reading.row["group"] == "AWS kimi-k2 128xB300"]
    (replay,) = replay_lines(kimi, seeds=2)
    assert replay["layouts"] == 7
    assert replay["guided_mean"] <= 0.03
