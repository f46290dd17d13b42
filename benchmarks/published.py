"""Published figures of single layouts against the predictions of the cold models.

Four kinds of CSV are recognised by their columns: step times and rates of layouts (`source,table,model,...` and
`system,case,...`), memory by what it is for (`figure,model,mode,...`), and memory by rank (`rank,pp_stage,...`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machines import linked, links_of
from search_spaces.cost_model.memory import GIB, StageMemory, stage_memory
from search_spaces.cost_model.posterior import typical_constants
from search_spaces.cost_model.stage_table import StageTable
from search_spaces.cost_model.step_time import StepTerms
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import AXES, DEGREES, Layout, layout_mesh
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape
from search_spaces.schema.presets import accelerator_named

Row = Mapping[str, str]
Line = dict[str, Any]


def is_published(path: Path) -> bool:
    """True if the table has published figures of a known kind."""
    return _reader_of(path) is not None


def columns_of(path: Path) -> set[str]:
    return set(next(iter(_rows(path)), {}))


def published_lines(paths: Iterable[Path]) -> Iterator[Line]:
    """Line per figure, and a summary of each source; a figure in two tables counts once."""
    seen = set()
    lines = []
    for path in paths:
        reader = _reader_of(path)
        for line in [] if reader is None else reader(_rows(path)):
            key = (line["case"], line["quantity"], line["reading"], line["published"])
            if key not in seen:
                seen.add(key)
                lines.append(line)
                yield line
    for source in dict.fromkeys(line["source"] for line in lines):
        yield from _summaries(source, [line for line in lines if line["source"] == source])


def readable_published(line: Line) -> str:
    if "summary" in line:
        mean, worst = (f"{line[name]:.1%}" for name in ("error_mean", "error_max"))
        return (
            f"= {line['source']}: {line['quantity']} off {mean} in the mean, {worst} at most, {line['count']} figures"
        )
    reading = f" if {line['reading']} FLOPs" if line["reading"] else ""
    found = f"{line['published']:9.2f}{reading:19} predicted {line['predicted']:9.2f} {line['error']:+7.1%}"
    return f"{line['source'][:28]:28} {line['case']:52} {line['quantity']:26} {found}"


def _line(source: str, case: str, quantity: str, published: float, predicted: float, reading: str = "") -> Line:
    """`reading` says how FLOPs are counted where the source does not; such a line counts in no summary."""
    error = round(predicted / published - 1, 4)
    figures = {"published": round(published, 3), "predicted": round(predicted, 3), "error": error}
    return {"source": source, "case": case, "quantity": quantity, "reading": reading, **figures}


def _summaries(source: str, lines: list[Line]) -> Iterator[Line]:
    for quantity in dict.fromkeys(line["quantity"] for line in lines):
        errors = [abs(line["error"]) for line in lines if line["quantity"] == quantity and not line["reading"]]
        if errors:
            figures = {"error_mean": round(float(np.mean(errors)), 4), "error_max": max(errors), "count": len(errors)}
            yield {"published": None, "summary": True, "source": source, "quantity": quantity, **figures}


# -- step times


@dataclass(frozen=True)
class _Training:
    """Published layout of a model on a machine."""

    model: ModelShape
    cluster: Cluster
    layout: Layout

    @classmethod
    def of(cls, row: Row, engine: str, kernel: str) -> _Training:
        """InputError or ValueError where the row does not say all of it."""
        gpus, hidden = int(row["num_gpus"]), int(row["hidden_size"])
        accelerator = accelerator_named(re.sub(r"\(.*", "", row["accelerator"]))
        per_node = int(row.get("gpus_per_node") or 8)
        cluster = Cluster(accelerator, min(gpus, per_node), -(-gpus // per_node))
        degrees = {field: int(row.get(field) or AXES[field].default) for field in DEGREES.values()}
        batch, micro_batch = int(row["global_batch_size"]), int(row["micro_batch_size"])
        if layout_mesh(degrees).world_size != gpus or batch % (micro_batch * degrees["data_parallel"]):
            raise ValueError("its numbers do not come out")
        layout = Layout(
            num_nodes=cluster.num_nodes,
            **degrees,
            micro_batch_size=micro_batch,
            grad_accum_steps=batch // micro_batch // degrees["data_parallel"],
            zero_stage=int(row["zero_stage"] or 0),
            activation_checkpointing=row["activation_checkpointing"],
            sequence_parallel=row.get("sequence_parallel") == "yes",
            virtual_pipeline_stages=int(row.get("virtual_pipeline_stages") or 1),
            precision="fp16",
            attention_kernel=kernel,
            engine=engine,
        ).canonical()
        links = links_of(_MACHINES.get(accelerator.name, ""))
        return cls(_gpt(row, hidden), linked(cluster, links), layout)

    @property
    def predicted_s(self) -> float:
        terms = StepTerms.of(self.model, self.cluster, LayoutTable.of([self.layout]))
        return float(terms.seconds(typical_constants())[0])

    def seconds_at(self, tflops_per_gpu: float, counting: str) -> float:
        """Step time at this rate, with FLOPs counted with recomputation (hardware) or without (model).

        Narayanan et al., arXiv 2104.04473, eq. 3; Korthikanti et al., arXiv 2205.05198, eq. 7.
        """
        model, passes = self.model, 4 if counting == "hardware" else 3
        layers = model.num_layers * model.hidden_size**2 * (1 + model.seq_length / (6 * model.hidden_size))
        tokens = self.layout.global_batch_size * model.seq_length
        flops = tokens * (24 * passes * layers + 6 * model.hidden_size * model.vocab_size)
        return flops / (tflops_per_gpu * 1e12 * self.layout.num_gpus)

    @property
    def description(self) -> str:
        x = self.layout
        shape = f"{self.model.parameters / 1e9:.1f}B on {x.num_gpus}: tp{x.tensor_parallel} pp{x.pipeline_parallel}"
        chunks = [f"v{x.virtual_pipeline_stages}"] * (x.virtual_pipeline_stages > 1)
        zero = [f"z{x.zero_stage}"] * (x.zero_stage > 0)
        batch = [f"dp{x.data_parallel}", f"mb{x.micro_batch_size}"]
        return " ".join([shape, *batch, *chunks, *zero, x.activation_checkpointing])


_MACHINES = {"a100-80gb": "selene", "mi250x-gcd-64gb": "frontier"}
"""Machine of the published figures, by accelerator."""

_PADDED_VOCABULARY = "51200"
"""Vocabulary where none is stated: GPT-2's 50257, padded; a few thousandths of the work."""


def _gpt(row: Row, hidden: int) -> ModelShape:
    layers, heads = int(row["num_layers"]), int(row["num_attention_heads"])
    vocabulary, length = int(row["vocab_size"] or _PADDED_VOCABULARY), int(row["seq_length"])
    return ModelShape(layers, hidden, heads, heads, 4 * hidden, False, vocabulary, length, True, "learned", "layernorm")


def _of_papers(rows: Iterable[Row]) -> Iterator[Line]:
    """Rows that state their layout, and their step time or the way their FLOPs are counted."""
    for row in rows:
        source = next((known for known in _PAPERS if known in row["source"]), None)
        if source is None:
            continue
        engine, counting = _PAPERS[source]
        try:
            training = _Training.of(_renamed(row), _ZERO_3 if row["zero_stage"] == "3" else engine, "math")
        except (InputError, ValueError):
            continue
        published_s = _published_s(row, training, counting)
        if published_s is not None:
            yield _line(
                f"{source} {row['table']}", training.description, "step_time_s", published_s, training.predicted_s
            )


# Trainer, and how the paper counts FLOPs where it gives a rate instead of a time. Not among them is the log of a 175B
# run on Frontier: with the batch of its command line it would have reached 77 % of the peak, twice what its authors
# publish, and its configuration file names another batch.
_PAPERS = {
    "SC21": ("megatron-lm", "hardware"),
    "Korthikanti": ("megatron-lm", "model"),
    "MT-NLG": ("megatron-deepspeed", None),
}


_ZERO_3 = "megatron-deepspeed"
"""Trainer of the ZeRO 3 rows that Megatron-LM was compared with."""


def _published_s(row: Row, training: _Training, counting: str | None) -> float | None:
    if row["iter_time_s"]:
        return float(row["iter_time_s"])
    if counting == "hardware" and row["tflops_gpu"]:
        return training.seconds_at(float(row["tflops_gpu"]), "hardware")
    if counting == "model" and row["mfu"]:
        return training.seconds_at(float(row["mfu"]) / 100 * _peak_tflops(training), "model")
    return None


def _peak_tflops(training: _Training) -> float:
    return (training.cluster.accelerator.peak_flops_for("fp16") or 0) / 1e12


def _renamed(row: Row) -> dict[str, str]:
    """Row of a paper with the names of the other table."""
    return {_NAMES.get(name, name): cell for name, cell in row.items()}


_NAMES = {
    "n_layers": "num_layers",
    "hidden": "hidden_size",
    "n_heads": "num_attention_heads",
    "vocab": "vocab_size",
    "seq_len": "seq_length",
    "gpu": "accelerator",
    "n_gpus": "num_gpus",
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "dp": "data_parallel",
    "vp": "virtual_pipeline_stages",
    "global_batch": "global_batch_size",
    "micro_batch": "micro_batch_size",
    "recompute": "activation_checkpointing",
    "seq_parallel": "sequence_parallel",
}


def _of_systems(rows: Iterable[Row]) -> Iterator[Line]:
    """Published step times, else those of a rate in both readings."""
    for row in rows:
        engine, kernel = _SYSTEMS.get(row["system"], ("megatron-deepspeed", "math"))
        try:
            training = _Training.of(row, engine, kernel)
        except (InputError, ValueError):
            continue
        source, predicted_s = f"{row['system']} {row['case']}", training.predicted_s
        if row["step_time_s"]:
            yield _line(source, training.description, "step_time_s", float(row["step_time_s"]), predicted_s)
            continue
        rate = float(row["tflops_per_gpu"] or float(row["pct_of_peak"]) / 100 * _peak_tflops(training))
        for reading in ("hardware", "model"):
            published_s = training.seconds_at(rate, reading)
            yield _line(source, training.description, "step_time_s", published_s, predicted_s, reading)


_SYSTEMS = {"frontier": ("megatron-deepspeed", "flash"), "yuan-1.0": ("megatron-lm", "math")}


# -- memory


def _of_figures(rows: Iterable[Row]) -> Iterator[Line]:
    """Memory by purpose in GiB: figure 1 of Korthikanti et al., with the layouts of their table 3."""
    for row in rows:
        if row["figure"] == "fig1":
            model, layout = _FIGURE_1[row["model"]]
            found = _FIGURE_1_QUANTITIES[row["mode"]](model, layout)
            quantity = row["quantity"].replace(" GiB", "_gib") + {"seqsel": " (selective)"}.get(row["mode"], "")
            yield _line("Korthikanti Figure 1", row["model"], quantity, float(row["published"]), found)


def _figure_1(layers: int, hidden: int, heads: int, **layout: int) -> tuple[ModelShape, Layout]:
    model = ModelShape(layers, hidden, heads, heads, 4 * hidden, False, 51200, 2048, True, "learned", "layernorm")
    whole = {"tensor_parallel": 8, "precision": "fp16", "engine": "megatron-lm", "grad_accum_steps": 512} | layout
    return model, Layout(**whole).canonical()  # type: ignore[arg-type]


_FIGURE_1 = {
    "22B": _figure_1(48, 6144, 64, micro_batch_size=4),
    "175B": _figure_1(96, 12288, 96, pipeline_parallel=8, virtual_pipeline_stages=3),
    "530B": _figure_1(105, 20480, 128, pipeline_parallel=35, virtual_pipeline_stages=3),
    "1T": _figure_1(128, 25600, 160, pipeline_parallel=64),
}


def _state_gib(model: ModelShape, layout: Layout) -> float:
    """Model state in GiB of a stage without embedding and head, where there is one: the paper counts layers only."""
    found = _memory(model, layout)
    return float((found.weights + found.gradients + found.optimizer)[0, 1])


def _all_activations_gib(model: ModelShape, layout: Layout) -> float:
    return float(_memory(model, layout).activations[0, 0])


def _selective_activations_gib(model: ModelShape, layout: Layout) -> float:
    """Stored activations in GiB; the scores of the layer being recomputed come on top."""
    given = replace(layout, sequence_parallel=True, activation_checkpointing="selective")
    at_work = 5 * layout.micro_batch_size * model.num_attention_heads * model.seq_length**2 / layout.tensor_parallel
    return _all_activations_gib(model, given) - at_work / GIB


_FIGURE_1_QUANTITIES: Mapping[str, Callable[[ModelShape, Layout], float]] = {
    "any": _state_gib,
    "none": _all_activations_gib,
    "seqsel": _selective_activations_gib,
}


def _memory(model: ModelShape, layout: Layout) -> StageMemory:
    return stage_memory(model, LayoutTable.of([layout]), StageTable.ends(model, LayoutTable.of([layout])))


def _of_log(rows: Iterable[Row]) -> Iterator[Line]:
    """Memory of each stage in the backward pass in GiB; fp16 skips its first step, so there was no update yet."""
    model = ModelShape(96, 12288, 96, 96, 4 * 12288, False, 50688, 2048, True, "learned", "layernorm")
    logged_mib = {int(row["pp_stage"]): float(row["max_allocated_mb"]) for row in rows}
    found = stage_memory(model, LayoutTable.of([FRONTIER_LOGGED]), StageTable.of_layout(model, FRONTIER_LOGGED))
    backward_gib = found.in_backward[0]
    for stage, mib in logged_mib.items():
        predicted = float(backward_gib[stage])
        yield _line("Frontier 175B log", f"stage {stage:2d}", "peak_memory_gib", mib / 1024, predicted)


FRONTIER_LOGGED = Layout(
    num_nodes=16,
    tensor_parallel=4,
    pipeline_parallel=16,
    data_parallel=2,
    grad_accum_steps=640,
    zero_stage=1,
    activation_checkpointing="full",
    precision="fp16",
    attention_kernel="flash",
    engine="megatron-deepspeed",
).canonical()
"""The log's own command line, launch_gpt175b_tflops_149.slurm of Megatron-DeepSpeed-ORNL."""


# -- tables

_READERS: Mapping[frozenset[str], Callable[[Iterable[Row]], Iterator[Line]]] = {
    frozenset({"source", "table", "n_layers", "iter_time_s", "tflops_gpu"}): _of_papers,
    frozenset({"system", "case", "num_layers", "step_time_s", "pct_of_peak"}): _of_systems,
    frozenset({"figure", "model", "mode", "quantity", "published"}): _of_figures,
    frozenset({"rank", "pp_stage", "max_allocated_mb"}): _of_log,
}


def _reader_of(path: Path) -> Callable[[Iterable[Row]], Iterator[Line]] | None:
    header = columns_of(path)
    return next((reader for columns, reader in _READERS.items() if columns <= header), None)


def _rows(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))
