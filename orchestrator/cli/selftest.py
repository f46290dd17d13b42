"""`parlay selftest`: every kind of layout against a plain GPT on one device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.diagnostic_job import format_cluster, load_for_job, run_job
from orchestrator.cli.options import LauncherKind, Overrides, SearchFilePath, WorkDir
from orchestrator.cli.output import Exit, log, print_result
from orchestrator.lifecycle.exit_codes import ExitCode
from search_spaces.engines import PARLAY
from search_spaces.errors import InputError
from trials.files.folders import SearchFolder, write_json

if TYPE_CHECKING:
    from orchestrator.diagnostics.selftest import SelftestAnswer
    from orchestrator.launchers.attempt_runner import AttemptRunner
    from search_spaces.hardware.cluster import Cluster
    from trials.diagnostics.selftest import CaseResult

_PACKAGES = ("torch", "deepspeed", "megatron_core", "torchtitan", "accelerate", "transformers", "cuda")


def selftest(
    search_file: SearchFilePath,
    sets: Overrides = None,
    launcher: LauncherKind = None,
    names: Annotated[
        list[str] | None, typer.Option("--case", metavar="NAME", help="Run only this case; may be repeated.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Run only five cases on two ranks, in a minute.")] = False,
    list_only: Annotated[bool, typer.Option("--list", help="List the cases; launch nothing.")] = False,
    work_dir: WorkDir = None,
) -> None:
    from orchestrator.diagnostics import selftest as cases_of
    from orchestrator.diagnostics.preflight.trainer import python_of, require_software
    from trials.diagnostics.named_parity_cases import QUICK
    from trials.ledger.location import home_folder

    spec = load_for_job(search_file, sets, launcher, work_dir, "selftest", compares_speeds=False)
    if spec.trainer.kind != PARLAY:
        rule, fix = "a selftest needs Parlay's trainer", "remove the trainer section, or --set trainer.kind=parlay"
        raise InputError.of("selftest", f"kind is {spec.trainer.kind}", key="trainer.kind", rule=rule, fix=fix)
    cluster = cases_of.selftest_cluster(spec.cluster)
    if quick and cluster.num_gpus < 2:
        fix = "leave it out"
        raise InputError.of("selftest", "the cluster has one", key="--quick", rule="its cases have two ranks", fix=fix)
    chosen = [*(names or ()), *(QUICK if quick else ())]
    cases = cases_of.cases_for(cluster, chosen, spec.space.given_axes().get("engine", ()))
    if list_only:
        listed = [cases_of.SelftestCase(name=case.name, ranks=case.layout.num_gpus) for case in cases]
        lines = [f"{case.ranks} ranks  {case.name}" for case in listed]
        print_result(cases_of.SelftestListAnswer(cases=listed), "\n".join(lines))
        return
    require_software(spec, ((case.layout, case.model) for case in cases))

    def run(runner: AttemptRunner, folder: SearchFolder) -> SelftestAnswer:
        report = cases_of.selftest(runner, folder, cluster, cases, python_of(spec), lambda result: log(row(result)))
        write_json(folder.path / "selftest.json", report.plain())
        return report

    report = run_job(spec, cluster, "selftest", f"{len(cases)} cases on {format_cluster(cluster)}", run)
    if not chosen:
        cases_of.record_result(report, spec.launcher.kind, cluster, home_folder())
    print_result(report, _verdict(report, cluster))
    if not report.passed:
        raise Exit(ExitCode.NO_MEASUREMENT)


def row(result: CaseResult) -> str:
    """A case in one line: result, difference, ranks, time, name."""
    state = "ok    " if result.passed else "FAILED"
    difference = "-      " if result.difference is None else f"{result.difference:.1e}"
    words = f"  {result.message}" if result.message else ""
    return f"{state}  {difference}  {result.ranks} ranks  {result.seconds:5.1f} s  {result.name}{words}"


def _verdict(report: SelftestAnswer, cluster: Cluster) -> str:
    known = report.fingerprint
    versions = ", ".join(f"{name} {known[name]}" for name in _PACKAGES if name in known)
    device = f"{known.get('device', 'unknown device')}; {versions or 'versions unknown'}"
    lines = [*map(row, report.failed), f"on {format_cluster(cluster)} ({device})"]
    lines.append(f"{len(report.results) - len(report.failed)} of {report.num_cases} cases passed")
    return "\n".join(lines)
