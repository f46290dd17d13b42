"""`parlay plan`: layouts in predicted order, without launching anything."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import (
    LauncherKind,
    LedgerUrl,
    Overrides,
    SamplerName,
    SearchFilePath,
    WorkDir,
    loading,
    to_overrides,
)
from orchestrator.cli.output import print_result, print_text, prints_json


def plan(
    search_file: SearchFilePath,
    sets: Overrides = None,
    work_dir: WorkDir = None,
    ledger: LedgerUrl = None,
    launcher: LauncherKind = None,
    sampler: SamplerName = None,
    top: Annotated[
        int | None,
        typer.Option("--top", min=1, metavar="N", help="List the first N layouts; default: 10 as text, all as JSON."),
    ] = None,
    details: Annotated[
        bool,
        typer.Option("--details", help="Add intervals, time and memory by part, and the comparison with the baseline."),
    ] = False,
    rejected: Annotated[bool, typer.Option("--rejected", help="List every rejected layout, with its rule.")] = False,
) -> None:
    from orchestrator.cli.plan_answer import PlanAnswer, cost_lines
    from orchestrator.cli.plan_table import plan_text
    from orchestrator.config.schema.setup_file import SetupFile
    from orchestrator.diagnostics.preflight.trainer import require_trainer
    from orchestrator.planning.candidates import candidates_of
    from orchestrator.planning.pay_back import expected_pay_back
    from orchestrator.planning.plan import plan_of
    from orchestrator.planning.prior_trials import collect_prior_trials_for_plan

    with loading(
        search_file, to_overrides(sets, launcher=launcher, sampler=sampler, work_dir=work_dir, ledger=ledger)
    ) as spec:
        space = candidates_of(spec)
        require_trainer(spec)
    plan = plan_of(spec, space, collect_prior_trials_for_plan(spec))
    pay_back = expected_pay_back(plan, space.baseline)
    if prints_json.get():
        print_result(PlanAnswer.of(plan, spec, space, pay_back, top, rejected))
    else:
        setup = SetupFile.of(spec.launcher)
        text = plan_text(plan, spec, space, top, rejected, details)
        print_text("\n".join([text, *cost_lines(plan, pay_back), *(setup.lines() if setup else ())]))
