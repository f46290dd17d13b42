"""Before a search: `parlay init`, a commented search file; `schema`, the JSON schema of files and answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.output import log, print_json, print_result
from orchestrator.records.output_file import write_new
from search_spaces.errors import InputError, choice_fix

if TYPE_CHECKING:
    from orchestrator.config.answer import AnswerPart


def init(
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="A launch script, a trainer's configuration, or a Hugging Face config.json: docs/imports.md.",
        ),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option("--site", help="Site profile for Slurm jobs: a name from docs/sites.md, or a TOML file."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to a new file instead of stdout.")
    ] = None,
) -> None:
    from orchestrator.config.init import InitAnswer, render_example, render_from

    if site is not None:
        _require_site(site)
    text, notes = (render_example(site), ()) if start is None else render_from(start, site)
    for note in notes:
        log(f"note: {note}")
    answer = InitAnswer(file=None if output is None else str(output), yaml=text, notes=list(notes))
    if output is None:
        print_result(answer, text)
    else:
        write_new(output, text, "--output")
        print_result(answer, f"{output} is written; next: parlay plan {output}")


def _require_site(site: str) -> None:
    """InputError for a site that no search file may name; a path stays as it is written."""
    from orchestrator.config.site import load_profile

    is_path = "/" in site or site.endswith(".toml")
    try:
        load_profile(str(Path(site).absolute()) if is_path else site)
    except InputError as error:
        raise InputError(*(replace(p, key="--site") if p.file is None else p for p in error.problems)) from None


def schema(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[ANSWER]", help="Part of an answer's schema id: status for parlay.status/1. error: of failures."
        ),
    ] = None,
) -> None:
    if name is None:
        from orchestrator.config.loader import json_schema

        print_json(json_schema())
        return
    known = answers()
    if name not in known:
        rule, fix = f"one of {', '.join(sorted(known))}", choice_fix(name, known)
        raise InputError.of("choice", f"is {name!r}", key="ANSWER", value=name, rule=rule, fix=fix)
    print_json(known[name].model_json_schema(mode="serialization"))


def answers() -> dict[str, type[AnswerPart]]:
    """Every answer by its name."""
    from orchestrator.cli import plan_answer, slurm_sandbox
    from orchestrator.config import init
    from orchestrator.config.answer import ErrorAnswer
    from orchestrator.diagnostics import calibrate, selftest
    from orchestrator.diagnostics.doctor import finding
    from orchestrator.lifecycle import cancel, create, dry_run, mlflow_resync, notify
    from orchestrator.planning import expect, forecast
    from orchestrator.records import ledger_rebuild, summary
    from orchestrator.records.formats import registry
    from orchestrator.replay import compare, replay, stacks
    from orchestrator.service import handlers, state_dir

    kinds = (
        *(summary.StatusAnswer, summary.BestAnswer, summary.SearchesAnswer, summary.LogsAnswer, summary.ReportAnswer),
        *(summary.AdvanceAllAnswer, ledger_rebuild.LedgerAnswer, notify.NotificationAnswer),
        *(create.SubmitAnswer, create.SubmitManyAnswer, cancel.CancelAnswer, mlflow_resync.SyncAnswer),
        *(init.InitAnswer, plan_answer.PlanAnswer, dry_run.DryRunAnswer, dry_run.DryRunManyAnswer),
        *(expect.ExpectAnswer, forecast.ForecastAnswer),
        *(replay.ReplayAnswer, compare.CompareAnswer, stacks.ExperimentAnswer),
        *(registry.ExportAnswer, registry.ImportAnswer),
        *(finding.DoctorAnswer, calibrate.CalibrateAnswer, selftest.SelftestAnswer, selftest.SelftestListAnswer),
        *(slurm_sandbox.SandboxAnswer, state_dir.ServiceAnswer, state_dir.PageAnswer, state_dir.DashboardAnswer),
        *(handlers.HealthAnswer, handlers.TrialsAnswer, handlers.RecipeAnswer, handlers.AcceptedAnswer),
    )
    return {"error": ErrorAnswer} | {kind.name(): kind for kind in kinds}
