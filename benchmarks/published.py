"""Published step times and rates of single layouts, against the predictions of the cold time model.

A table of papers has the columns of `COLUMNS`. Rows count that state their layout, and their step time or the way in
which their FLOPs are counted. Published figures of memory are tests: tests/search_spaces/cost_model/test_memory.py.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.measured import linked, links_of
from benchmarks.output import Line
from search_spaces.cost_model.constants import typical_constants
from search_spaces.cost_model.step_time import StepTerms
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout, layout_mesh
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape
from search_spaces.schema.presets import accelerator_named

Row = Mapping[str, str]

COLUMNS = {"source", "table", "n_layers", "iter_time_s", "tflops_gpu"}
PAPERS = {
    "SC21": ("megatron-lm", "hardware"),
    "Korthikanti": ("megatron-lm", "model"),
    "MT-NLG": ("megatron-deepspeed", None),
}
"""Trainer of a source, and how it counts FLOPs where it gives a rate instead of a time. Not among them is the log of a
175B run on Frontier: with the batch of its command line it would have reached 77 % of the peak, twice what its authors
publish, and its configuration file names another batch."""
_DEGREES = {"tp": "tensor_parallel", "pp": "pipeline_parallel", "dp": "data_parallel"}
_PADDED_VOCABULARY = "51200"
"""Vocabulary where none is stated: GPT-2's 50257, padded; a few thousandths of the work."""


def columns_of(path: Path) -> set[str]:
    return set(next(iter(read_rows(path)), {}))


def read_rows(path: Path) -> list[Row]:
    """Rows of a CSV file, which may have comments."""
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


def published_lines(paths: Iterable[Path]) -> Iterator[Line]:
    """Line per figure, and a summary of each source."""
    lines = [line for path in paths for row in read_rows(path) if (line := _line(row)) is not None]
    yield from lines
    for source in dict.fromkeys(line["source"] for line in lines):
        errors = [abs(line["error"]) for line in lines if line["source"] == source]
        figures = {"error_mean": round(float(np.mean(errors)), 4), "error_max": max(errors), "count": len(errors)}
        yield {"summary": True, "source": source, "quantity": "step_time_s", **figures}


def _line(row: Row) -> Line | None:
    source = next((known for known in PAPERS if known in row["source"]), None)
    if source is None:
        return None
    engine, counting = PAPERS[source]
    try:
        model, cluster, layout = _gpt(row), _cluster(row), _layout(row, engine)
        published_s = _published_s(row, model, layout, counting, cluster.accelerator.peak_flops_for("fp16") or 0)
    except (InputError, ValueError):  # the row does not say all of it
        return None
    predicted_s = float(StepTerms.of(model, cluster, LayoutTable.of([layout])).seconds(typical_constants())[0])
    return {
        "source": f"{source} {row['table']}",
        "case": f"{model.parameters / 1e9:.1f}B {layout.key}",
        "published": round(published_s, 3),
        "predicted": round(predicted_s, 3),
        "error": round(predicted_s / published_s - 1, 4),
    }


def _gpt(row: Row) -> ModelShape:
    layers, hidden, heads, length = (int(row[name]) for name in ("n_layers", "hidden", "n_heads", "seq_len"))
    vocabulary = int(row["vocab"] or _PADDED_VOCABULARY)
    sizes = (layers, hidden, heads, heads, 4 * hidden, False, vocabulary, length, True)
    return ModelShape(*sizes, "learned", "layernorm", has_dropout=True)


def _cluster(row: Row) -> Cluster:
    gpus = int(row["n_gpus"])
    cluster = Cluster(accelerator_named(re.sub(r"\(.*", "", row["gpu"])), min(gpus, 8), -(-gpus // 8))
    # All steps on such devices are Selene's.
    return linked(cluster, links_of("selene") if cluster.accelerator.name == "a100-80gb" else None)


def _layout(row: Row, engine: str) -> Layout:
    gpus, batch, micro_batch = (int(row[name]) for name in ("n_gpus", "global_batch", "micro_batch"))
    degrees = {field: int(row[name] or 1) for name, field in _DEGREES.items()}
    if layout_mesh(degrees).world_size != gpus or batch % (micro_batch * degrees["data_parallel"]):
        raise ValueError("its numbers do not come out")
    return Layout(
        num_nodes=-(-gpus // 8),
        **degrees,
        micro_batch_size=micro_batch,
        grad_accum_steps=batch // micro_batch // degrees["data_parallel"],
        zero_stage=int(row["zero_stage"] or 0),
        activation_checkpointing=row["recompute"],
        sequence_parallel=row["seq_parallel"] == "yes",
        virtual_pipeline_stages=int(row["vp"] or 1),
        precision="fp16",
        engine="megatron-deepspeed" if row["zero_stage"] == "3" else engine,  # ZeRO 3 is never Megatron-LM's
    ).canonical()


def _published_s(row: Row, model: ModelShape, layout: Layout, counting: str | None, peak_flops: float) -> float:
    """Step time, or that at the row's rate, whose FLOPs count recomputation (hardware) or do not (model).

    Narayanan et al., arXiv 2104.04473, eq. 3; Korthikanti et al., arXiv 2205.05198, eq. 7.
    """
    if row["iter_time_s"]:
        return float(row["iter_time_s"])
    if counting is None:
        raise ValueError("it may count recomputation or not")
    passes = 4 if counting == "hardware" else 3
    rate = float(row["tflops_gpu"]) * 1e12 if counting == "hardware" else float(row["mfu"]) / 100 * peak_flops
    layers = model.num_layers * model.hidden_size**2 * (1 + model.seq_length / (6 * model.hidden_size))
    tokens = layout.global_batch_size * model.seq_length
    flops = tokens * (24 * passes * layers + 6 * model.hidden_size * model.vocab_size)
    return flops / (rate * layout.num_gpus)
