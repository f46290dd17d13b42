"""Predicted against measured step time and peak memory of layouts on one GPU, in at most eight minutes.

    python -m benchmarks.gpu [--accelerator h100-80gb] [--minutes 8] [--json]

Each case is a trial of one rank by Parlay's trainer: micro-batch sizes, bf16 and fp32, attention kernels,
recomputation, compilation, the optimizer on the host, and torchtitan with products in 16 and in 8 bits where it is
installed. What a case measured is kept in docs/data/gpu-DATE.json at once, and a second call goes on with the cases
that are missing. A case that cannot run is kept with its reason, and one that lacks a package is tried again.

One GPU shows nothing about links: no collective is measured, so no exchange, pipeline, tensor or data parallelism.
Without a GPU the same cases run with tiny shapes on the CPU, to show that they can be run; build/ keeps what they took.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.output import Line, arguments_of, show
from benchmarks.trainer import spec_of
from search_spaces.cost_model.constants import typical_constants
from search_spaces.cost_model.memory import stage_memory
from search_spaces.cost_model.posterior import MemoryPosterior
from search_spaces.cost_model.step_time import StepTerms
from search_spaces.hardware.cluster import Cluster
from search_spaces.hardware.memory_headroom import rank_memory_gib
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape
from search_spaces.schema.presets import accelerator_named
from trials.files.folders import SearchFolder, read_json, write_json
from trials.measure_rules import MeasureRules
from trials.ranks.engine_packages import installed_packages, package_faults
from trials.trial import Outcome

MODEL = ModelShape(16, 2048, 16, 8, 5632, True, 32000, 2048, False, "rotary", "rmsnorm")
"""0.9 billion parameters: 16 GB of weights, gradients and moments in bf16."""
TINY = ModelShape(2, 64, 2, 2, 192, True, 256, 32, False, "rotary", "rmsnorm")
GLOBAL_BATCH_SIZE = 8
RULES = MeasureRules(min_steps=8, max_steps=16, max_warmup_steps=8, early_stopping=False)
CASE_LIMIT_S = 90.0
"""Above what a case takes, compilation included."""
_BF16 = {"precision": "bf16", "attention_kernel": "flash"}
_FOUR = {**_BF16, "micro_batch_size": 4}
_TORCHTITAN = {**_FOUR, "engine": "torchtitan", "attention_kernel": "flex", "torch_compile": True}
CASES: dict[str, dict[str, Any]] = {
    "fp32": {"micro_batch_size": 1},
    "bf16": {"precision": "bf16"},
    "flash": _BF16,
    "micro-batch 2": {**_BF16, "micro_batch_size": 2},
    "micro-batch 4": _FOUR,
    "micro-batch 8": {**_BF16, "micro_batch_size": 8},
    "selective recomputation": {**_FOUR, "attention_kernel": "math", "activation_checkpointing": "selective"},
    "full recomputation": {**_FOUR, "activation_checkpointing": "full"},
    "compiled": {**_FOUR, "torch_compile": True},
    "optimizer on the host": {**_FOUR, "offload": "optimizer"},
    "torchtitan": _TORCHTITAN,
    "torchtitan, fp8": {**_TORCHTITAN, "matmul_precision": "fp8_tensorwise"},
}
"""Fields of layouts. No engine of Parlay's trainer captures CUDA graphs, so none is here."""
ROOT = Path(__file__).parents[1]
_DEVICE = "import torch; c = torch.cuda; print(torch.__version__, c.get_device_name() if c.is_available() else 'CPU')"
_COMPARED = ("step_time_s", "peak_memory_gib")
_KEPT = (*_COMPARED, "peak_memory_allocated_gib", "mfu", "hfu", "tokens_per_sec", "measured_steps")


def main() -> None:
    arguments = arguments_of(__doc__, accelerator="", minutes=8.0)
    torch, device = found_device()
    is_gpu = device != "CPU"
    accelerator = arguments.accelerator or (accelerator_named(device).name if is_gpu else "cpu")
    head: Line = {"device": device, "torch": torch, "accelerator": accelerator}
    head["model"] = (MODEL if is_gpu else TINY).to_json()
    head["note"] = "One GPU shows nothing about links." if is_gpu else "No GPU: tiny shapes on a CPU."
    print(head["note"], file=sys.stderr)
    file = file_of(ROOT / ("docs/data" if is_gpu else "build"), f"{datetime.now(UTC):%Y-%m-%d}", head)
    show(measured_cases(head, file, arguments.minutes), arguments.json)


def found_device() -> tuple[str, str]:
    """Version of torch, and the GPU's name or CPU; asked in a process that leaves the GPU's memory alone."""
    torch, _, device = subprocess.check_output([sys.executable, "-c", _DEVICE], text=True).strip().partition(" ")
    return torch, device


def file_of(folder: Path, date: str, head: Line) -> Path:
    """The newest file if it is this machine's and has not seen every case, be it of a day before; else today's."""
    today = folder / f"gpu-{date}.json"
    newest = max(folder.glob("gpu-*.json"), default=today)
    kept = read_json(newest) or {}
    return newest if kept.items() >= head.items() and CASES.keys() - kept["cases"].keys() else today


def measured_cases(head: Line, file: Path, minutes: float) -> Iterator[Line]:
    """Line for each case that is not in the file yet, while time is left; SystemExit for another machine's file."""
    kept = read_json(file) or head | {"cases": {}}
    if not kept.items() >= head.items():
        raise SystemExit(f"{file} is of {kept['device']} with torch {kept['torch']}: move it away")
    ends = time.monotonic() + 60 * minutes
    for name in CASES:
        if name in kept["cases"] and "package" not in kept["cases"][name]:
            continue
        if time.monotonic() + CASE_LIMIT_S / 2 > ends:
            print("The time is over: another call goes on from here.", file=sys.stderr)
            return
        kept["cases"][name] = measured_case(name, ModelShape.from_json(head["model"]), head["accelerator"])
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, kept)
        yield {"case": name, **kept["cases"][name]}


def measured_case(name: str, model: ModelShape, accelerator: str) -> Line:
    """What was predicted and measured, and prediction over measurement, less one; or why it ended otherwise."""
    layout = layout_of(name)
    predicted = prediction(model, layout, accelerator)
    line = {"layout": layout.key, "predicted": predicted}
    chip = "a100-80gb" if accelerator == "cpu" else accelerator  # what an A100 needs, a CPU has to stand in for
    if fault := next(package_faults(layout, model, chip, installed_packages()), None):
        return line | {"ended": "not measured", "package": fault.package, "detail": str(fault)}
    outcome = run_case(model, layout, accelerator)
    if outcome is None:
        return line | {"ended": "no outcome in time"}
    if outcome.measured is None:
        return line | {"ended": outcome.reason, "detail": outcome.excerpt and outcome.excerpt[-300:]}
    measured = outcome.measured.to_json()
    # A CPU's memory is that of the process, and no step time is predicted for a device of unknown speed.
    compared = [field for field in _COMPARED if accelerator != "cpu" and predicted[field] is not None]
    off = {field: round(predicted[field] / measured[field] - 1, 4) for field in compared}
    found = {field: measured[field] for field in _KEPT if field in measured}
    return line | {"measured": found, "off": off, "flags": [flag.value for flag in outcome.flags]}


def layout_of(name: str) -> Layout:
    layout = Layout(**CASES[name])
    return replace(layout, grad_accum_steps=GLOBAL_BATCH_SIZE // layout.micro_batch_size).canonical()


def prediction(model: ModelShape, layout: Layout, accelerator: str) -> Line:
    """Step time, memory and the probability to fit before any trial; no step time for a device of unknown speed."""
    cluster, table = Cluster(accelerator_named(accelerator), 1, 1), LayoutTable.of([layout])
    memory = MemoryPosterior(rank_memory_gib(cluster.accelerator, None))
    peaks = stage_memory(model, table).peak
    step_time_s = StepTerms.of(model, cluster, table).seconds(typical_constants())
    return {
        "step_time_s": float(step_time_s[0]) if cluster.accelerator.peak_flops else None,
        "peak_memory_gib": float(peaks[0] * memory.factor),
        "fit_probability": float(memory.fits(peaks)[0]),
    }


def run_case(model: ModelShape, layout: Layout, accelerator: str) -> Outcome | None:
    """Outcome of the trial; None for one that left none in time."""
    with tempfile.TemporaryDirectory(prefix="parlay-gpu-") as folder:
        spec = spec_of(model, layout, accelerator, RULES)
        attempt = SearchFolder(Path(folder)).attempt(spec.trial, spec.attempt)
        attempt.path.mkdir(parents=True)
        write_json(attempt.spec, spec.to_json())
        command = [sys.executable, "-m", "trials.train", str(attempt.spec)]
        world = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, env=os.environ | world, capture_output=True, timeout=CASE_LIMIT_S)
        found = read_json(attempt.outcome())
        return None if found is None else Outcome.from_json(found)


if __name__ == "__main__":
    main()
