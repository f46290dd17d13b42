"""`parlay schema`: the JSON schema of search files, and of every answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.output import print_json
from search_spaces.errors import InputError, choice_fix

if TYPE_CHECKING:
    from orchestrator.config.answer import AnswerPart


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
    from orchestrator.planning import forecast
    from orchestrator.records import ledger_rebuild, summary
    from orchestrator.records.formats import registry
    from orchestrator.replay import compare, replay, stacks
    from orchestrator.service import handlers, state_dir

    kinds = (
        *(summary.StatusAnswer, summary.BestAnswer, summary.SearchesAnswer, summary.LogsAnswer, summary.ReportAnswer),
        *(summary.AdvanceAllAnswer, ledger_rebuild.LedgerAnswer, notify.NotificationAnswer),
        *(create.SubmitAnswer, create.SubmitManyAnswer, cancel.CancelAnswer, mlflow_resync.SyncAnswer),
        *(init.InitAnswer, plan_answer.PlanAnswer, dry_run.DryRunAnswer, dry_run.DryRunManyAnswer),
        *(forecast.ForecastAnswer, replay.ReplayAnswer, compare.CompareAnswer, stacks.ExperimentAnswer),
        *(registry.ExportAnswer, registry.ImportAnswer),
        *(finding.DoctorAnswer, calibrate.CalibrateAnswer, selftest.SelftestAnswer, selftest.SelftestListAnswer),
        *(slurm_sandbox.SandboxAnswer, state_dir.ServiceAnswer, state_dir.PageAnswer, state_dir.DashboardAnswer),
        *(handlers.HealthAnswer, handlers.TrialsAnswer, handlers.RecipeAnswer, handlers.AcceptedAnswer),
    )
    return {"error": ErrorAnswer} | {kind.name(): kind for kind in kinds}
