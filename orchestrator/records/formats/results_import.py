"""Import of other programs' results into a measured table, by the format that the file or folder has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestrator.config.spec import SearchSpec
from orchestrator.records.formats.import_result import ImportResult, read_text
from search_spaces.errors import InputError
from search_spaces.tables.measured_table import render_table


def read_results(
    source: Path, spec: SearchSpec, objective: str | None = None, names: Mapping[str, str] | None = None
) -> ImportResult:
    """Import the results in this file or folder as layouts of the search's model on its machine.

    `objective` names the objective of a results.csv; `names` maps its parameters to layout fields, or to "" to ignore
    one. InputError for an unknown format or invalid values.
    """
    if source.is_dir():
        from orchestrator.records.formats.deepspeed_import import read_autotuning

        _refuse_options(objective, names, "a folder, as DeepSpeed's autotuning leaves one")
        return read_autotuning(source, spec)
    text = read_text(source)
    header = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    columns = {name.strip().strip('"') for name in header.split(",")}
    if any(name.startswith("p:") for name in columns):
        from orchestrator.records.formats.deephyper_import import parse_results

        return parse_results(text, str(source), spec, objective, names or {})
    if "problem" in columns:
        _refuse_options(objective, names, "a measured table")
        return _measured_table(text, str(source), spec)
    raise InputError.of(
        "file",
        "has no known format of results",
        file=str(source),
        rule="DeepHyper's results.csv has columns p:NAME and objective, a measured table has a column problem;"
        " DeepSpeed's autotuning results are a folder",
        fix="name one of these",
    )


def table_text(imported: ImportResult, source: Path) -> str:
    """Render the rows as a measured table with comments on their source."""
    left_out = ", ".join(f"{count} {why}" for why, count in imported.left_out.items())
    comments = [f"from {source.name} ({imported.kind}): {len(imported.rows)} rows"]
    return render_table(imported.rows, [*comments, *([f"left out: {left_out}"] if left_out else [])])


def _refuse_options(objective: str | None, names: Mapping[str, str] | None, what: str) -> None:
    for option, value in (("--objective", objective), ("--name", names)):
        if value:
            fix = f"leave {option} out, or name results.csv itself"
            raise InputError.of("usage", f"is for DeepHyper's results.csv, and this is {what}", key=option, fix=fix)


def _measured_table(text: str, file: str, spec: SearchSpec) -> ImportResult:
    from search_spaces.tables.benchmark_problem import measured_on
    from search_spaces.tables.measured_table import parse_table

    rows = parse_table(text, file)
    ours = measured_on(rows, spec.cluster)
    left_out = {"other_machine": len(rows) - len(ours)} if len(ours) < len(rows) else {}
    return ImportResult("measured", ours, left_out)
