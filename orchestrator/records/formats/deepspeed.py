"""Import of the results of DeepSpeed's autotuning: autotuning_results/, one folder per experiment. Executes nothing.

By the format of DeepSpeed 0.19, deepspeed/autotuning: `exp.json` has the number of ranks and the configuration,
`metrics.json` the measurement (`throughput` in sequences per second, from the timers of forward, backward and step),
`stderr.log` the error of a failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.config.importers.deepspeed_config import read_ds_config
from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.source_file import json_object
from orchestrator.config.spec import SearchSpec
from orchestrator.records.formats.reading import layout_of, read_text, result_of, rows_of
from orchestrator.records.observations import TableRows
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout, layout_mesh
from search_spaces.tables.measured_table import Observation
from trials.files.text import tail

KIND = "deepspeed"
UNFINISHED, NO_LAYOUT_FIELD = "unfinished", "no_layout_field"
"""Reasons for leaving an experiment out: neither a measurement nor an error; parameters are offloaded."""

_EXPERIMENT, _CONFIG, _METRICS, _ERRORS = "exp.json", "ds_config.json", "metrics.json", "stderr.log"
_LOG_LINES = 400
_MOST_EXPERIMENTS = 10_000
_OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|CUBLAS_STATUS_ALLOC_FAILED")
OVERSTATES = (
    "DeepSpeed's autotuning times forward, backward and step separately and omits the time between them,"
    " so its throughput is slightly too high."
)


def read_autotuning(folder: Path, spec: SearchSpec) -> TableRows:
    """One row per experiment below this folder that was measured or failed.

    Experiments differ in global batch size, and each size is a problem of its own. Stages are those of the search's
    baseline, and tensor parallelism fills the remaining ranks. InputError without experiments, or for an unreadable
    one.
    """
    experiments = list(_experiments(folder))
    if not experiments:
        raise InputError.of(
            "file",
            f"holds no folder with {_EXPERIMENT}",
            file=str(folder),
            rule="DeepSpeed's autotuning_results/ has a folder for each experiment",
            fix="name that folder",
        )
    results = (({"file": str(experiment)}, partial(_row, experiment, spec)) for experiment in experiments)
    return rows_of(results)


def _experiments(folder: Path) -> Iterator[Path]:
    """Folders of the experiments, sorted, without the one that only profiles the model."""
    try:
        below = sorted(path for path in folder.iterdir() if (path / _EXPERIMENT).is_file())
    except OSError as error:
        message, fix = f"cannot be read: {error.strerror or error}", "name a folder that you may read"
        raise InputError.of("file", message, file=str(folder), fix=fix) from error
    if len(below) > _MOST_EXPERIMENTS:
        message, fix = f"has more than {_MOST_EXPERIMENTS} experiments", "import them from several folders"
        raise InputError.of("file", message, file=str(folder), fix=fix)
    yield from (path for path in below if path.name != "profile_model_info")


def _row(experiment: Path, spec: SearchSpec) -> Observation | str:
    described = _object(experiment / _EXPERIMENT)
    config = read_text(experiment / _CONFIG)
    if _moves_parameters(_object_of(config, experiment / _CONFIG)):
        return NO_LAYOUT_FIELD
    found = read_ds_config(config)
    gpus, nodes = (_count(described, name, experiment) for name in ("num_gpus", "num_nodes"))
    layout = _layout(spec, found, gpus, nodes)
    if (experiment / _METRICS).is_file():
        return _measured(spec, experiment / _METRICS, layout, gpus)
    errors = tail(experiment / _ERRORS, _LOG_LINES) if (experiment / _ERRORS).is_file() else ""
    if "error" not in errors.lower():
        return UNFINISHED
    outcome = "oom" if _OUT_OF_MEMORY.search(errors) else "failed"
    return result_of(spec, KIND, layout, outcome, gpus_per_node=gpus)


def _measured(spec: SearchSpec, path: Path, layout: Layout, gpus: int) -> Observation:
    throughput: Any = _object(path).get("throughput")
    if type(throughput) not in (int, float) or throughput <= 0:
        rule = "metrics.json has a throughput in sequences a second"
        raise InputError.of(
            "cell", f"is {throughput!r:.60}", rule=rule, fix=_TAKE_OUT, key="throughput", value=throughput
        )
    step_time_s = layout.global_batch_size / throughput
    return result_of(spec, KIND, layout, "ok", gpus_per_node=gpus, step_time_s=step_time_s)


_TAKE_OUT = "move the experiment's folder out of the results"


def _layout(spec: SearchSpec, found: ImportedConfig, gpus: int, nodes: int) -> Layout:
    """The experiment's layout: data-parallel ranks by its batch sizes, stages of the baseline, tensor-parallel ranks
    for the rest."""
    given: dict[str, Any] = dict(found.layout) | {"num_nodes": nodes}
    world, data = gpus * nodes, given.get("data_parallel")
    if data is None:
        raise InputError.of(
            "batch",
            "lacks one of the three batch sizes",
            key="train_batch_size",
            rule="an experiment's configuration gives train_batch_size, micro batch and accumulation as numbers",
            fix=_TAKE_OUT,
        )
    stages = 1 if spec.baseline is None else spec.baseline.pipeline_parallel
    given["pipeline_parallel"] = stages
    ranks = layout_mesh(given).without("tp").world_size
    if world % ranks:
        message = f"{data} data-parallel ranks x {stages} stages do not divide {nodes} nodes x {gpus} GPUs"
        rule = "data-parallel ranks x the baseline's stages x tensor-parallel ranks fill an experiment's GPUs"
        fix = f"set baseline.pipeline_parallel to the stages that the experiments used, or {_TAKE_OUT}"
        raise InputError.of("world", message, rule=rule, fix=fix, key="train_batch_size", value=found.global_batch_size)
    given["tensor_parallel"] = world // ranks
    return layout_of(spec, given, world)


def _moves_parameters(config: Mapping[str, Any]) -> bool:
    zero = config.get("zero_optimization")
    offload = zero.get("offload_param") if isinstance(zero, Mapping) else None
    return isinstance(offload, Mapping) and offload.get("device", "none") != "none"


def _count(described: Mapping[str, Any], name: str, experiment: Path) -> int:
    value = described.get(name)
    if type(value) is not int or not 1 <= value <= 100_000:
        rule = "a whole number from 1 to 100000"
        where = str(experiment / _EXPERIMENT)
        raise InputError.of("cell", f"is {value!r:.60}", rule=rule, key=name, value=value, file=where)
    return value


def _object(path: Path) -> dict[str, Any]:
    return _object_of(read_text(path), path)


def _object_of(text: str, path: Path) -> dict[str, Any]:
    try:
        return json_object(text, "autotuning", f"an autotuning experiment's {path.name}")
    except InputError as error:
        raise error.at(file=str(path)) from None
