"""`parlay plan`: layouts in predicted order, or a search's best on more nodes, without launching anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import (
    SEARCH_FILE_HELP,
    LauncherKind,
    LedgerUrl,
    Overrides,
    SamplerName,
    WorkDir,
    to_overrides,
)
from orchestrator.cli.output import print_result, print_text, prints_json
from search_spaces.errors import InputError
from search_spaces.schema.yaml_document import Override


def plan(
    search_file: Annotated[Path | None, typer.Argument(metavar="SEARCH.YAML", help=SEARCH_FILE_HELP)] = None,
    sets: Overrides = None,
    work_dir: WorkDir = None,
    ledger: LedgerUrl = None,
    launcher: LauncherKind = None,
    sampler: SamplerName = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            min=1,
            metavar="N",
            help="List the first N layouts; default: 10 as text, all as JSON. With --nodes: N candidates for the best"
            " layout; default: 3 as text, all as JSON.",
        ),
    ] = None,
    details: Annotated[
        bool,
        typer.Option("--details", help="Add intervals, time and memory by part, and the comparison with the baseline."),
    ] = False,
    rejected: Annotated[bool, typer.Option("--rejected", help="List every rejected layout, with its rule.")] = False,
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes",
            metavar="N,N,...",
            help="Without a file: predict step time and best layout on so many nodes, from the trials of --from;"
            " default: 2, 4 and 8 times those tried.",
        ),
    ] = None,
    tried: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SEARCH|TABLE.CSV",
            help="With --nodes: a search's id or folder, or a measured table; default: the newest search.",
        ),
    ] = None,
    scaling: Annotated[
        str | None,
        typer.Option(
            "--scaling",
            metavar="weak|strong",
            help="With --nodes: weak: the global batch grows with the nodes; strong: it is constant; default: both.",
        ),
    ] = None,
    problem: Annotated[
        list[str] | None,
        typer.Option("--problem", metavar="NAME", help="With a table: only this problem; may be repeated."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME|FILE",
            help="With --nodes: cluster of the trials, for a table, or to override the search's.",
        ),
    ] = None,
) -> None:
    of_trials = {"--nodes": nodes, "--from": tried, "--scaling": scaling, "--problem": problem, "--cluster": cluster}
    if search_file is not None:
        _require_absent(of_trials, "predicts from trials, not from a search file", "leave it or the file out")
        changes = to_overrides(sets, launcher=launcher, sampler=sampler, work_dir=work_dir, ledger=ledger)
        _print_plan(search_file, changes, top, details, rejected)
        return
    if nodes is None and tried is None:
        fix = "parlay plan search.yaml; for more nodes than a search tried: parlay plan --nodes 16 --from SEARCH"
        raise InputError.of("usage", "is missing", key="SEARCH.YAML", fix=fix)
    of_a_file: dict[str, object] = {"--set": sets, "--work-dir": work_dir, "--launcher": launcher, "--sampler": sampler}
    of_a_file |= {"--details": details, "--rejected": rejected}
    _require_absent(of_a_file, "belongs to the plan of a search file", "leave it out, or name the file")
    from orchestrator.cli.plan_forecast import print_forecast

    print_forecast(tried, nodes, scaling, problem or [], cluster, top, ledger)


def _require_absent(options: Mapping[str, object], why: str, fix: str) -> None:
    """Raise InputError for the first of these options that was given."""
    for name, value in options.items():
        if value not in (None, False, []):
            raise InputError.of("usage", why, key=name, value=value, fix=fix)


def _print_plan(search_file: Path, changes: list[Override], top: int | None, details: bool, rejected: bool) -> None:
    from orchestrator.cli.plan_answer import PlanAnswer, cost_lines
    from orchestrator.cli.plan_table import plan_text
    from orchestrator.config.loader import load_search_file
    from orchestrator.config.schema.setup_file import SetupFile
    from orchestrator.diagnostics.preflight.trainer import require_trainer
    from orchestrator.planning.candidates import candidates_of
    from orchestrator.planning.explain import expected_pay_back
    from orchestrator.planning.plan import plan_of
    from orchestrator.planning.prior_trials import collect_prior_trials_for_plan

    spec = load_search_file(search_file, changes)
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
