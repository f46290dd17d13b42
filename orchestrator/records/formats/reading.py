"""Reading of other programs' results: texts within bounds, rows whose mistakes are told all at once, and layouts that a
search file completes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from orchestrator.config.spec import SearchSpec
from orchestrator.records.observations import TableRows, observation_of
from search_spaces.errors import InputError, Problem
from search_spaces.layouts.layout import BATCH_RULE, DERIVED, MODEL_DEGREES, OTHER_DEGREES, WORLD_RULE, Layout
from search_spaces.layouts.workload import BATCH_FIX, WORLD_FIX
from search_spaces.plain_file import read_named
from search_spaces.tables.measured_table import Observation

_NEEDED = ("tensor_parallel", "pipeline_parallel", "micro_batch_size")
"""Fields without a usable default."""
_SHORTEST_S, _LONGEST_S = 1e-9, 1e9


def read_text(path: Path) -> str:
    """Read a regular file as UTF-8; InputError if it cannot be read, is too large or is not UTF-8."""
    try:
        raw = read_named(path)
    except OSError as error:
        fix = "name the table itself, a plain file that you may read"
        raise _no_text(path, f"cannot be read: {error.strerror or error}", fix) from error
    try:
        return raw.decode("utf-8-sig")  # spreadsheets write a byte-order mark
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _no_text(path, "is not UTF-8", "save it as UTF-8", line) from error


def _no_text(path: Path, message: str, fix: str, line: int | None = None) -> InputError:
    rule = "results are text, CSV or JSON; nothing is unpickled"
    return InputError.of("file", message, file=str(path), line=line, value=str(path), rule=rule, fix=fix)


def rows_of(results: Iterable[tuple[Mapping[str, Any], Callable[[], Observation | str]]]) -> TableRows:
    """Read all results, each by a function that returns its row or the reason for leaving it out.

    InputError with the problems of all invalid results, each with its location.
    """
    found: list[Observation | str] = []
    problems: list[Problem] = []
    for where, read in results:
        try:
            found.append(read())
        except InputError as error:
            problems += error.at(**where).problems
    if problems:
        raise InputError(*problems)
    return TableRows.of(found)


def layout_of(spec: SearchSpec, given: Mapping[str, Any], num_gpus: int | None = None) -> Layout:
    """The canonical layout with these fields, the others taken from the search.

    A missing field is the baseline's, else the only value in the search's space, else Layout's default. Data
    parallelism fills `num_gpus`, or all ranks of the layout's nodes; accumulation fills the search's global batch
    unless it is given. InputError for a searched field that is given nowhere, or if a product does not match.
    """
    Layout(**given)  # checks each field by itself
    defaults, searched = _defaults_and_missing(spec)
    fields = defaults | dict(given)
    missing = [name for name in searched if name not in fields]
    if missing:
        raise InputError.of(
            "missing_field",
            f"neither the results nor the search file give {', '.join(missing)}",
            key=missing[0],
            rule="a field that the results lack is in the search's baseline, or has a single value in its space",
            fix="add it to the search file's baseline",
        )
    if "pipeline_schedule" not in given and fields["pipeline_parallel"] > 1 and fields["pipeline_schedule"] == "none":
        fields["pipeline_schedule"] = "1f1b"
    world = num_gpus or fields["num_nodes"] * spec.cluster.gpus_per_node
    _fill(fields, "data_parallel", world, (*MODEL_DEGREES, *OTHER_DEGREES.values()), WORLD)
    batch_of = ("micro_batch_size", "data_parallel")
    _fill(fields, "grad_accum_steps", spec.global_batch_size, batch_of, BATCH, must_come_out=False)
    return Layout(**fields).canonical()


WORLD, BATCH = "world", "batch"
_RULES = {WORLD: (WORLD_RULE, WORLD_FIX), BATCH: (BATCH_RULE, BATCH_FIX)}


def _defaults_and_missing(spec: SearchSpec) -> tuple[dict[str, Any], list[str]]:
    """Field values that the search file gives for every layout, and the searched fields without one value."""
    axes = {} if spec.candidates is not None else spec.space.given_axes()
    default: dict[str, Any] = Layout(num_nodes=spec.cluster.num_nodes).to_json()
    alone = {name: values[0] for name, values in axes.items() if len(values) == 1}
    said = alone | ({} if spec.baseline is None else spec.baseline.to_json())
    searched = [name for name in default if (name in _NEEDED or name in axes) and name not in (*said, *DERIVED)]
    defaults = {name: value for name, value in (default | said).items() if name not in (*searched, *DERIVED)}
    return defaults, searched


def _fill(
    fields: dict[str, Any], name: str, whole: int, parts: Sequence[str], code: str, must_come_out: bool = True
) -> None:
    """Compute the missing factor `name` of a product; InputError if the product does not match `whole`."""
    product = prod(fields[part] for part in parts)
    numbers = " x ".join(f"{part} {fields[part]}" for part in parts)
    rule, fix = _RULES[code]
    if name not in fields:
        if whole % product:
            raise InputError.of(code, f"{numbers} does not divide {whole}", key=name, rule=rule, fix=fix)
        fields[name] = whole // product
    elif must_come_out and fields[name] * product != whole:
        message = f"{numbers} x {name} {fields[name]} = {fields[name] * product}, not {whole}"
        raise InputError.of(code, message, key=name, value=fields[name], rule=rule, fix=fix)


def result_of(spec: SearchSpec, source: str, layout: Layout, outcome: str, **fields: Any) -> Observation:
    """A row as `observation_of`; InputError for an impossible step time."""
    step_time_s = fields.get("step_time_s")
    if step_time_s is not None and not _SHORTEST_S <= step_time_s <= _LONGEST_S:
        rule = f"a step takes from {_SHORTEST_S:g} to {_LONGEST_S:g} s"
        message = f"is {step_time_s:.3g} s in these results"
        fix = "remove the result; for a results.csv check that --objective names its numbers"
        raise InputError.of("cell", message, key="step_time_s", value=step_time_s, rule=rule, fix=fix)
    return observation_of(spec, source, layout, outcome, **fields)
