"""`parlay calibrate`: a cluster file from measurements."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.diagnostic_job import format_cluster, load_for_job, run_job
from orchestrator.cli.options import LauncherKind, Overrides, SearchFilePath, WorkDir
from orchestrator.cli.output import Exit, print_result, warn
from orchestrator.lifecycle.exit_codes import ExitCode
from search_spaces.errors import InputError, Problem

if TYPE_CHECKING:
    from orchestrator.launchers.attempt_runner import AttemptRunner
    from trials.diagnostics.calibration import Measurements
    from trials.files.folders import SearchFolder


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
    from orchestrator.diagnostics.job import ProgramFailed, run_on_cluster
    from orchestrator.diagnostics.machine_load import busy_warning
    from orchestrator.diagnostics.preflight.trainer import python_of, require_software
    from orchestrator.planning.candidates import valid_candidates
    from trials.files.folders import write_text

    spec = load_for_job(search_file, sets, launcher, work_dir, "calibrate")
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
        found, folder = run_job(spec, cluster, "calibrate", f"measuring {format_cluster(cluster)}", measure)
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
