"""`parlay selftest`: every kind of layout against a plain GPT on one device."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.diagnostic_job import format_cluster, load_for_job, require_launching, with_launcher
from orchestrator.cli.options import AsJson, LauncherKind, Overrides, SearchFilePath
from orchestrator.cli.output import Exit, log, print_result
from orchestrator.common.exit_codes import ExitCode
from orchestrator.lifecycle.signals import CancelOnSignal
from search_spaces.engines import PARLAY
from search_spaces.errors import InputError
from trials.files.folders import SearchFolder, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.config.spec import SearchSpec
    from orchestrator.diagnostics.selftest import SelftestAnswer
    from orchestrator.launchers.base import Launcher
    from search_spaces.hardware.cluster import Cluster
    from trials.diagnostics.selftest import Case, CaseResult


def selftest(
    search_file: SearchFilePath,
    sets: Overrides = None,
    launcher: LauncherKind = None,
    names: Annotated[
        list[str] | None, typer.Option("--case", metavar="NAME", help="Run only this case; may be repeated.")
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="List the cases; launch nothing.")] = False,
    work_dir: Annotated[Path | None, typer.Option("--work-dir", help="Parent folder of the selftest's folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train every kind of layout on this search's cluster and compare each with a plain GPT on one device."""
    from orchestrator.diagnostics.selftest import (
        SelftestCase,
        SelftestListAnswer,
        cases_for,
        record_result,
        selftest_cluster,
    )
    from orchestrator.preflight.trainer import require_engine_packages, require_torch
    from trials.ledger.location import home_folder

    spec = load_for_job(search_file, sets, launcher, work_dir, compares_speeds=False)
    _require_own_trainer(spec)
    require_launching(spec, "selftest")
    cluster = selftest_cluster(spec.cluster)
    cases = cases_for(cluster, names or (), spec.space.given_axes().get("engine", ()))
    if list_only:
        listed = [SelftestCase(name=case.name, ranks=case.layout.num_gpus) for case in cases]
        lines = [f"{case.ranks} ranks  {case.name}" for case in listed]
        print_result(SelftestListAnswer(cases=listed), as_json, "\n".join(lines))
        return
    require_torch(spec)
    require_engine_packages(spec, ((case.layout, case.model) for case in cases))
    folder = SearchFolder(spec.work_dir / f"selftest-{secrets.token_hex(3)}")
    report = _run(spec, cluster, cases, folder, as_json)
    write_json(folder.path / "selftest.json", report.plain())
    if not names:
        record_result(report, spec.launcher.kind, cluster, home_folder())
    print_result(report, as_json, _verdict(report, cluster))
    if not report.passed:
        raise Exit(ExitCode.NO_MEASUREMENT)


def _require_own_trainer(spec: SearchSpec) -> None:
    if spec.trainer.kind != PARLAY:
        rule, fix = "a selftest needs Parlay's trainer", "remove the trainer section, or --set trainer.kind=parlay"
        raise InputError.of("selftest", f"kind is {spec.trainer.kind}", key="trainer.kind", rule=rule, fix=fix)


def _run(
    spec: SearchSpec, cluster: Cluster, cases: Sequence[Case], folder: SearchFolder, as_json: bool
) -> SelftestAnswer:
    from orchestrator.diagnostics.selftest import selftest as run_cases
    from orchestrator.launchers.attempt_runner import AttemptRunner
    from orchestrator.preflight.trainer import python_of

    def run(launcher: Launcher, stop: CancelOnSignal) -> SelftestAnswer:
        log(f"{len(cases)} cases on {format_cluster(cluster)}, in {folder.path}")
        runner = AttemptRunner(launcher, stop.is_requested)
        return run_cases(runner, folder, cluster, cases, python_of(spec), lambda result: log(row(result)))

    return with_launcher(spec, cluster, run, "selftest", as_json)


def row(result: CaseResult) -> str:
    """A case in one line: result, difference, ranks, time, name."""
    state = "ok    " if result.passed else "FAILED"
    difference = "-      " if result.difference is None else f"{result.difference:.1e}"
    words = f"  {result.message}" if result.message else ""
    return f"{state}  {difference}  {result.ranks} ranks  {result.seconds:5.1f} s  {result.name}{words}"


def _verdict(report: SelftestAnswer, cluster: Cluster) -> str:
    lines = [row(result) for result in report.failed]
    known = report.fingerprint
    packages = ("torch", "deepspeed", "megatron_core", "torchtitan", "accelerate", "transformers", "cuda")
    versions = ", ".join(f"{name} {known[name]}" for name in packages if name in known)
    lines.append(
        f"on {format_cluster(cluster)} ({known.get('device', 'unknown device')}; {versions or 'versions unknown'})"
    )
    if report.detail is not None:
        lines.append(report.detail)
    lines.append(f"{len(report.results) - len(report.failed)} of {report.num_cases} cases passed")
    return "\n".join(lines)
