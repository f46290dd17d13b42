"""`parlay doctor`: checks whether a search would run here, before it does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.diagnostic_job import run_job
from orchestrator.cli.options import Change, LauncherKind, LedgerUrl, Overrides, WorkDir, loading, to_overrides
from orchestrator.cli.output import Exit, log, print_result
from orchestrator.lifecycle.exit_codes import ExitCode
from search_spaces.errors import ExternalError, InputError
from trials.files.text import plural

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from orchestrator.diagnostics.doctor.finding import Area, DoctorReport, Finding
    from orchestrator.launchers.attempt_runner import AttemptRunner
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
) -> None:
    from orchestrator.diagnostics.doctor.finding import Area, DoctorReport, Severity, problem_findings
    from orchestrator.diagnostics.doctor.run import DoctorTarget, run_checks
    from slurm.client import SlurmClient

    jobs = {Area.JOB: ("--submit-test", submit_test), Area.FABRIC: ("--fabric", fabric)}
    for key, is_wanted in jobs.values():
        if is_wanted and search_file is None:
            rule, fix = "the search file sets the job's size and options", "parlay doctor SEARCH.YAML"
            raise InputError.of("usage", "needs a search file", key=key, rule=rule, fix=fix)
    spec, refused = None, None
    changes = to_overrides(sets, launcher=launcher, work_dir=work_dir, ledger=ledger)
    try:
        spec = _load(search_file, changes)
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
    print_result(found.answer, format_report(found))
    if found.count(Severity.ERROR):
        raise Exit(ExitCode.DOCTOR_FOUND_ERROR)


def format_report(found: DoctorReport) -> str:
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


def _load(search_file: Path | None, changes: Sequence[Change]) -> SearchSpec | None:
    """The search with this shell's options for sbatch; None without a file."""
    from orchestrator.lifecycle.create import with_environment_options

    if search_file is None:
        return None
    with loading(search_file, changes) as spec:
        return with_environment_options(spec, os.environ)


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
        return run_job(spec, cluster, "doctor", f"a job on {plural(cluster.num_nodes, 'node')}", findings)
    except ExternalError as refused:
        return [error("job", str(refused), refused.fix or "see the message")]
