"""The verb that tests a cluster before a search is trusted to it: selftest."""

from __future__ import annotations

import secrets
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import (
    AsJson,
    LauncherKind,
    Overrides,
    SearchFilePath,
    named_as_typed,
    overrides_of,
)
from orchestrator.cli.output import Exit, answer, fail, say
from orchestrator.cli.stop import Stop
from search_spaces.errors import InputError, Problem
from trials.folder import SearchFolder, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.search_file import SearchSpec
    from orchestrator.selftest import SelftestReport
    from search_spaces.cluster import Cluster
    from trials.selftest import Case, CaseResult

CASES_SCHEMA = "parlay.selftest_list/1"


def add_to(app: typer.Typer) -> None:
    """Register this file's verb."""
    app.command()(selftest)


def selftest(
    search_file: SearchFilePath,
    sets: Overrides = None,
    launcher: LauncherKind = None,
    names: Annotated[
        list[str] | None, typer.Option("--case", metavar="NAME", help="Only this case; may be given again.")
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="Show the cases, launch nothing.")] = False,
    work_dir: Annotated[
        Path | None, typer.Option("--work-dir", help="Folder in which the selftest gets its own.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train every kind of layout on this search's cluster, and compare each with a plain GPT on one device."""
    from orchestrator.search_file import load_search_file
    from orchestrator.selftest import cases_for, record, world_of
    from trials.ledger.place import home_folder

    changes = overrides_of(sets, launcher, None, None if work_dir is None else str(work_dir), None)
    with named_as_typed(changes):
        spec = load_search_file(search_file, [change.text for change in changes])
    _require_runnable(spec)
    world = world_of(spec.cluster)
    cases = cases_for(world, names or ())
    if list_only:
        listed = [{"name": case.name, "ranks": case.layout.num_gpus} for case in cases]
        data = {"schema": CASES_SCHEMA, "cases": listed}
        answer(data, as_json, "\n".join(f"{c['ranks']} ranks  {c['name']}" for c in listed))
        return
    folder = SearchFolder(spec.work_dir / f"selftest-{secrets.token_hex(3)}")
    report = _run(spec, world, cases, folder, as_json)
    write_json(folder.path / "selftest.json", report.to_json())
    if not names:
        record(report, spec.launcher.kind, world, home_folder())
    answer(report.to_json(), as_json, _verdict(report, world))
    if not report.passed:
        raise Exit(ExitCode.NO_MEASUREMENT)


def _require_runnable(spec: SearchSpec) -> None:
    if spec.trainer.kind != "parlay":
        rule, fix = "a selftest is of Parlay's own trainer", "remove the trainer section, or --set trainer.kind=parlay"
        raise InputError.of("selftest", f"kind is {spec.trainer.kind}", key="trainer.kind", rule=rule, fix=fix)
    if spec.launcher.kind == "recorded":
        rule, fix = "a selftest runs for real", "--launcher local, ray or slurm"
        raise InputError.of("selftest", "kind is recorded", key="launcher.kind", rule=rule, fix=fix)


def _run(
    spec: SearchSpec, world: Cluster, cases: Sequence[Case], folder: SearchFolder, as_json: bool
) -> SelftestReport:
    from orchestrator.launchers.factory import make_launcher
    from orchestrator.selftest import SelftestWatcher
    from orchestrator.selftest import selftest as run_cases

    stop = Stop()
    watcher = SelftestWatcher(lambda result: say(row(result)), say, stop.is_asked)
    try:
        launcher, remark = make_launcher(spec.launcher, parallel_trials=1, cluster=world)
        if remark is not None:
            say(remark)
        say(f"{len(cases)} cases on {_words(world)}, in {folder.path}")
        with closing(launcher), stop.listening():
            return run_cases(launcher, folder, world, cases, spec.trainer.python or sys.executable, watcher)
    except KeyboardInterrupt:
        problem = Problem("interrupted", "the selftest was stopped before its end", fix="run it again")
        fail(stop.code, problem, as_json)


def row(result: CaseResult) -> str:
    """One case in a line: name, ranks, difference."""
    state = "ok    " if result.passed else "FAILED"
    difference = "-      " if result.difference is None else f"{result.difference:.1e}"
    words = f"  {result.words}" if result.words else ""
    return f"{state}  {difference}  {result.ranks} ranks  {result.seconds:5.1f} s  {result.name}{words}"


def _verdict(report: SelftestReport, world: Cluster) -> str:
    found = report.found
    lines = [row(result) for result in report.failed]
    known = found.fingerprint
    versions = ", ".join(f"{name} {known[name]}" for name in ("torch", "deepspeed", "cuda") if name in known)
    lines.append(f"on {_words(world)} ({known.get('device', 'unknown device')}; {versions or 'versions unknown'})")
    if report.detail is not None:
        lines.append(report.detail)
    lines.append(f"{len(found.results) - len(report.failed)} of {len(report.cases)} cases passed")
    return "\n".join(lines)


def _words(world: Cluster) -> str:
    nodes = "1 node" if world.num_nodes == 1 else f"{world.num_nodes} nodes"
    return f"{nodes} x {world.gpus_per_node} {world.accelerator.name}"
