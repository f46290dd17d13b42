"""Parsers of published data, and the tables made of it. Pure: import_tables.py reads and writes."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search_spaces.layouts.layout import layout_mesh
from search_spaces.tables.measured_table import REQUIRED_COLUMNS, parse_table

Row = dict[str, object]


@dataclass(frozen=True)
class Source:
    """Files of a download, and the table built from their texts.

    `build_table` raises LookupError, TypeError or ValueError where a text is not as published.
    """

    files: tuple[str, ...]
    table: str
    build_table: Callable[..., str]


def _table_text(columns: Sequence[str], rows: Iterable[Row], comments: Iterable[str]) -> str:
    out = io.StringIO()
    out.writelines(f"# {comment}\n" for comment in comments)
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _measured_table(rows: Iterable[Row], comments: Iterable[str]) -> str:
    """Measured table with the mandatory columns; InputError where a row could not be read again."""
    text = _table_text(REQUIRED_COLUMNS, rows, comments)
    parse_table(text, "the table").require_valid()
    return text


# vTrain (Bang et al., arXiv 2312.12391): two CSV files with a row a measurement, times in milliseconds.

_VTRAIN = {
    "model_name": "",
    "gated_mlp": 0,
    "vocab_size": 50257,
    "tied_embeddings": 1,
    "accelerator": "a100-80gb",
    "gpus_per_node": 8,
    "zero_stage": 0,
    "sequence_parallel": 0,
    "activation_checkpointing": "full",
    "attention_kernel": "fused-softmax",
    "source": "vtrain",
    "outcome": "ok",
}
_VTRAIN_SIZES = ("3.6", "18.4")
"""Billions of parameters of the models whose rows become a table."""
_VTRAIN_COMMENTS = (
    "Source: VIA-Research/vTrain data (MIT licence), arXiv:2312.12391. Measured with Megatron-DeepSpeed on A100, full"
    " recompute, 1F1B, vocab 50257. Only layouts that ran are listed: no failures, no memory, no repeats.",
    "Multi-node: 8 A100-80GB per node (NVLink), 4 x HDR200 InfiniBand per node.",
)


def vtrain_multi(text: str) -> str:
    """ground_truth_multi.csv: GPT of several sizes on 64 GPUs and more."""
    return _measured_table(_vtrain_multi_rows(text), _VTRAIN_COMMENTS)


def vtrain_single(text: str) -> str:
    """ground_truth_single.csv: small GPT on a part of one node."""
    return _measured_table(_vtrain_single_rows(text), _VTRAIN_COMMENTS)


def _vtrain_multi_rows(text: str) -> Iterator[Row]:
    for cells in csv.DictReader(io.StringIO(text), strict=True):
        size = cells["Parameters (billion)"]
        if size in _VTRAIN_SIZES:
            yield _vtrain_row(cells, f"{size}B", f"vtrain-{size}B-{cells['# GPUs']}gpu")


def _vtrain_single_rows(text: str) -> Iterator[Row]:
    for cells in csv.DictReader(io.StringIO(text), strict=True):
        layers, hidden, sequence = (cells[name] for name in ("# layers", "hidden size", "sequence length"))
        ranks, batch = cells["# GPUs"], cells["global batch"]
        problem = f"vtrain-{layers}L-{hidden}h-{sequence}s-{ranks}gpu-{batch}gbs"
        yield _vtrain_row(cells, f"{layers}L-{hidden}", problem)


def _vtrain_row(cells: Mapping[str, str], model_name: str, problem: str) -> Row:
    batch, micro = int(cells["global batch"]), int(cells["micro batch"])
    data = int(cells["data parallelism"])
    return _VTRAIN | {
        "problem": problem,
        "model_name": model_name,
        "num_layers": int(cells["# layers"]),
        "hidden_size": int(cells["hidden size"]),
        "num_attention_heads": int(cells["attention heads"]),
        "ffn_hidden_size": 4 * int(cells["hidden size"]),
        "seq_length": int(cells["sequence length"]),
        "num_gpus": int(cells["# GPUs"]),
        "global_batch_size": batch,
        "tensor_parallel": int(cells["tensor parallelism"]),
        "pipeline_parallel": int(cells["pipeline parallelism"]),
        "data_parallel": data,
        "micro_batch_size": micro,
        "grad_accum_steps": batch // (micro * data),
        "step_time_s": _seconds(float(cells["iteration time (ms)"]) / 1000),
    }


# The Ultra-Scale Playbook: a plotly figure in a page. Its columns are models, its rows nodes; the configuration is the
# text that is shown at a mark, and every text stands twice, at the marks of what ran and of what failed.

_PLAYBOOK_MODELS = {
    "x": {
        "model_name": "1B",
        "num_layers": 16,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "ffn_hidden_size": 8192,
        "tied_embeddings": 1,
    },
    "x3": {
        "model_name": "8B",
        "num_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "ffn_hidden_size": 14336,
        "tied_embeddings": 0,
    },
}
"""By the figure's axis: the models whose rows become a table."""
_PLAYBOOK = {
    "source": "ultrascale-playbook",
    "gated_mlp": 1,
    "vocab_size": 131072,
    "seq_length": 4096,
    "accelerator": "h100-80gb",
    "gpus_per_node": 8,
    "activation_checkpointing": "none",
    "attention_kernel": "flash",
}
_PLAYBOOK_COMMENTS = (
    "Source: The Ultra-Scale Playbook (HF space nanotron/ultrascale-playbook, plot data; Apache-2.0). Measured with"
    " huggingface/nanotron on H100-80GB, 8 per node, seq 4096, global batch 256.",
    "outcome failed = out of memory or another crash, not told apart at the source. peak_memory unit GB or GiB unknown."
    " activation_checkpointing none and sequence_parallel are the source's config defaults, not stated per row.",
    "Rows cover about 55% of the power-of-two grid: treat the rows of one problem as its closed candidate set. Some"
    " layouts occur twice (repeat measurements); spread between repeats is 2-20%.",
    "ffn_hidden_size: gated (SwiGLU) MLP, 3 matrices.",
)
_NUMBERS = {
    name: re.compile(rf"(?:^|\s){label}:\s*(nan|[0-9][0-9,.]*)")
    for name, label in {
        "num_nodes": "Nodes",
        "micro_batch_size": "MBS",
        "grad_accum_steps": "GradAcc",
        "global_batch_size": "GBS",
        "data_parallel": "DP",
        "pipeline_parallel": "PP",
        "tensor_parallel": "TP",
        "zero_stage": "ZeRO",
        "tokens_per_sec_per_gpu": "tok/s/gpu",
        "peak_memory_gib": "GPU memory",
    }.items()
}


def playbook(text: str) -> str:
    """benchmarks_interactive.html: configurations of each model and number of nodes, in the figure's order.

    Rows whose layout contradicts their ranks and batch (runs with other settings than stated) are omitted.
    """
    return _measured_table(_playbook_rows(text), _PLAYBOOK_COMMENTS)


def _playbook_rows(text: str) -> Iterator[Row]:
    for axis in _PLAYBOOK_MODELS:
        seen = set()
        for trace in _traces(text):
            marks = tuple(trace.get("text") or ())
            if trace.get("xaxis") != axis or not marks or marks in seen:
                continue
            seen.add(marks)
            yield from filter(None, (_playbook_row(_numbers_in(mark), axis) for mark in marks))


def _traces(text: str) -> list[dict[str, Any]]:
    """Second argument of Plotly.newPlot: a JSON array."""
    begin = text.index("[", text.index("Plotly.newPlot("))
    traces, _ = json.JSONDecoder().raw_decode(text, begin)
    return traces


def _numbers_in(mark: str) -> dict[str, float | None]:
    """Numbers of a configuration by our names; None for what was not measured."""
    lines = html.unescape(re.sub(r"<[^>]*>", "\n", mark))
    found = {name: re.search(pattern, lines) for name, pattern in _NUMBERS.items()}
    missing = [name for name, match in found.items() if match is None]
    if missing:
        raise ValueError(f"no {missing[0]} in {mark!r:.200}")
    words = {name: match[1].replace(",", "").rstrip(".") for name, match in found.items() if match is not None}
    return {name: None if word == "nan" else float(word) for name, word in words.items()}


def _playbook_row(numbers: Mapping[str, float | None], axis: str) -> Row | None:
    layout = {name: int(value) for name, value in numbers.items() if value is not None and name in _COUNTS}
    ranks = layout_mesh(layout).world_size
    batch = layout["micro_batch_size"] * layout["grad_accum_steps"] * layout["data_parallel"]
    num_gpus = 8 * layout.pop("num_nodes")
    if ranks != num_gpus or batch != layout["global_batch_size"]:
        return None
    model = _PLAYBOOK_MODELS[axis]
    speed, peak = numbers["tokens_per_sec_per_gpu"], numbers["peak_memory_gib"]
    row = _PLAYBOOK | model | layout | {"num_gpus": num_gpus, "sequence_parallel": int(layout["tensor_parallel"] > 1)}
    row["problem"] = f"nanotron-{model['model_name']}-{num_gpus}gpu"
    if speed is None:
        return row | {"outcome": "failed"}
    step_time_s = _seconds(batch * 4096 / (speed * num_gpus))
    return row | {"outcome": "ok", "step_time_s": step_time_s, "peak_memory_gib": "" if peak is None else peak}


_COUNTS = set(_NUMBERS) - {"tokens_per_sec_per_gpu", "peak_memory_gib"}


def _seconds(value: float) -> str:
    """Number with six digits, as in the tables."""
    return f"{value:.6g}"


# More figures of the playbook: how fast groups of nodes talk, and what degrees of one kind cost.

_SCALING_COMMENTS = (
    "Source: Ultra-Scale Playbook plots assets/data/benchmarks/{pp_comm_bandwidth,tp_scaling,tp_sp_scaling,dp_scaling}"
    '.html (mirror vinjn/nanotron-ultrascale-playbook 924e4d0). Apache-2.0 (space metadata). HF "hopper-prod" H100'
    " cluster, 8 GPUs/node.",
    "kind=comm: GB/s (bandwidth as plotted, mean) versus nodes (x index 0..6 read as 1,2,4,..,64 nodes)."
    " kind=tp|tp_sp: 3B model, seq 4096: tok/s/GPU and the max micro-batch that fits (an OOM boundary). kind=dp: 1B"
    " model.",
)
_SCALING_COLUMNS = ("kind", "op_or_model", "x_name", "x", "value", "unit", "max_micro_batch")


def playbook_scaling(bandwidth: str, tensor: str, tensor_sequence: str, data: str) -> str:
    """pp_comm_bandwidth.html, tp_scaling.html, tp_sp_scaling.html and dp_scaling.html."""
    rows = [*_bandwidth_rows(bandwidth)]
    for kind, page in (("tp", tensor), ("tp_sp", tensor_sequence)):
        rows += _scaling_rows(kind, "tp", "3B", page, has_batches=True)
    rows += _scaling_rows("dp", "dp", "1B", data, has_batches=False)
    return _table_text(_SCALING_COLUMNS, rows, _SCALING_COMMENTS)


def _bandwidth_rows(page: str) -> Iterator[Row]:
    for trace in _traces(page):
        points = zip(trace["x"], trace["y"], strict=True) if "name" in trace else ()
        for x, value in points:
            row = {"kind": "comm", "op_or_model": trace["name"], "x_name": "nodes", "x": 2**x}
            yield row | {"value": f"{value:.2f}", "unit": "GB/s"}


def _scaling_rows(kind: str, degree: str, model: str, page: str, has_batches: bool) -> Iterator[Row]:
    """Rows of the bars that show all degrees, on each side of the figure; the other bars are differences of two."""
    left, right = (_bars(page, axis) for axis in ("x", "x2"))
    for x, speed, other in zip(left["x"], left["y"], right["y"], strict=True):
        row = {"kind": kind, "op_or_model": model, "x_name": degree, "x": x, "value": f"{speed:.2f}"}
        yield row | {"unit": "tok/s/GPU", "max_micro_batch": other if has_batches else ""}


def _bars(page: str, axis: str) -> Mapping[str, Any]:
    for trace in _traces(page):
        if trace.get("xaxis") == axis and len(trace["y"]) > 1:
            return trace
    raise ValueError(f"no bars on axis {axis}")


# The log of the 175B model on Frontier: Megatron-DeepSpeed, what each rank that speaks for a replica says.

_LOG = (
    "run log of the authors' public repository, branch frontier-sd, logs/gpt175b_megatron_16N_newcomm-405287.o."
    " Measured torch memory (MB) after iteration 1 per rank; pp_stage = rank//8 (TP4 x DP2 ranks per stage). Useful as"
    " memory-model validation: 175B TP4 PP16 DP2 ZeRO-1 fp16 seq2048 mbs=1 flash-attn1 + activation checkpointing"
)
_STAGE = re.compile(
    r"RANK=(\d+) STAGE=(\d+) LAYERS=(\d+) \[(\d+), (\d+)\) STAGE_PARAMS=(\d+) "
    r".*?TOTAL_PARAMS=(\d+) .*?UNIQUE_PARAMS=(\d+)"
)
_MEMORY = re.compile(
    r"\[Rank (\d+)\] \(after 1 iterations\) memory \(MB\) \| allocated: ([\d.]+) \| max allocated: ([\d.]+)"
    r" \| reserved: ([\d.]+) \| max reserved: ([\d.]+)"
)


def frontier_memory(log: str) -> str:
    """Memory allocated by torch on each rank after its first step."""
    stages = {int(found[1]): int(found[2]) for found in _STAGE.finditer(log)}
    found = {int(match[1]): match.groups()[1:] for match in _MEMORY.finditer(log)}
    if not found:
        raise ValueError("no rank tells of its memory after the first step")
    names = ("allocated_mb", "max_allocated_mb", "reserved_mb", "max_reserved_mb")
    rows: list[Row] = [
        {"rank": rank, "pp_stage": stages[rank]}
        | {name: f"{float(value):.1f}" for name, value in zip(names, found[rank], strict=True)}
        for rank in sorted(found)
    ]
    return _table_text(("rank", "pp_stage", *names), rows, [f"source: {_LOG}"])


def frontier_stages(log: str) -> str:
    """Layers of each stage, and parameters of each of its tensor-parallel ranks."""
    found = {int(match[2]): match for match in _STAGE.finditer(log)}
    if not found:
        raise ValueError("no rank tells of its stage")
    names = ("pipe_layers", "layer_start", "layer_end", "params_per_gpu")
    rows: list[Row] = [
        {"pp_stage": stage} | dict(zip(names, found[stage].groups()[2:6], strict=True)) for stage in sorted(found)
    ]
    total, unique = found[0].groups()[6:]
    comment = (
        "source: same log. DeepSpeed pipeline partition lines (per TP rank parameters of each pipeline stage);"
        f" TOTAL_PARAMS={total} UNIQUE_PARAMS={unique}"
    )
    return _table_text(("pp_stage", *names), rows, [comment])


_PLAYBOOK_PAGES = ("pp_comm_bandwidth.html", "tp_scaling.html", "tp_sp_scaling.html", "dp_scaling.html")
_FRONTIER_LOG = ("gpt175b_megatron_16N_newcomm-405287.o",)

SOURCES = (
    Source(("ground_truth_multi.csv",), "vtrain_3b_18b.csv", vtrain_multi),
    Source(("ground_truth_single.csv",), "vtrain_single_node.csv", vtrain_single),
    Source(("benchmarks_interactive.html",), "nanotron_1b_8b.csv", playbook),
    Source(_PLAYBOOK_PAGES, "nanotron_comm_and_scaling.csv", playbook_scaling),
    Source(_FRONTIER_LOG, "frontier_175b_log_memory_by_rank.csv", frontier_memory),
    Source(_FRONTIER_LOG, "frontier_175b_log_stage_params.csv", frontier_stages),
)
