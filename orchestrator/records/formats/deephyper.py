"""DeepHyper's results.csv, by the format of DeepHyper 0.13: a search as one, and one of any parameter names as rows.

`p:<name>` are parameters, in a file of ours the layout's fields, `objective` is the maximised value or a text that
begins with F, `job_id` the trial's index, `m:<name>` everything else. Timestamps are seconds since the search was
created. A file that is read is not trusted: a cell is a number of a known form or a value of a layout field, and
anything else is refused with its line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from dashboards.columns import objective_of
from orchestrator.config.spec import SearchSpec
from orchestrator.records.formats.reading import BATCH, WORLD, layout_of, result_of, rows_of
from orchestrator.records.formats.trial_table import COLUMNS, TIMES, ExportResult, csv_of, ended_rows
from orchestrator.records.observations import TableRows
from search_spaces.errors import InputError, Problem, choice_fix
from search_spaces.layouts.layout import LAYOUT_FIELDS, Layout
from search_spaces.tables.csv_rows import csv_rows, escape_cell, row_length_error, unescape_cell
from search_spaces.tables.measured_table import Observation
from trials.analysis.ranking import Objective
from trials.failure_policy import Ending, policy_of
from trials.ledger.events import SearchRecord
from trials.trial import FailureReason, Trial, TrialState

KIND = "deephyper"
PARAMETER, METADATA, OBJECTIVE = "p:", "m:", "objective"
FAILED = "F"
_SUBMIT, _START, _END, _GATHER = (f"m:timestamp_{what}" for what in ("submit", "start", "end", "gather"))
_AS_METADATA = tuple(name for name in COLUMNS if name not in (*LAYOUT_FIELDS, *TIMES))
_BY_THROUGHPUT = (each.value for each in Objective if each.follows_from_throughput)
OBJECTIVES = ("samples_per_sec", "model_tflops_per_gpu", "step_time_s", *_BY_THROUGHPUT)
"""Possible objectives, by their names in Parlay. The sign of the two that are minimised is ignored."""

_THEIRS = {
    **dict.fromkeys(("tp", "tensor_model_parallel_size", "tensor_parallel_size"), "tensor_parallel"),
    **dict.fromkeys(("pp", "pipeline_model_parallel_size", "pipeline_parallel_size"), "pipeline_parallel"),
    **dict.fromkeys(("dp", "data_parallel_size"), "data_parallel"),
    **dict.fromkeys(("mb", "mbs", "micro_batch", "train_micro_batch_size_per_gpu"), "micro_batch_size"),
    **dict.fromkeys(("gas", "ga", "gradient_accumulation_steps"), "grad_accum_steps"),
    **dict.fromkeys(("zero", "zero1", "stage"), "zero_stage"),
    **dict.fromkeys(("nodes", "nnodes", "n_nodes"), "num_nodes"),
    **dict.fromkeys(("vp", "vpp", "virtual_pipeline_model_parallel_size"), "virtual_pipeline_stages"),
}
"""Common other names of layout fields."""
_MEASURED = METADATA + "step_time_s"
_NUMBER = re.compile(r"[-+]?([0-9]{1,18}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][-+]?[0-9]{1,2})?")
_OUT_OF_MEMORY = re.compile(r"oom|out.?of.?mem", re.IGNORECASE)

Cells = Mapping[str, str]


def deephyper_results(search: SearchRecord, spec: SearchSpec) -> ExportResult:
    """One row per finished trial, in the order of proposal.

    A single objective is the column `objective`; several are `objective_0`, `objective_1`, ..., as in DeepHyper. A
    minimised objective is negated, since DeepHyper maximises.
    """
    ended, left_out = ended_rows(search)
    places = {trial.trial: place for place, trial in enumerate(search.trials)}
    rows = [_exported(search.created_at, places[trial.trial], trial, flat, spec.objectives) for trial, flat in ended]
    return ExportResult(_text(rows).encode() if rows else b"", len(rows), left_out)


def _exported(
    created_at: float, place: int, trial: Trial, flat: dict[str, Any], objectives: Sequence[Objective]
) -> dict[str, Any]:
    first, last = (trial.attempts[0], trial.attempts[-1]) if trial.attempts else (None, None)
    proposed_at = created_at if trial.proposed_at is None else trial.proposed_at
    submitted_at = proposed_at if first is None or first.submitted_at is None else first.submitted_at
    started_at, ended_at = (None, None) if last is None else (last.started_at, last.ended_at)
    times = {_SUBMIT: submitted_at, _START: started_at, _END: ended_at, _GATHER: ended_at or submitted_at}
    names = (OBJECTIVE,) if len(objectives) == 1 else tuple(f"{OBJECTIVE}_{n}" for n in range(len(objectives)))
    return {
        **{PARAMETER + name: value for name, value in trial.layout.to_json().items()},
        **{name: _objective(trial, objective) for name, objective in zip(names, objectives, strict=True)},
        "job_id": place,
        "job_status": "CANCELLED" if trial.state is TrialState.CANCELLED else "DONE",
        **{name: None if at is None else at - created_at for name, at in times.items()},
        **{METADATA + name: flat[name] for name in _AS_METADATA},
    }


def _objective(trial: Trial, objective: Objective) -> float | str:
    value = objective_of(trial, objective)
    if value is None:
        return FAILED if trial.reason is None else f"{FAILED}_{trial.reason}"
    return -value if objective.is_minimised else value


def _text(rows: Sequence[dict[str, Any]]) -> str:
    """Render the table, without metadata columns that are empty for all trials."""
    always = (PARAMETER, OBJECTIVE, "job_", _SUBMIT, _GATHER)
    names = [name for name in rows[0] if name.startswith(always) or any(row[name] is not None for row in rows)]
    return csv_of(names, ([_cell(row[name]) for name in names] for row in rows))


def _cell(value: Any) -> str:
    """Format a cell as DeepHyper does, with Python's True and False."""
    if value is None:
        return ""
    return escape_cell(value) if isinstance(value, str) else repr(value)


def parse_results(text: str, file: str, spec: SearchSpec, objective: str | None, names: Mapping[str, str]) -> TableRows:
    """Convert the rows of a results.csv; `file` is its name in problems.

    A failure by out of memory becomes `oom`, another one that the layout may cause `failed`. Other failures are only
    counted by reason, and so are rows that do not fit the search's machine (`world`) or batch (`batch`).
    """
    lines = list(_lines(text, file))
    header_line, header = lines[0] if lines else (1, [])
    fields = _fields(header, names, {"file": file, "line": header_line})
    if objective is None and _MEASURED not in header:
        raise _unknown_objective(file)
    if objective is not None and objective not in OBJECTIVES:
        raise _bad_objective(objective)
    results = (
        ({"file": file, "line": line}, partial(_row, dict(zip(header, cells, strict=True)), fields, spec, objective))
        for line, cells in lines[1:]
    )
    return rows_of(results)


def _lines(text: str, file: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of each non-blank row, the header first; InputError for a row of another length."""
    width = None
    for line, row in csv_rows(text, file):
        cells = [cell.strip() for cell in row]
        width = len(cells) if width is None else width
        if len(cells) != width:
            raise row_length_error(len(cells), width).at(file=file, line=line)
        yield line, cells


def _fields(header: list[str], names: Mapping[str, str], where: Mapping[str, Any]) -> dict[str, str]:
    """Map columns to layout fields; InputError for an unknown parameter.

    `where` is the header's file and line.
    """
    _require_once(header, where)
    objective = _objective_column(header, where)
    found = {objective: OBJECTIVE}
    problems: list[Problem] = []
    parameters = [column.removeprefix(PARAMETER) for column in header if column.startswith(PARAMETER)]
    problems += [_no_such_parameter(name, parameters) for name in names if name not in parameters]
    for theirs in parameters:
        ours = names.get(theirs, theirs if theirs in LAYOUT_FIELDS else _THEIRS.get(theirs.lower()))
        if ours is None or (ours and ours not in LAYOUT_FIELDS):
            problems.append(_unknown_parameter(theirs, ours, where))
        elif ours and ours in found.values():
            message = f"{PARAMETER}{theirs} and another column both mean {ours}"
            fix = f"ignore it with --name {theirs}="
            problems.append(Problem("duplicate_column", message, fix=fix, key=theirs, **where))
        elif ours:
            found[PARAMETER + theirs] = ours
    if problems:
        raise InputError(*problems)
    return found


def _require_once(header: list[str], where: Mapping[str, Any]) -> None:
    twice = [(name, count) for name, count in Counter(header).items() if name and count > 1]
    fix = "remove all but one of them"
    if twice:
        raise InputError(
            *(
                Problem("duplicate_column", f"appears {count} times", fix=fix, key=name, **where)
                for name, count in twice
            )
        )


def _objective_column(header: list[str], where: Mapping[str, Any]) -> str:
    for name in (OBJECTIVE, f"{OBJECTIVE}_0"):
        if name in header:
            return name
    fix = "name the results.csv that DeepHyper wrote"
    raise InputError.of("missing_column", f"column {OBJECTIVE} is missing", key=OBJECTIVE, fix=fix, **where)


def _unknown_parameter(theirs: str, ours: str | None, where: Mapping[str, Any]) -> Problem:
    close = choice_fix(ours or theirs, LAYOUT_FIELDS)
    return Problem(
        "unknown_column",
        f"{PARAMETER}{theirs} is not a layout field" if ours is None else f"{ours!r} is not a layout field",
        rule="a parameter is one of " + ", ".join(LAYOUT_FIELDS),
        fix=f"map it with --name {theirs}=FIELD, or ignore it with --name {theirs}=" + (f"; {close}" if close else ""),
        key=theirs,
        value=ours,
        **where,
    )


def _no_such_parameter(name: str, parameters: list[str]) -> Problem:
    fix = "one of: " + ", ".join(parameters)
    return Problem("usage", f"names {name}, which is not a parameter of the file", fix=fix, key="--name", value=name)


def _unknown_objective(file: str) -> InputError:
    return InputError.of(
        "usage",
        "does not name its objective",
        key="--objective",
        rule=f"give the objective's name, or a table with a column {_MEASURED}",
        fix="--objective " + " or ".join(OBJECTIVES),
        file=file,
    )


def _bad_objective(objective: str) -> InputError:
    fix = choice_fix(objective, OBJECTIVES)
    rule = "one of " + ", ".join(OBJECTIVES)
    return InputError.of("usage", f"is {objective!r}", key="--objective", value=objective, rule=rule, fix=fix)


def _row(cells: Cells, fields: Mapping[str, str], spec: SearchSpec, objective: str | None) -> Observation | str:
    """Convert a row to an observation, or to the reason for leaving it out; InputError for an invalid cell."""
    given = {ours: _value(ours, cells[column]) for column, ours in fields.items() if ours != OBJECTIVE}
    reached = cells[next(column for column, ours in fields.items() if ours == OBJECTIVE)]
    if cells.get("job_status") in ("CANCELLED", "CANCELLING"):
        return "cancelled"
    try:
        layout = layout_of(spec, {name: value for name, value in given.items() if value is not None})
    except InputError as error:
        if error.problems[0].code in (WORLD, BATCH):
            return error.problems[0].code
        raise
    numbers = {"recorded_duration_s": _duration_s(cells), "queue_wait_s": _positive(cells, METADATA + "queue_wait_s")}
    if reached.startswith(FAILED):
        return _failed(spec, layout, cells, reached, numbers)
    return _ran(spec, layout, _step_time_s(spec, layout, cells, reached, objective), cells, numbers)


def _ran(spec: SearchSpec, layout: Layout, step_time_s: float, cells: Cells, numbers: dict[str, Any]) -> Observation:
    peak = _positive(cells, METADATA + "peak_memory_gib")
    return result_of(spec, KIND, layout, "ok", step_time_s=step_time_s, peak_memory_gib=peak, **numbers)


def _failed(spec: SearchSpec, layout: Layout, cells: Cells, reached: str, numbers: dict[str, Any]) -> Observation | str:
    """Convert a failed row, whose objective is F or F_REASON."""
    word = reached.removeprefix(FAILED).strip("_- ").lower()
    reason = next((known for known in FailureReason if known.value == word), None)
    policy = policy_of(reason)
    if policy.ending is Ending.STOPPED_EARLY and (seen := _positive(cells, _MEASURED)) is not None:
        return _ran(spec, layout, seen, cells, numbers | {"failure_reason": word})
    if reason is not None and not policy.may_be_layout_fault:
        return word
    is_unknown_oom = reason is None and _OUT_OF_MEMORY.search(word)
    is_oom = is_unknown_oom or policy.exceeds_rank_memory(spec.cluster.accelerator.name)
    known = numbers | {"failure_reason": None if reason is None else word}
    return result_of(spec, KIND, layout, "oom" if is_oom else "failed", **known)


def _step_time_s(spec: SearchSpec, layout: Layout, cells: Cells, reached: str, objective: str | None) -> float:
    if objective is None:
        seen = _positive(cells, _MEASURED)
        if seen is None:
            rule = "a measured row has a step time"
            raise InputError.of("cell", "is empty", rule=rule, key=_MEASURED, fix=_TAKE_OUT)
        return seen
    value = abs(_number(OBJECTIVE, reached))
    if not value:
        rule = f"{objective} of a measured row is not 0"
        raise InputError.of("cell", "is 0", rule=rule, key=OBJECTIVE, value=reached, fix=_TAKE_OUT)
    return _SECONDS[objective](spec, layout, value)


_TAKE_OUT = f"write {FAILED} as the objective of a failed row, or remove the row"


def _tokens(spec: SearchSpec, layout: Layout) -> int:
    return layout.global_batch_size * spec.model.seq_length


_SECONDS: Mapping[str, Callable[[SearchSpec, Layout, float], float]] = {
    "step_time_s": lambda spec, layout, value: value,
    "samples_per_sec": lambda spec, layout, value: layout.global_batch_size / value,
    "tokens_per_sec": lambda spec, layout, value: _tokens(spec, layout) / value,
    "tokens_per_sec_per_gpu": lambda spec, layout, value: _tokens(spec, layout) / (value * layout.num_gpus),
    "node_hours_per_billion_tokens": lambda spec, layout, value: (
        value * 3600 / 1e9 * _tokens(spec, layout) / layout.num_nodes
    ),
    "model_tflops_per_gpu": lambda spec, layout, value: (
        spec.model.model_flops_per_token * _tokens(spec, layout) / (value * 1e12 * layout.num_gpus)
    ),
}
"""Step time in seconds for a value of the objective."""


def _duration_s(cells: Cells) -> float | None:
    """Seconds from start to end, else from submission to gathering; None without both timestamps."""
    for begin, end in (("start", "end"), ("submit", "gather")):
        times = [cells.get(f"{METADATA}timestamp_{name}", "") for name in (begin, end)]
        if all(times):
            began, ended = (
                _number(f"{METADATA}timestamp_{name}", cell) for name, cell in zip((begin, end), times, strict=True)
            )
            return max(0.0, ended - began)
    return None


def _positive(cells: Cells, column: str) -> float | None:
    """The positive number in this column; None if it is empty or 0."""
    value = _number(column, cells[column]) if cells.get(column) else 0.0
    return value if value > 0 else None


def _number(column: str, cell: str) -> float:
    if not _NUMBER.fullmatch(cell):
        rule = "a number" if column != OBJECTIVE else f"a number, or a text that begins with {FAILED}"
        raise InputError.of("cell", f"is {cell!r:.60}", rule=rule, key=column, value=cell[:60])
    return float(cell)


def _value(field: str, cell: str) -> Any:
    """Parse a layout field's value; None for an empty cell. Layout checks the value itself."""
    text = unescape_cell(cell)
    if not text:
        return None
    default = getattr(Layout(), field)
    if isinstance(default, bool):
        if text.lower() not in _SWITCHES:
            raise InputError.of("cell", f"is {cell!r:.60}", rule="True or False", key=field, value=cell[:60])
        return _SWITCHES[text.lower()]
    if isinstance(default, str):
        return text.lower()
    if field == "zero_stage" and text.lower() in ("true", "false"):
        return int(_SWITCHES[text.lower()])  # a parameter that enables stage 1
    # pandas writes whole numbers of a column with gaps as 4.0.
    if not re.fullmatch(r"[0-9]{1,9}(\.0+)?", text):
        raise InputError.of("cell", f"is {cell!r:.60}", rule="a whole number", key=field, value=cell[:60])
    return int(text.partition(".")[0])


_SWITCHES = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}
