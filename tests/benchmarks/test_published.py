"""Published step times and throughputs: what a row says, its prediction, and errors without each family's tuning."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks import expect_questions
from benchmarks.published import COLUMNS, Row, columns_of, published_lines, read_rows
from benchmarks.published_throughput import (
    Reading,
    memory_line,
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


@pytest.mark.skipif(not PUBLISHED.exists(), reason="no measured tables beside the checkout")
def test_all_published_rows_are_read_and_those_that_cannot_be_said_have_reasons():
    readings = [Reading.of(row) for row in read_rows(PUBLISHED)]
    assert len(readings) == 384
    assert all((found.training is None) == bool(found.reasons) for found in readings)
    assert said_line(readings)["fine_tuning"] == 10
    assert said_line(readings)["said"] >= 0.9 * 384
    memory = memory_line(readings)
    assert memory["said_not_to_fit"] <= 0.02 * memory["ran"]
    assert memory["below_one_half"] <= 0.15 * memory["ran"]


def test_questions_of_public_threads_are_answered():
    answers = {line["thread"]: line for line in expect_questions.lines()}
    assert answers["InternLM/InternLM 22"]["causes"] == ["a slow network"]
    assert answers["InternLM/InternLM 22, with PCIe of 20 GB/s"]["verdict"] == "normal"
