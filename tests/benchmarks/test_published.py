"""Published figures against the model: rows with enough information, and their numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.published import is_published, published_lines, readable_published

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
    "MegaScale,Table 2,175B,96,12288,128,64000,2048,A100 (Ampere),256,8,8,4,6,768,,,,,40.0,,53.0",
    # The stated numbers are no layout: 8 x 8 ranks of 32, and a batch of 10 over 32 ranks.
    "SC21,x,x,24,2304,24,51200,2048,A100-80GB,32,8,8,32,,512,16,0,full,no,3.5,,",
    "SC21,x,x,24,2304,24,51200,2048,A100-80GB,32,1,1,32,,10,1,0,full,no,3.5,,",
    # Megatron-DeepSpeed's authors do not say whether they count recomputation.
    "MT-NLG,x,x,105,20480,128,50257,2048,A100-80GB,2240,8,35,8,,1920,1,,full,,,126,",
]
SYSTEMS = """system,case,num_layers,hidden_size,num_attention_heads,vocab_size,seq_length,accelerator,num_gpus,\
gpus_per_node,tensor_parallel,pipeline_parallel,data_parallel,micro_batch_size,global_batch_size,zero_stage,\
activation_checkpointing,step_time_s,tflops_per_gpu,pct_of_peak
frontier,175B,96,12288,96,50688,2048,MI250X GCD 64GB,128,8,4,16,2,1,640,1,full,,69.2,36.14
mt-nlg,280 nodes,105,20480,128,50257,2048,A100-80GB DGX,2240,8,8,35,8,1,1920,,full,60.1,126,
asc22-yuan,final,40,3072,24,53228,2048,V100-32GB DGXS,4,4,,,,,,,,,,
"""


def lines_of(tmp_path: Path, **tables: str) -> list[dict]:
    paths = [tmp_path / f"{name}.csv" for name in tables]
    for path, text in zip(paths, tables.values(), strict=True):
        path.write_text(text)
        assert is_published(path)
    return list(published_lines(paths))


def figures(lines: list[dict]) -> list[dict]:
    return [line for line in lines if "summary" not in line]


def test_rows_that_state_layout_and_time_or_counting_are_met_within_15_percent(tmp_path: Path):
    lines = lines_of(tmp_path, papers=PAPERS)
    found = figures(lines)
    assert [line["source"] for line in found] == ["SC21 Table 1", "Korthikanti Table 5", "MT-NLG text"]
    # 96 B s L h^2 (1 + s / 6h + V / 16Lh) at 137 TFLOP/s on 32 GPUs: the paper's own formula.
    assert found[0]["published"] == pytest.approx(3.53, abs=0.01)
    assert all(abs(line["error"]) <= 0.15 for line in found)
    assert [line["count"] for line in lines if "summary" in line] == [1, 1, 1]
    assert all(readable_published(line) for line in lines)


def test_rows_that_say_too_little_are_left_out(tmp_path: Path):
    header = PAPERS.splitlines()[1]
    assert lines_of(tmp_path, papers="\n".join([header, *SAYS_TOO_LITTLE]) + "\n") == []


def test_a_rate_whose_counting_is_open_is_read_both_ways_and_counts_in_no_summary(tmp_path: Path):
    lines = lines_of(tmp_path, systems=SYSTEMS)
    hardware, model = (line for line in lines if line["source"] == "frontier 175B")
    assert (hardware["reading"], model["reading"]) == ("hardware", "model")
    assert hardware["published"] / model["published"] == pytest.approx(4 / 3, rel=0.01)
    assert model["published"] < hardware["predicted"] == model["predicted"] < hardware["published"]
    assert {line["source"] for line in lines if "summary" in line} == {"mt-nlg 280 nodes"}


def test_what_two_tables_say_is_reported_once(tmp_path: Path):
    both = figures(lines_of(tmp_path, papers=PAPERS, systems=SYSTEMS))
    assert len([line for line in both if line["published"] == 60.1]) == 1


def test_memory_of_the_figure_and_of_the_log(tmp_path: Path):
    figure = "figure,model,mode,quantity,published,calculon\n"
    figure += "fig1,175B,any,params+optimizer GiB,45.5625,40.93\nfig1,175B,none,activations GiB,66.84375,66.94\n"
    figure += "fig1,175B,seqsel,activations GiB,12.3515625,12.69\nfig7,22B,seq,activations % of none,66.84,66.92\n"
    log = "rank,pp_stage,allocated_mb,max_allocated_mb\n0,0,25142.4,33901.5\n8,1,23360.9,31435.5\n9,1,23360.9,31435.5\n"
    found = figures(lines_of(tmp_path, figure=figure, log=log))
    assert [line["quantity"] for line in found[:3]] == [
        "params+optimizer_gib",
        "activations_gib",
        "activations_gib (selective)",
    ]
    assert [line["error"] for line in found[:3]] == [pytest.approx(0, abs=0.002)] * 3
    assert [(line["case"], line["published"]) for line in found[3:]] == [("stage  0", 33.107), ("stage  1", 30.699)]
    assert all(abs(line["error"]) <= 0.05 for line in found[3:])


def test_a_measured_table_is_none(tmp_path: Path):
    (tmp_path / "table.csv").write_text("problem,source\na,b\n")
    assert not is_published(tmp_path / "table.csv")
