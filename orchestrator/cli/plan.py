"""`parlay plan`: layouts in predicted order, without launching anything."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import (
    AsJson,
    LauncherKind,
    LedgerUrl,
    Overrides,
    SamplerName,
    SearchFilePath,
    WorkDir,
    naming_options,
    to_overrides,
)
from orchestrator.cli.output import print_result, print_text

if TYPE_CHECKING:
    from orchestrator.cli.plan_cost import PlanAnswer, PlannedCost
    from orchestrator.config.spec import SearchSpec
    from orchestrator.planning.plan import Plan
    from search_spaces.search_space import SearchSpace


def plan(
    search_file: SearchFilePath,
    sets: Overrides = None,
    work_dir: WorkDir = None,
    ledger: LedgerUrl = None,
    launcher: LauncherKind = None,
    sampler: SamplerName = None,
    top: Annotated[
        int | None,
        typer.Option("--top", min=1, metavar="N", help="List the first N layouts; default: 20 as text, all as JSON."),
    ] = None,
    rejected: Annotated[bool, typer.Option("--rejected", help="List every rejected layout, with its rule.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the layouts a search may try in predicted order, and the rules that reject the others. Launches nothing."""
    from orchestrator.cli.plan_cost import PlannedCost
    from orchestrator.cli.plan_table import plan_text
    from orchestrator.config.loader import load_search_file
    from orchestrator.planning.candidates import candidates_of
    from orchestrator.planning.plan import plan_of
    from orchestrator.planning.prior_trials import collect_prior_trials_for_plan
    from orchestrator.preflight.trainer import require_trainer
    from orchestrator.schema.setup_file import SetupFile

    changes = to_overrides(sets, launcher, sampler, work_dir, ledger)
    with naming_options(changes):
        spec = load_search_file(search_file, [change.text for change in changes])
        space = candidates_of(spec)
        require_trainer(spec)
    plan = plan_of(spec, space, collect_prior_trials_for_plan(spec))
    cost = PlannedCost.of(plan, spec, space)
    if as_json:
        print_result(_answer(plan, spec, space, cost, top, rejected), True)
    else:
        setup = SetupFile.of(spec.launcher)
        lines = [
            plan_text(plan, spec, space, top, rejected),
            *cost.lines(plan.expected.guided),
            *(setup.lines() if setup else ()),
        ]
        print_text("\n".join(lines))


def _answer(
    plan: Plan, spec: SearchSpec, space: SearchSpace, cost: PlannedCost, top: int | None, list_rejected: bool
) -> PlanAnswer:
    from orchestrator.cli.plan_cost import PlanAnswer, RejectedLayout
    from orchestrator.cli.plan_table import MAX_REJECTED_LISTED
    from orchestrator.cli.upper_limit import most_node_hours
    from orchestrator.planning.explain import count_fits, explain_layouts, time_saved_s
    from orchestrator.schema.setup_file import SetupFile

    rejected = [
        RejectedLayout(layout=dict(r.fields), rule=r.problem.code, message=r.problem.message)
        for r in islice(space.rejected() if list_rejected else (), MAX_REJECTED_LISTED)
    ]
    return PlanAnswer(
        num_layouts=len(space.layouts),
        rejected=space.rejected_by_rule,
        rejected_examples={rule: found.problem.message for rule, found in space.examples().items()},
        rejected_layouts=rejected if list_rejected else None,
        fits=count_fits(plan),
        explained=explain_layouts(plan, space.baseline),
        saved_s=time_saved_s(plan, space.baseline),
        layouts=plan.first(top),
        setup_file=SetupFile.of(spec.launcher),
        node_hours=most_node_hours(spec, space),
        expected_node_hours=plan.expected,
        cost=cost,
        notes=plan.notes(),
    )
