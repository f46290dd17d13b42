"""Observation: one measured layout, and the CSV table that stores and exchanges such measurements."""

from __future__ import annotations

import csv
import errno
import io
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path
from typing import Any

from search_spaces.declared import field_types
from search_spaces.decoding import decode_value, parse_json
from search_spaces.errors import InputError, Problem, did_you_mean
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.axis import Kind
from search_spaces.layouts.layout import AXES, CHOICES, DEGREES, LAYOUT_FIELDS, OTHER_DEGREES, Layout
from search_spaces.model_shape import FIELD_TYPES, MODEL_DEFAULTS, ModelShape
from search_spaces.plain_file import read_named
from search_spaces.schema.presets import accelerator_named
from search_spaces.tables.csv_rows import csv_rows, escape_cell, row_length_error, unescape_cell

OUTCOMES = ("ok", "oom", "failed")
MAX_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Observation:
    """Result of one layout: a row of the table. Times in seconds, memory in GiB; unknown is None.

    `outcome` is ok, oom, or failed where the cause is unknown. `cluster` has the ranks that took part, `layout` is
    canonical. `source` names who measured it, `problem` the closed set of rows it belongs to: one model on one cluster
    with one global batch.
    """

    problem: str
    source: str
    model_name: str
    model: ModelShape
    cluster: Cluster
    global_batch_size: int
    layout: Layout
    outcome: str
    step_time_s: float | None = None
    peak_memory_gib: float | None = None
    cluster_name: str | None = None
    failure_reason: str | None = None
    step_time_p95_s: float | None = None
    recorded_duration_s: float | None = None
    queue_wait_s: float | None = None
    search_id: str | None = None
    trial: str | None = None
    kind: str | None = None

    @property
    def duration_s(self) -> float:
        """Seconds that the trial held its nodes: as recorded, else a minute of start-up and fifteen steps."""
        if self.recorded_duration_s is not None:
            return self.recorded_duration_s
        return 60.0 if self.step_time_s is None else 60.0 + 15.0 * self.step_time_s


def read_table(path: Path, option: str | None = None) -> tuple[Observation, ...]:
    """The rows of the table in this file; InputError where it cannot be read, or with every invalid column or row.

    `option` is the one of the command line that names it; None where a file does, in which the mistake then is.
    """
    try:
        raw = read_named(path, MAX_BYTES)
    except OSError as error:
        why, rule = f"cannot be read: {error.strerror or error}", "a table exists and is readable"
        base = "folder of the file that names it" if option is None else "working directory"
        fix = f"check the path, relative to the {base}, and its permissions"
        if error.errno == errno.EFBIG:
            fix = "remove rows of other models and machines"
        problem = Problem("file", why, rule, fix, key=option, value=str(path), file=str(path))
        if option is None:
            problem = replace(problem, message=f"{path} {why}", file=None)
        raise InputError(problem) from error
    try:
        return parse_table(raw.decode("utf-8-sig"), str(path))  # spreadsheets write a byte order mark
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError.of("encoding", "not UTF-8", file=str(path), line=line, fix="save it as UTF-8") from error


def parse_table(text: str, file: str) -> tuple[Observation, ...]:
    """The rows of the table in this text; `file` is its name in problems."""
    rows = csv_rows(text, file)
    header_line, names = next(rows, None) or (1, [])
    header = [name.strip() for name in names]
    _require_columns(header, file, header_line)
    observations: list[Observation] = []
    problems: list[Problem] = []
    trials: set[tuple[str, str]] = set()
    for line, cells in rows:
        try:
            observation = _observation(_cells(header, cells))
            _require_new_trial(observation, trials)
            observations.append(observation)
        except InputError as error:
            problems += error.at(file=file, line=line).problems
    if problems:
        raise InputError(*problems)
    return tuple(observations)


def render_table(observations: Iterable[Observation], comments: Iterable[str] = ()) -> str:
    """The observations as CSV; reading it back gives equal observations."""
    out = io.StringIO()
    for comment in comments:
        out.write("# " + " ".join(comment.split()) + "\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for observation in observations:
        row = _row(observation)
        writer.writerow([_cell(name, row[name]) for name in COLUMNS])
    return out.getvalue()


REQUIRED_COLUMNS = (
    "problem",
    "source",
    "model_name",
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "ffn_hidden_size",
    "gated_mlp",
    "vocab_size",
    "tied_embeddings",
    "seq_length",
    "accelerator",
    "num_gpus",
    "gpus_per_node",
    "global_batch_size",
    "tensor_parallel",
    "pipeline_parallel",
    "data_parallel",
    "micro_batch_size",
    "grad_accum_steps",
    "zero_stage",
    "sequence_parallel",
    "activation_checkpointing",
    "attention_kernel",
    "outcome",
    "step_time_s",
    "peak_memory_gib",
)
OPTIONAL_COLUMNS = (
    *(name for name in LAYOUT_FIELDS if name not in REQUIRED_COLUMNS),
    "num_key_value_heads",
    "position_embedding",
    "norm",
    *MODEL_DEFAULTS,
    "cluster",
    "failure_reason",
    "step_time_p95_s",
    "duration_s",
    "queue_wait_s",
    "search_id",
    "trial",
    "kind",
)
COLUMNS = REQUIRED_COLUMNS + OPTIONAL_COLUMNS

_PRECISIONS = {"h100-80gb": "bf16", "a100-80gb": "fp16", "a100-40gb": "fp16"}
"""Precision of tables without that column, by accelerator."""

_ENGINES = {"ultrascale-playbook": "nanotron", "vtrain": "megatron-deepspeed"}
"""Engine of published tables, by source."""

_SAME_ARITHMETIC = {"fused-softmax": "math"}

Cells = Mapping[str, Any]


def _require_columns(header: list[str], file: str, line: int) -> None:
    if not {"problem", "outcome"} & {*header}:
        rule = "a measured table has the columns " + ", ".join(REQUIRED_COLUMNS)
        fix = "parlay import makes one of other programs' results, parlay export SEARCH of a search"
        raise InputError.of("missing_column", "is not a measured table", rule=rule, fix=fix, file=file, line=line)
    problems = [
        Problem("missing_column", f"column {name} is missing", fix=_ALL_COLUMNS, file=file, line=line, key=name)
        for name in REQUIRED_COLUMNS
        if name not in header
    ]
    for index, name in enumerate(header):
        if name not in COLUMNS:
            fix = did_you_mean(name, COLUMNS) or "remove it"
            problems.append(Problem("unknown_column", f"unknown column {name!r}", fix=fix, file=file, line=line))
        elif name in header[:index]:
            fix = "remove one of the two"
            problems.append(Problem("duplicate_column", f"column {name} occurs twice", fix=fix, file=file, line=line))
    if problems:
        raise InputError(*problems)


_ALL_COLUMNS = "add it; parlay export SEARCH writes a table that has them all"


def _require_new_trial(observation: Observation, seen: set[tuple[str, str]]) -> None:
    if observation.search_id is None or observation.trial is None:
        return
    name = (observation.search_id, observation.trial)
    if name in seen:
        message, fix = f"{'.'.join(name)} occurs twice", "remove one of the two rows"
        raise InputError.of("duplicate_trial", message, key="trial", value=name[1], fix=fix)
    seen.add(name)


def _cells(header: list[str], cells: list[str]) -> dict[str, Any]:
    if len(cells) != len(header):
        raise row_length_error(len(cells), len(header))
    problems: list[Problem] = []
    values: dict[str, Any] = dict.fromkeys(COLUMNS)
    for name, cell in zip(header, (cell.strip() for cell in cells), strict=True):
        try:
            if cell:
                values[name] = _value(name, cell)
            elif name in REQUIRED_COLUMNS[:-2]:
                problems.append(Problem("missing_value", "is empty", fix="fill it in, or remove the row", key=name))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    return values


def _value(name: str, cell: str) -> Any:
    """The value in a cell by the column's type."""
    if (kind := _TYPES[name]) is str:
        return unescape_cell(cell)
    if kind not in _FORMS:
        return _of_json(kind, name, unescape_cell(cell))
    form, rule = _FORMS[kind]
    if not re.fullmatch(form, cell):
        raise _bad_cell(name, cell, rule)
    return cell == "1" if kind is bool else kind(cell)


def _of_json(kind: Any, name: str, text: str) -> Any:
    try:
        return decode_value(kind, parse_json(text), name)
    except ValueError as error:
        raise _bad_cell(name, text, f"JSON of the model's {name}: {error}") from None


_FORMS: Mapping[Any, tuple[str, str]] = {
    bool: ("[01]", "0 or 1"),
    int: ("[0-9]{1,12}", "a whole number"),
    float: (
        r"[0-9]{1,15}(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,2})?",
        "a number of 0 or more with a decimal point",
    ),
}
_BY_KIND = {Kind.WORD: str, Kind.SETTINGS: str, Kind.SWITCH: bool}
_TYPES: Mapping[str, type] = {
    **dict.fromkeys(COLUMNS, int),
    **field_types(Observation),
    **dict.fromkeys(("accelerator", "cluster"), str),
    "duration_s": float,
    **FIELD_TYPES,
    **{name: _BY_KIND.get(axis.kind, int) for name, axis in AXES.items()},
}


def _bad_cell(name: str, cell: str, rule: str) -> InputError:
    return InputError.of("cell", f"is {cell!r}", rule=rule, key=name, value=cell)


def _observation(cells: Cells) -> Observation:
    _require_outcome(cells)
    cluster = _cluster(cells)
    layout = _layout(cells, cluster)
    if cells["outcome"] == "ok":
        _require_products(cells)
    return Observation(
        model=_model(cells),
        cluster=cluster,
        layout=layout,
        cluster_name=cells["cluster"],
        recorded_duration_s=cells["duration_s"],
        **{name: cells[name] for name in _COPIED_COLUMNS},
    )


_COPIED_COLUMNS = tuple(f.name for f in fields(Observation) if f.name in COLUMNS and f.name != "cluster")
"""Columns that an observation has as they are."""


def _require_outcome(cells: Cells) -> None:
    outcome, step_time_s = cells["outcome"], cells["step_time_s"]
    if outcome not in OUTCOMES:
        raise _bad_cell("outcome", outcome, "one of " + ", ".join(OUTCOMES))
    if outcome == "ok" and not step_time_s:
        rule, fix = "a row that ran has a step time", "fill it in, or write oom or failed as the outcome"
        raise InputError.of("cell", "is empty or 0", rule=rule, key="step_time_s", fix=fix)
    if outcome != "ok" and step_time_s is not None:
        raise _bad_cell("step_time_s", str(step_time_s), f"a row that is {outcome} has no step time")


def _require_products(cells: Cells) -> None:
    """InputError for a row that ran with a wrong world size or global batch; one that failed may have failed for it."""
    for whole, parts in _PRODUCTS.items():
        # A table may be older than a degree of parallelism.
        values = {name: AXES[name].default if cells[name] is None else cells[name] for name in parts}
        product = prod(values.values())
        if product != cells[whole]:
            numbers = " x ".join(f"{name} {value}" for name, value in values.items())
            rule = f"a row that ran has {' x '.join(parts)} = {whole}"
            raise InputError.of("cell", f"is {cells[whole]}, but {numbers} = {product}", rule=rule, key=whole)


_PRODUCTS = {
    "num_gpus": (*DEGREES.values(), *OTHER_DEGREES.values()),
    "global_batch_size": ("micro_batch_size", "grad_accum_steps", "data_parallel"),
}


def _model(cells: Cells) -> ModelShape:
    """The row's model; positions and norm are assumed where the table does not say them."""
    position_embedding, norm = positions_and_norm(cells["gated_mlp"])
    heads = cells["num_attention_heads"]
    usual = {"num_key_value_heads": heads, "position_embedding": position_embedding, "norm": norm}
    return ModelShape(**usual | {name: cells[name] for name in FIELD_TYPES if cells[name] is not None})


def positions_and_norm(gated_mlp: bool) -> tuple[str, str]:
    """(position_embedding, norm) assumed for a table's models: Llama's for gated ones, else GPT-2's."""
    return ("rotary", "rmsnorm") if gated_mlp else ("learned", "layernorm")


def _cluster(cells: Cells) -> Cluster:
    """The ranks that took part; a table's node may have more GPUs than were used."""
    gpus, per_node = cells["num_gpus"], cells["gpus_per_node"]
    if not gpus or not per_node or (gpus > per_node and gpus % per_node):
        message, rule = f"is {gpus} with {per_node} GPUs a node", "a part of one node, or whole nodes"
        raise InputError.of("cell", message, rule=rule, key="num_gpus", value=gpus)
    return Cluster(accelerator_named(cells["accelerator"]), min(gpus, per_node), -(-gpus // per_node))


def _layout(cells: Cells, cluster: Cluster) -> Layout:
    known = {name: cells[name] for name in LAYOUT_FIELDS if cells.get(name) is not None}
    defaults: dict[str, Any] = {
        "num_nodes": cluster.num_nodes,
        "pipeline_schedule": "1f1b",
        "precision": _PRECISIONS.get(cluster.accelerator.name),
        "engine": _ENGINES.get(cells["source"]),
    }
    fields = defaults | known
    fields["attention_kernel"] = _SAME_ARITHMETIC.get(fields["attention_kernel"], fields["attention_kernel"])
    for name in ("precision", "engine"):
        if fields[name] is None:
            fix = f"fill column {name} in: one of {', '.join(CHOICES[name])}"
            raise InputError.of("missing_value", "is missing and cannot be derived", key=name, fix=fix)
    return Layout(**fields).canonical()


def _row(observation: Observation) -> dict[str, Any]:
    layout, cluster = observation.layout, observation.cluster
    return {
        **layout.to_json(),
        **observation.model.to_json(),
        **{name: getattr(observation, name) for name in _COPIED_COLUMNS},
        "accelerator": cluster.accelerator.name,
        "num_gpus": cluster.num_gpus,
        "gpus_per_node": cluster.gpus_per_node,
        "cluster": observation.cluster_name,
        "duration_s": observation.recorded_duration_s,
    }


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if (kind := _TYPES[name]) is str:
        return escape_cell(str(value))
    return repr(value) if kind in _FORMS else json.dumps(value)
