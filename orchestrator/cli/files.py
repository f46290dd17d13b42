"""Verbs about search files, before anything runs: init, plan, schema."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import (
    AsJson,
    LauncherKind,
    LedgerUrl,
    Overrides,
    SamplerName,
    SearchFilePath,
    WorkDir,
    named_as_typed,
    overrides_of,
)
from orchestrator.cli.output import answer, say
from search_spaces.errors import InputError

if TYPE_CHECKING:
    from orchestrator.search_file import SearchSpec
    from search_spaces.space import SearchSpace

MOST_REJECTED_LISTED = 10_000
PLAN_SCHEMA = "parlay.plan/1"
INIT_SCHEMA = "parlay.init/1"


def add_to(app: typer.Typer) -> None:
    """Register this file's verbs."""
    app.command()(init)
    app.command()(plan)
    app.command()(schema)


def init(
    start: Annotated[
        Path | None,
        typer.Option("--from", help="A Megatron launch script, a DeepSpeed config or a Hugging Face config.json."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A new file instead of stdout.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a commented search file, as an example or from what you train with today."""
    from orchestrator.starting_points import render_example, render_from

    text, notes = (render_example(), ()) if start is None else render_from(start)
    for note in notes:
        say(f"note: {note}")
    if output is None:
        answer({"schema": INIT_SCHEMA, "file": None, "yaml": text, "notes": list(notes)}, as_json, text)
        return
    _write_new(output, text)
    answer(
        {"schema": INIT_SCHEMA, "file": str(output), "yaml": text, "notes": list(notes)},
        as_json,
        f"{output} is written; next: parlay plan {output}",
    )


def plan(
    search_file: SearchFilePath,
    sets: Overrides = None,
    work_dir: WorkDir = None,
    ledger: LedgerUrl = None,
    launcher: LauncherKind = None,
    sampler: SamplerName = None,
    rejected: Annotated[bool, typer.Option("--rejected", help="List every rejected layout, with its rule.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the layouts a search may try, and what refuses the others; nothing is launched."""
    from orchestrator.search_file import candidates_of, load_search_file
    from orchestrator.trainer_check import require_trainer

    changes = overrides_of(sets, launcher, sampler, work_dir, ledger)
    with named_as_typed(changes):
        spec = load_search_file(search_file, [change.text for change in changes])
        space = candidates_of(spec)
        require_trainer(spec)
    answer(_plan_json(spec, space, rejected), as_json, None if as_json else _plan_text(spec, space, rejected))


def schema(as_json: AsJson = False) -> None:
    """Print the JSON schema of search files, for editors."""
    from orchestrator.search_file import json_schema

    answer(json_schema(), True)


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise InputError.of(
            "output", f"{path}: {error.strerror}", key="--output", value=str(path), fix="name a new file"
        ) from error


def _plan_json(spec: SearchSpec, space: SearchSpace, list_rejected: bool) -> dict[str, Any]:
    from orchestrator.cli.summary import most_node_hours

    data: dict[str, Any] = {
        "schema": PLAN_SCHEMA,
        "num_layouts": len(space.feasible),
        "rejected": dict(space.rejected_by_rule),
        "layouts": [{"layout": layout.to_json(), "layout_key": layout.key} for layout in space.feasible],
        "node_hours": most_node_hours(spec, space),
    }
    if list_rejected:
        data["rejected_layouts"] = [
            {"layout": dict(r.fields), "rule": r.problem.code, "message": r.problem.message}
            for r in islice(space.rejected(), MOST_REJECTED_LISTED)
        ]
    return data


def _plan_text(spec: SearchSpec, space: SearchSpace, list_rejected: bool) -> str:
    from orchestrator.cli.summary import most_trials_words

    lines = [f"{len(space.feasible)} layouts can be tried on {spec.cluster.num_gpus} ranks:"]
    lines += [f"  {layout.key}" for layout in space.feasible]
    if space.rejected_by_rule:
        lines.append(f"{sum(space.rejected_by_rule.values())} cannot work:")
        lines += [f"  {count:6d}  {rule}" for rule, count in space.rejected_by_rule.items()]
        lines += _rejected_lines(space) if list_rejected else ["  (--rejected lists each with its numbers)"]
    lines.append(most_trials_words(spec, space))
    return "\n".join(lines)


def _rejected_lines(space: SearchSpace) -> list[str]:
    lines = [f"  {r.problem.code}: {r.text}" for r in islice(space.rejected(), MOST_REJECTED_LISTED)]
    left_out = sum(space.rejected_by_rule.values()) - len(lines)
    return lines + ([f"  and {left_out} more"] if left_out else [])
