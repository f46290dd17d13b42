"""`parlay calibrate`: a cluster file from measurements."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.diagnostic_job import format_cluster, load_for_job, require_launching, with_launcher
from orchestrator.cli.options import AsJson, LauncherKind, Overrides, SearchFilePath
from orchestrator.cli.output import exit_with_error, log, print_result, warn
from orchestrator.common.exit_codes import ExitCode
from orchestrator.lifecycle.signals import CancelOnSignal
from search_spaces.errors import InputError, Problem

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from orchestrator.launchers.base import Launcher
    from search_spaces.hardware.cluster import Cluster
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
    work_dir: Annotated[
        Path | None, typer.Option("--work-dir", help="Parent folder of the measurements' folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure compute, memory and links of this search's cluster, and write a cluster file."""
    from orchestrator.common.machine_load import busy_warning
    from orchestrator.diagnostics.calibrate import CalibrateAnswer, calibration_cluster
    from orchestrator.diagnostics.cluster_file import (
        CalibrationContext,
        calibrated_cluster,
        cluster_fields,
        cluster_file,
    )
    from orchestrator.planning.candidates import valid_candidates
    from orchestrator.preflight.trainer import require_engine_packages, require_torch
    from trials.files.folders import SearchFolder, write_text

    spec = load_for_job(search_file, sets, launcher, work_dir)
    require_launching(spec, "calibrate")
    cluster, path = calibration_cluster(spec, nodes), out or Path(f"{spec.name}-cluster.yaml")
    _require_place(path)
    require_torch(spec)
    require_engine_packages(spec, ((layout, spec.model) for layout in valid_candidates(spec)))
    folder = SearchFolder(spec.work_dir / f"calibrate-{secrets.token_hex(3)}")
    runs_here = spec.launcher.kind in ("local", "ray") and spec.launcher.address is None
    if busy := busy_warning() if runs_here else None:
        warn(f"{busy}: measurements will be slower than the machine")
    found = _measure_or_exit(spec, cluster, folder, path, as_json)
    calibrated = calibrated_cluster(spec.cluster, found)
    text = cluster_file(calibrated, found, CalibrationContext(spec.name, spec.launcher.kind, cluster, busy))
    write_text(path.absolute(), text)
    answer = CalibrateAnswer.of(path, folder, cluster_fields(calibrated), found)
    print_result(answer, as_json, f"{text}\n{path} is written; set cluster: {path} in the search file")


def _measure_or_exit(
    spec: SearchSpec, cluster: Cluster, folder: SearchFolder, path: Path, as_json: bool
) -> Measurements:
    """Return the measurements. If there are none, exit with an error and leave `path` unwritten."""
    from orchestrator.diagnostics.calibrate import calibration, precisions_of
    from orchestrator.diagnostics.job import ProgramFailed, run_program
    from orchestrator.launchers.attempt_runner import AttemptRunner
    from orchestrator.preflight.trainer import python_of

    precisions, python = precisions_of(spec), python_of(spec)

    def run(launcher: Launcher, stop: CancelOnSignal) -> Measurements:
        log(f"measuring {format_cluster(cluster)}, in {folder.path}")
        program = calibration(cluster, spec.model, precisions, python)
        return run_program(AttemptRunner(launcher, stop.is_requested), folder, program)[1]

    try:
        return with_launcher(spec, cluster, run, "calibrate", as_json)
    except ProgramFailed as failed:
        problem = Problem("not_measured", f"{path} is not written: {failed}", fix=f"see {failed.log}")
        exit_with_error(ExitCode.NO_MEASUREMENT, problem, as_json)


def _require_place(path: Path) -> None:
    """Raise InputError unless a cluster file may be written there: only calibrate's own files are overwritten."""
    from orchestrator.diagnostics.cluster_file import is_written_by_calibrate

    try:
        fault = (
            None if not path.exists() or is_written_by_calibrate(path) else "exists and was not written by calibrate"
        )
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            fault = "is not in a writable folder"
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
    if fault is not None:
        rule, fix = "a new file, or one that calibrate wrote", "name another with --out"
        raise InputError.of("output", f"{path} {fault}", key="--out", value=str(path), rule=rule, fix=fix)
