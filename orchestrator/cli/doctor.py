"""`parlay doctor`: checks whether a search would run here, before it does."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.diagnostic_job import with_launcher
from orchestrator.cli.options import (
    AsJson,
    Change,
    LauncherKind,
    LedgerUrl,
    Overrides,
    WorkDir,
    naming_options,
    to_overrides,
)
from orchestrator.cli.output import Exit, log, print_result
from orchestrator.common.exit_codes import ExitCode
from orchestrator.lifecycle.signals import CancelOnSignal
from search_spaces.errors import ExternalError, InputError
from trials.files.text import plural

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from orchestrator.diagnostics.doctor.finding import DoctorReport, Finding
    from orchestrator.launchers.attempt_runner import AttemptRunner
    from orchestrator.launchers.base import Launcher
    from search_spaces.hardware.cluster import Cluster
    from trials.files.folders import SearchFolder

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
    as_json: AsJson = False,
) -> None:
    """Find what would keep a search from running here or slow it down, and how to fix it."""
    from orchestrator.diagnostics.doctor.finding import Area, DoctorReport, Level, problem_findings
    from orchestrator.diagnostics.doctor.run import DoctorTarget, run_checks
    from slurm.client import SlurmClient

    for key, runs_job in (("--submit-test", submit_test), ("--fabric", fabric)):
        if runs_job and search_file is None:
            rule, fix = "the search file sets the job's size and options", "parlay doctor SEARCH.YAML"
            raise InputError.of("usage", "needs a search file", key=key, rule=rule, fix=fix)
    changes, spec, refused = to_overrides(sets, launcher, None, work_dir, ledger), None, None
    try:
        spec = _load(search_file, changes)
    except InputError as error:
        refused = (Area.SEARCH, tuple(problem_findings(error.problems)))
    kind = spec.launcher.kind if spec else launcher
    target = DoctorTarget(spec, kind, spec.ledger.url if spec else ledger, SlurmClient(), submit_test)
    found = run_checks(target, lambda area: log(f"looking at {area}"))
    if refused is not None:
        found = DoctorReport((refused, *found.areas))
    for area, job, wanted in ((Area.JOB, _submit_test, submit_test), (Area.FABRIC, _fabric_check, fabric)):
        if wanted and spec is not None:
            found = DoctorReport((*found.areas, (area, tuple(_job_findings(spec, found, job(spec), as_json)))))
    print_result(found.answer, as_json, format_report(found))
    if found.count(Level.ERROR):
        raise Exit(ExitCode.DOCTOR_FOUND_ERROR)


def format_report(found: DoctorReport) -> str:
    """Findings by area, each with its fix, and the counts of errors and warnings."""
    lines: list[str] = []
    for area, findings in found.areas:
        if not findings:
            continue
        lines += [str(area), *(line for finding in findings for line in _format_finding(finding)), ""]
    return "\n".join([*lines, _format_counts(found)])


def _format_finding(finding: Finding) -> Sequence[str]:
    first, *more = finding.message.splitlines() or [""]
    lines = [f"  {_MARKS[finding.level]}  {finding.name}: {first}", *(f"           {line}" for line in more)]
    return lines if finding.fix is None else [*lines, f"           -> {finding.fix}"]


def _format_counts(found: DoctorReport) -> str:
    from orchestrator.diagnostics.doctor.finding import Level

    errors, warnings = found.count(Level.ERROR), found.count(Level.WARNING)
    if not errors and not warnings:
        return "no problems found"
    names = ", ".join(dict.fromkeys(f.name for f in found.findings if f.level in (Level.ERROR, Level.WARNING)))
    return f"{plural(errors, 'error')}, {plural(warnings, 'warning')}: {names}"


def _load(search_file: Path | None, changes: Sequence[Change]) -> SearchSpec | None:
    """The search with this shell's options for sbatch; None without a file."""
    from orchestrator.config.loader import load_search_file
    from orchestrator.lifecycle.create import with_environment_options

    if search_file is None:
        return None
    with naming_options(changes):
        spec = load_search_file(search_file, [change.text for change in changes])
        return with_environment_options(spec, os.environ)


@dataclass(frozen=True)
class _Job:
    """A job of the doctor: its nodes, and its findings as a function of runner and folder."""

    cluster: Cluster
    findings: Callable[[AttemptRunner, SearchFolder], Iterable[Finding]]


def _submit_test(spec: SearchSpec) -> _Job:
    from orchestrator.diagnostics.doctor.node_probe import probe_cluster, submit_test

    return _Job(probe_cluster(spec.cluster), lambda runner, folder: submit_test(runner, folder, spec))


def _fabric_check(spec: SearchSpec) -> _Job:
    from orchestrator.diagnostics.fabric import fabric_cluster, fabric_findings
    from orchestrator.planning.candidates import valid_candidates

    layouts = valid_candidates(spec)
    return _Job(fabric_cluster(spec), lambda runner, folder: fabric_findings(runner, folder, spec, layouts))


def _job_findings(spec: SearchSpec, found: DoctorReport, job: _Job, as_json: bool) -> list[Finding]:
    """Findings of a job; a note if earlier errors would make it fail."""
    from orchestrator.diagnostics.doctor.finding import Area, Level, error, note
    from orchestrator.launchers.attempt_runner import AttemptRunner
    from trials.files.folders import SearchFolder

    before = (Area.SEARCH, Area.SLURM, Area.JOBS, Area.FOLDERS)
    if any(f.level is Level.ERROR for area, findings in found.areas if area in before for f in findings):
        return [
            note("job", "not submitted: it would fail because of the errors above", "fix the errors, and try again")
        ]
    if spec.launcher.kind == "simulated":
        return [note("job", "not submitted: launcher simulated runs nothing", "--launcher local, ray or slurm")]
    folder = SearchFolder(spec.work_dir / f"doctor-{secrets.token_hex(3)}")

    def run(launcher: Launcher, stop: CancelOnSignal) -> list[Finding]:
        log(f"a job on {plural(job.cluster.num_nodes, 'node')}, in {folder.path}")
        return list(job.findings(AttemptRunner(launcher, stop.is_requested), folder))

    try:
        return with_launcher(spec, job.cluster, run, "doctor", as_json)
    except ExternalError as refused:
        return [error("job", str(refused), refused.fix or "see the message")]
