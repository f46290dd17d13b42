"""Published tables from downloads in their authors' formats, and from the real ones where available."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from benchmarks.import_sources import SOURCES, Source
from benchmarks.import_tables import build_table, differences, is_there, main, rows_of
from search_spaces.errors import InputError
from search_spaces.tables.measured_table import Observation, parse_table

PUBLISHED = Path(__file__).parents[2].parent / "shared" / "data"
DOWNLOADS = "PARLAY_DOWNLOADS"
MULTI = """\
Parameters (billion),# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,\
tensor parallelism,data parallelism,pipeline parallelism,iteration time (ms)
3.6,64,512,8,3072,32,30,2048,1,64,1,1234.5
175,512,1536,2,12288,96,96,2048,4,8,16,54321.9
18.4,256,1024,4,6144,48,40,2048,2,32,4,10000
"""
SINGLE = """\
# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,\
data parallelism,pipeline parallelism,iteration time (ms)
4,16,2,1024,16,24,1024,1,2,2,123.4567891
"""


def mark(nodes: int, dp: int, pp: int, tp: int, speed: str, memory: str, mbs: int = 1, steps: int = 16) -> str:
    """The text at a mark of the playbook's figure."""
    layout = f"Nodes: {nodes}<br>MBS: {mbs}<br>GradAcc: {steps}<br>GBS: 256<br>DP: {dp}<br>PP: {pp}<br>TP: {tp}"
    reached = f"MFU:\t 40.0%<br>tok/s/gpu:\t {speed}<br>tok/s: 7<br>GPU memory: {memory} GB"
    return f"<b>Configuration:</b><br>{layout}<br>ZeRO: 1<br><br><b>Performance:</b><br>{reached}"


def page(*traces: tuple[str, list[str]]) -> str:
    """Each trace, an axis and its marks, twice, as the figure has it."""
    both = [
        {"marker": {"symbol": symbol}, "text": marks, "x": [0.5], "xaxis": axis, "type": "scatter"}
        for axis, marks in traces
        for symbol in ("circle", "x")
    ]
    return figure(both)


def figure(traces: list[dict]) -> str:
    """A page with a call of plotly."""
    escaped = json.dumps(traces).replace("<", "\\u003c").replace("/", "\\u002f")
    return f'<div><script>Plotly.newPlot( "an-id", {escaped}, {{"title": [1]}})</script></div>'


def bars(speeds: list[float], others: list[float]) -> str:
    """Two bar charts side by side, with a bar for a drop."""
    degrees = [str(2 << n) for n in range(len(speeds))]
    drop = {"base": [1.0], "x": ["4"], "y": [2.0], "xaxis": "x"}
    left, right = ({"x": degrees, "y": y, "xaxis": axis} for y, axis in ((speeds, "x"), (others, "x2")))
    return figure([left, drop, right])


PLAYBOOK = page(
    ("x", [mark(2, 16, 1, 1, "65,536", "50.2"), mark(2, 8, 1, 2, "nan", "nan", mbs=2)]),
    ("x2", [mark(1, 8, 1, 1, "9", "1.0", steps=32)]),
    ("x3", [mark(4, 4, 4, 2, "16,384", "63.1", steps=64), mark(4, 4, 4, 2, "1", "1.0", steps=2)]),
)
BANDWIDTH = figure([{"fill": "toself", "x": [0], "y": [9]}, {"name": "AllReduce", "x": [0, 3], "y": [400.004, 9]}])
RANK = "INFO RANK={rank} STAGE={stage} LAYERS={count} [{first}, {last}) STAGE_PARAMS={size} (1M) TOTAL_PARAMS=7 (7M)"
MEMORY = (
    "[Rank {rank}] (after 1 iterations) memory (MB) | allocated: {allocated} | max allocated: 3 | reserved: 4.0"
    " | max reserved: 5.0"
)
LOG = "\n".join(
    [
        RANK.format(rank=9, stage=1, count=2, first=8, last=10, size=33) + " UNIQUE_PARAMS=5 (5M)",
        RANK.format(rank=0, stage=0, count=8, first=0, last=8, size=44) + " UNIQUE_PARAMS=5 (5M)",
        MEMORY.format(rank=9, allocated=2.26),
        " iteration        1/       5 | consumed samples:         1280 |",
        MEMORY.format(rank=0, allocated=1.0),
    ]
)
DOWNLOAD = {
    "ground_truth_multi.csv": MULTI,
    "ground_truth_single.csv": SINGLE,
    "benchmarks_interactive.html": PLAYBOOK,
    "pp_comm_bandwidth.html": BANDWIDTH,
    "tp_scaling.html": bars([300.0, 200.55], [3, 8]),
    "tp_sp_scaling.html": bars([310.0, 250.0], [4, 10]),
    "dp_scaling.html": bars([500.0, 400.0], [36.6, 36.7]),
    "gpt175b_megatron_16N_newcomm-405287.o": LOG,
}


@pytest.fixture
def download(tmp_path) -> Path:
    folder = tmp_path / "download"
    folder.mkdir()
    for name, text in DOWNLOAD.items():
        (folder / name).write_text(text)
    return folder


def made(download: Path, table: str) -> str:
    source = next(source for source in SOURCES if source.table == table)
    return build_table(source, download)[1]


def measured(download: Path, table: str) -> tuple[Observation, ...]:
    return parse_table(made(download, table), table).require_valid().observations


def test_rows_of_vtrain_are_layouts_with_times_in_seconds(download):
    first, second = measured(download, "vtrain_3b_18b.csv")
    assert (first.problem, first.step_time_s, first.source) == ("vtrain-3.6B-64gpu", 1.2345, "vtrain")
    assert (first.layout.data_parallel, first.layout.grad_accum_steps, first.cluster.num_nodes) == (64, 1, 8)
    assert (first.model.ffn_hidden_size, first.model.vocab_size) == (12288, 50257)
    assert (second.problem, second.layout.pipeline_parallel, second.step_time_s) == ("vtrain-18.4B-256gpu", 4, 10.0)
    (small,) = measured(download, "vtrain_single_node.csv")
    assert (small.problem, small.step_time_s) == ("vtrain-24L-1024h-1024s-4gpu-16gbs", 0.123457)
    assert (small.layout.engine, small.layout.activation_checkpointing) == ("megatron-deepspeed", "full")


def test_marks_of_the_playbook_are_layouts_and_those_that_contradict_themselves_are_left_out(download):
    ran, failed, large = measured(download, "nanotron_1b_8b.csv")
    assert (ran.problem, ran.outcome, ran.step_time_s, ran.peak_memory_gib) == ("nanotron-1B-16gpu", "ok", 1.0, 50.2)
    assert (failed.outcome, failed.step_time_s, failed.layout.sequence_parallel) == ("failed", None, True)
    assert (large.problem, large.model.num_layers, large.step_time_s) == ("nanotron-8B-32gpu", 32, 2.0)
    assert large.layout.engine == "nanotron"


def test_figures_of_degrees_and_bandwidths_are_rows(download):
    _, *rows = rows_of(made(download, "nanotron_comm_and_scaling.csv"))
    assert rows == [
        ["comm", "AllReduce", "nodes", "1", "400.00", "GB/s", ""],
        ["comm", "AllReduce", "nodes", "8", "9.00", "GB/s", ""],
        ["tp", "3B", "tp", "2", "300.00", "tok/s/GPU", "3"],
        ["tp", "3B", "tp", "4", "200.55", "tok/s/GPU", "8"],
        ["tp_sp", "3B", "tp", "2", "310.00", "tok/s/GPU", "4"],
        ["tp_sp", "3B", "tp", "4", "250.00", "tok/s/GPU", "10"],
        ["dp", "1B", "dp", "2", "500.00", "tok/s/GPU", ""],
        ["dp", "1B", "dp", "4", "400.00", "tok/s/GPU", ""],
    ]


def test_a_log_of_frontier_tells_of_memory_and_stages(download):
    assert rows_of(made(download, "frontier_175b_log_memory_by_rank.csv"))[1:] == [
        ["0", "0", "1.0", "3.0", "4.0", "5.0"],
        ["9", "1", "2.3", "3.0", "4.0", "5.0"],
    ]
    stages = made(download, "frontier_175b_log_stage_params.csv")
    assert rows_of(stages)[1:] == [["0", "8", "0", "8", "44"], ["1", "2", "8", "10", "33"]]
    assert "TOTAL_PARAMS=7 UNIQUE_PARAMS=5" in stages.splitlines()[0]


def test_the_command_writes_what_it_finds_and_compares_it(download, tmp_path, monkeypatch, capsys):
    for path in download.iterdir():
        if not path.name.startswith(("ground_truth", "tp_scaling")):
            path.unlink()
    known = tmp_path / "known"
    monkeypatch.setattr(sys, "argv", ["import_tables", str(download), str(known)])
    main()
    assert {path.name for path in known.iterdir()} == {"vtrain_3b_18b.csv", "vtrain_single_node.csv"}
    (download / "ground_truth_multi.csv").write_text(MULTI.replace("1234.5", "1234.6"))
    (known / "vtrain_single_node.csv").unlink()
    monkeypatch.setattr(sys, "argv", ["import_tables", str(download), str(tmp_path / "new"), "--compare", str(known)])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    told = capsys.readouterr().out
    assert f"vtrain_3b_18b.csv: 1 row unlike {known / 'vtrain_3b_18b.csv'}" in told
    assert "nothing to compare with" in told


def test_a_part_of_what_a_table_is_made_of_makes_none(download, tmp_path, monkeypatch):
    for path in download.iterdir():
        if path.name != "tp_scaling.html":
            path.unlink()
    monkeypatch.setattr(sys, "argv", ["import_tables", str(download), str(tmp_path / "tables")])
    with pytest.raises(SystemExit, match="holds all files of no table"):
        main()


def test_tables_that_are_there_stay_as_they_are(download, tmp_path, monkeypatch):
    kept = tmp_path / "tables" / "nanotron_1b_8b.csv"
    kept.parent.mkdir()
    kept.write_text("mine")
    monkeypatch.setattr(sys, "argv", ["import_tables", str(download), str(kept.parent)])
    with pytest.raises(InputError, match="is there already"):
        main()
    assert [path.name for path in kept.parent.iterdir()] == ["nanotron_1b_8b.csv"]
    assert kept.read_text() == "mine"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("ground_truth_multi.csv", MULTI.replace("micro batch", "micro-batch")),
        ("ground_truth_multi.csv", MULTI.replace(",8,3072", ",7,3072")),
        ("ground_truth_single.csv", SINGLE.replace("123.4567891", "fast")),
        ("ground_truth_single.csv", SINGLE.replace("123.4567891", "nan")),
        ("ground_truth_multi.csv", ""),
        ("ground_truth_multi.csv", MULTI.partition("\n")[0]),
        ("benchmarks_interactive.html", "<html>moved</html>"),
        ("benchmarks_interactive.html", PLAYBOOK.replace("GradAcc", "Accumulation")),
        ("tp_scaling.html", figure([{"x": [1], "y": None, "xaxis": "x"}])),
        ("gpt175b_megatron_16N_newcomm-405287.o", "srun: error: Node failure"),
    ],
    ids=["column", "product", "time", "no-number", "empty", "no-row", "page", "mark", "bars", "log"],
)
def test_a_file_that_is_not_what_is_published_is_refused(download, file, text):
    (download / file).write_text(text)
    for source in SOURCES:
        if file in source.files:
            with pytest.raises(InputError, match="is not what is published") as refused:
                build_table(source, download)
            assert refused.value.problems[0].file == str(download / source.files[0])


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.table)
def test_the_real_downloads_make_the_tables_as_they_are(source: Source):
    """PARLAY_DOWNLOADS names a folder with the files that benchmarks/import_tables.py lists."""
    known = next(PUBLISHED.glob(f"*/{source.table}"), None)
    if known is None:
        pytest.skip(f"no measured tables: {PUBLISHED} is not there")
    download = Path(os.environ.get(DOWNLOADS, "no downloads"))
    if not is_there(source, download):
        pytest.skip(f"no downloads: {DOWNLOADS} names no folder with {source.files[0]}")
    assert differences(build_table(source, download)[1], known.read_text(encoding="utf-8")) == []
