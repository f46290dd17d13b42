"""Checks of a cluster, each with a job of its own: `parlay doctor`, `calibrate` and `selftest`."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from orchestrator.cli.options import LauncherKind, LedgerUrl, Overrides, SearchFilePath, WorkDir, to_overrides
from orchestrator.cli.output import Exit, log, print_result, warn
from orchestrator.lifecycle.exit_codes import ExitCode
from orchestrator.lifecycle.signals import StopSignals
from search_spaces.engines import PARLAY
from search_spaces.errors import ExternalError, InputError, Problem
from trials.files.folders import SearchFolder, write_json
from trials.files.text import plural

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from orchestrator.diagnostics.doctor.finding import Area, DoctorReport, Finding
    from orchestrator.diagnostics.selftest import SelftestAnswer
    from orchestrator.launchers.attempt_runner import AttemptRunner
    from search_spaces.hardware.cluster import Cluster
    from trials.diagnostics.calibration import Measurements
    from trials.diagnostics.selftest import CaseResult


T = TypeVar("T")


def _load_for_job(
    search_file: Path,
    sets: list[str] | None,
    launcher: str | None,
    work_dir: str | None,
    verb: str,
    compares_speeds: bool = True,
) -> SearchSpec:
    """The search of this file, for a job of its own; `compares_speeds` as for `load_search_file`. InputError where its
    launcher runs nothing."""
    from orchestrator.config.loader import load_search_file
    from orchestrator.config.spec import with_locations
    from orchestrator.diagnostics.preflight.work_dir import require_directories

    changes = to_overrides(sets, launcher=launcher, work_dir=work_dir)
    spec = load_search_file(search_file, changes, compares_speeds)
    try:
        require_directories(spec)
    except InputError as error:
        raise with_locations(error, spec) from error
    if spec.launcher.kind == "simulated":
        rule, fix = f"{verb} runs for real", "--launcher local, ray or slurm"
        raise InputError.of(verb, "kind is simulated", key="launcher.kind", rule=rule, fix=fix)
    return spec


def _run_job(
    spec: SearchSpec, cluster: Cluster, verb: str, what: str, work: Callable[[AttemptRunner, SearchFolder], T]
) -> T:
    """Return the result of `work` with a runner of the search's launcher and a new folder; exits with an error if
    interrupted."""
    from orchestrator.launchers.attempt_runner import AttemptRunner
    from orchestrator.launchers.factory import make_launcher
    from orchestrator.lifecycle.create import with_environment_options

    spec, stop = with_environment_options(spec, os.environ), StopSignals()
    folder = SearchFolder(spec.work_dir / f"{verb}-{secrets.token_hex(3)}")
    try:
        launcher, remark = make_launcher(spec.launcher, parallel_trials=1, cluster=cluster)
        if remark is not None:
            warn(remark)
        with closing(launcher), stop.handling():
            log(f"{what}, in {folder.path}")
            return work(AttemptRunner(launcher, stop.is_requested), folder)
    except KeyboardInterrupt as interrupt:
        problem = Problem("interrupted", f"{verb} was interrupted", fix="run it again")
        raise Exit(stop.exit_code, problem) from interrupt


def _format_cluster(cluster: Cluster) -> str:
    return f"{plural(cluster.num_nodes, 'node')} x {cluster.gpus_per_node} {cluster.accelerator.name}"


_MARKS = {"ok": "ok     ", "note": "note   ", "warning": "WARNING", "error": "ERROR  "}


def doctor(
    search_file: Annotated[
        Path | None, typer.Argument(metavar="[SEARCH.YAML]", help="The search file to check.")
    ] = None,
    sets: Overrides = None,
    launcher: LauncherKind = None,
    work_dir: WorkDir = None,
    ledger: LedgerUrl = None,
    submit_test: Annotated[bool, typer.Option("--submit-test", help="Also run a probe job on two nodes.")] = False,
    fabric: Annotated[
        bool,
        typer.Option("--fabric", help="Also time the collectives of the search's group shapes on all its nodes."),
    ] = False,
) -> None:
    from orchestrator.config.loader import load_search_file
    from orchestrator.diagnostics.doctor.finding import Area, DoctorReport, Severity, problem_findings
    from orchestrator.diagnostics.doctor.run import DoctorTarget, run_checks
    from orchestrator.lifecycle.create import with_environment_options
    from slurm.client import SlurmClient

    jobs = {Area.JOB: ("--submit-test", submit_test), Area.FABRIC: ("--fabric", fabric)}
    for key, is_wanted in jobs.values():
        if is_wanted and search_file is None:
            rule, fix = "the search file sets the job's size and options", "parlay doctor SEARCH.YAML"
            raise InputError.of("usage", "needs a search file", key=key, rule=rule, fix=fix)
    spec, refused = None, None
    changes = to_overrides(sets, launcher=launcher, work_dir=work_dir, ledger=ledger)
    try:
        if search_file is not None:
            spec = with_environment_options(load_search_file(search_file, changes), os.environ)
    except InputError as error:
        refused = (Area.SEARCH, tuple(problem_findings(error.problems)))
    kind = spec.launcher.kind if spec else launcher
    target = DoctorTarget(spec, kind, spec.ledger.url if spec else ledger, SlurmClient(), submit_test)
    found = run_checks(target, lambda area: log(f"looking at {area}"))
    if refused is not None:
        found = DoctorReport((refused, *found.areas))
    for area, (_, is_wanted) in jobs.items():
        if is_wanted and spec is not None:
            found = DoctorReport((*found.areas, (area, tuple(_job_findings(spec, found, area)))))
    print_result(found.answer, _format_report(found))
    if found.count(Severity.ERROR):
        raise Exit(ExitCode.DOCTOR_FOUND_ERROR)


def _format_report(found: DoctorReport) -> str:
    """Findings by area, each with its fix, and the counts of errors and warnings."""
    from orchestrator.diagnostics.doctor.finding import Severity

    lines: list[str] = []
    for area, findings in found.areas:
        if findings:
            lines += [str(area), *(line for finding in findings for line in _format_finding(finding)), ""]
    errors, warnings = found.count(Severity.ERROR), found.count(Severity.WARNING)
    names = ", ".join(dict.fromkeys(f.name for f in found.findings if f.level in (Severity.ERROR, Severity.WARNING)))
    counts = f"{plural(errors, 'error')}, {plural(warnings, 'warning')}: {names}" if names else "no problems found"
    return "\n".join([*lines, counts])


def _format_finding(finding: Finding) -> Sequence[str]:
    first, *more = finding.message.splitlines() or [""]
    lines = [f"  {_MARKS[finding.level]}  {finding.name}: {first}", *(f"           {line}" for line in more)]
    return lines if finding.fix is None else [*lines, f"           -> {finding.fix}"]


def _job_findings(spec: SearchSpec, found: DoctorReport, wanted: Area) -> list[Finding]:
    """Findings of a job; a note if earlier errors would make it fail."""
    from orchestrator.diagnostics.doctor.finding import Area, Severity, error, note
    from orchestrator.diagnostics.doctor.node_probe import probe_cluster, submit_test
    from orchestrator.diagnostics.fabric import fabric_cluster, fabric_findings
    from orchestrator.planning.candidates import valid_candidates

    before = (Area.SEARCH, Area.SLURM, Area.JOBS, Area.FOLDERS)
    if any(f.level is Severity.ERROR for area, findings in found.areas if area in before for f in findings):
        return [
            note("job", "not submitted: it would fail because of the errors above", "fix the errors, and try again")
        ]
    if spec.launcher.kind == "simulated":
        return [note("job", "not submitted: launcher simulated runs nothing", "--launcher local, ray or slurm")]
    is_probe = wanted is Area.JOB
    cluster = probe_cluster(spec.cluster) if is_probe else fabric_cluster(spec)

    def findings(runner: AttemptRunner, folder: SearchFolder) -> list[Finding]:
        if is_probe:
            return list(submit_test(runner, folder, spec))
        return list(fabric_findings(runner, folder, spec, valid_candidates(spec)))

    try:
        return _run_job(spec, cluster, "doctor", f"a job on {plural(cluster.num_nodes, 'node')}", findings)
    except ExternalError as refused:
        return [error("job", str(refused), refused.fix or "see the message")]


def calibrate(
    search_file: SearchFilePath,
    sets: Overrides = None,
    launcher: LauncherKind = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", min=1, metavar="N", help="Number of nodes to measure; default: as many as a trial may use."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Cluster file to write; default: NAME-cluster.yaml, named after the search."),
    ] = None,
    work_dir: WorkDir = None,
) -> None:
    from orchestrator.diagnostics import calibrate as calibration
    from orchestrator.diagnostics import cluster_file
    from orchestrator.diagnostics.doctor.machine import busy_warning
    from orchestrator.diagnostics.job import ProgramFailed, run_on_cluster
    from orchestrator.diagnostics.preflight.trainer import python_of, require_software
    from orchestrator.planning.candidates import valid_candidates
    from trials.files.folders import write_text

    spec = _load_for_job(search_file, sets, launcher, work_dir, "calibrate")
    cluster, path = calibration.calibration_cluster(spec, nodes), out or Path(f"{spec.name}-cluster.yaml")
    _require_place(path)
    require_software(spec, ((layout, spec.model) for layout in valid_candidates(spec)))
    runs_here = spec.launcher.kind in ("local", "ray") and spec.launcher.address is None
    if busy := busy_warning() if runs_here else None:
        warn(f"{busy}: measurements will be slower than the machine")

    def measure(runner: AttemptRunner, folder: SearchFolder) -> tuple[Measurements, SearchFolder]:
        program = calibration.calibration(cluster, spec.model, calibration.precisions_of(spec), python_of(spec))
        return run_on_cluster(runner, folder, program)[1], folder

    try:
        found, folder = _run_job(spec, cluster, "calibrate", f"measuring {_format_cluster(cluster)}", measure)
    except ProgramFailed as failed:
        problem = Problem("not_measured", f"{path} is not written: {failed}", fix=f"see {failed.log}")
        raise Exit(ExitCode.NO_MEASUREMENT, problem) from failed
    calibrated = cluster_file.calibrated_cluster(spec.cluster, found)
    context = cluster_file.CalibrationContext(spec.name, spec.launcher.kind, cluster, busy)
    text = cluster_file.cluster_file(calibrated, found, context)
    write_text(path.absolute(), text)
    answer = calibration.CalibrateAnswer.of(path, folder, cluster_file.cluster_fields(calibrated), found)
    print_result(answer, f"{text}\n{path} is written; set cluster: {path} in the search file")


def _require_place(path: Path) -> None:
    """Raise InputError unless a cluster file may be written there: only calibrate's own files are overwritten."""
    from orchestrator.diagnostics.cluster_file import is_written_by_calibrate

    fault = None
    try:
        if path.exists() and not is_written_by_calibrate(path):
            fault = "exists and was not written by calibrate"
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            fault = "is not in a writable folder"
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
    if fault is not None:
        rule, fix = "a new file, or one that calibrate wrote", "name another with --out"
        raise InputError.of("output", f"{path} {fault}", key="--out", value=str(path), rule=rule, fix=fix)


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

    spec = _load_for_job(search_file, sets, launcher, work_dir, "selftest", compares_speeds=False)
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
        report = cases_of.selftest(runner, folder, cluster, cases, python_of(spec), lambda result: log(_row(result)))
        write_json(folder.path / "selftest.json", report.plain())
        return report

    report = _run_job(spec, cluster, "selftest", f"{len(cases)} cases on {_format_cluster(cluster)}", run)
    if not chosen:
        cases_of.record_result(report, spec.launcher.kind, cluster, home_folder())
    print_result(report, _verdict(report, cluster))
    if not report.passed:
        raise Exit(ExitCode.NO_MEASUREMENT)


def _row(result: CaseResult) -> str:
    """A case in one line: result, difference, ranks, time, name."""
    state = "ok    " if result.passed else "FAILED"
    difference = "-      " if result.difference is None else f"{result.difference:.1e}"
    words = f"  {result.message}" if result.message else ""
    return f"{state}  {difference}  {result.ranks} ranks  {result.seconds:5.1f} s  {result.name}{words}"


def _verdict(report: SelftestAnswer, cluster: Cluster) -> str:
    known = report.fingerprint
    versions = ", ".join(f"{name} {known[name]}" for name in _PACKAGES if name in known)
    device = f"{known.get('device', 'unknown device')}; {versions or 'versions unknown'}"
    lines = [*map(_row, report.failed), f"on {_format_cluster(cluster)} ({device})"]
    lines.append(f"{len(report.results) - len(report.failed)} of {report.num_cases} cases passed")
    return "\n".join(lines)
