"""The verbs that ask a cluster before a search is trusted to it: selftest, calibrate."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from orchestrator.cli.exit_codes import ExitCode, code_after
from orchestrator.cli.options import (
    AsJson,
    LauncherKind,
    Overrides,
    SearchFilePath,
    named_as_typed,
    overrides_of,
)
from orchestrator.cli.output import Exit, answer, fail, say
from orchestrator.lifecycle.signals import CancelOnSignal
from search_spaces.errors import InputError, Problem
from trials.files.folders import SearchFolder, write_json, write_text
from trials.files.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.config.spec import SearchSpec
    from orchestrator.diagnostics.selftest import SelftestReport
    from orchestrator.launchers.base import Launcher
    from search_spaces.hardware.cluster import Cluster
    from trials.protocols.calibration import Measurements
    from trials.protocols.selftest import Case, CaseResult

CASES_SCHEMA = "parlay.selftest_list/1"
CALIBRATE_SCHEMA = "parlay.calibrate/1"
T = TypeVar("T")


def add_to(app: typer.Typer) -> None:
    """Register this file's verbs."""
    app.command()(selftest)
    app.command()(calibrate)


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
    from orchestrator.diagnostics.selftest import cases_for, record, world_of
    from orchestrator.preflight.trainer import require_torch
    from trials.ledger.place import home_folder

    spec = _loaded(search_file, sets, launcher, work_dir)
    _require_own_trainer(spec)
    _require_launching(spec, "selftest")
    world = world_of(spec.cluster)
    cases = cases_for(world, names or ())
    if list_only:
        listed = [{"name": case.name, "ranks": case.layout.num_gpus} for case in cases]
        data = {"schema": CASES_SCHEMA, "cases": listed}
        answer(data, as_json, "\n".join(f"{c['ranks']} ranks  {c['name']}" for c in listed))
        return
    require_torch(spec)
    folder = SearchFolder(spec.work_dir / f"selftest-{secrets.token_hex(3)}")
    report = _run(spec, world, cases, folder, as_json)
    write_json(folder.path / "selftest.json", report.to_json())
    if not names:
        record(report, spec.launcher.kind, world, home_folder(), say)
    answer(report.to_json(), as_json, _verdict(report, world))
    if not report.passed:
        raise Exit(ExitCode.NO_MEASUREMENT)


def calibrate(
    search_file: SearchFilePath,
    sets: Overrides = None,
    launcher: LauncherKind = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", min=1, metavar="N", help="Measure so many; all that a trial may use if absent."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The cluster file; NAME-cluster.yaml of the search's name if absent."),
    ] = None,
    work_dir: Annotated[
        Path | None, typer.Option("--work-dir", help="Folder in which the measurements get their own.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how fast this search's cluster computes and talks, and write it down as a cluster file."""
    from orchestrator.common.machine_load import busy_words
    from orchestrator.diagnostics.calibrate import world_of
    from orchestrator.diagnostics.cluster_file import (
        CalibrationContext,
        calibrated_cluster,
        cluster_fields,
        cluster_file,
    )
    from orchestrator.preflight.trainer import require_torch

    spec = _loaded(search_file, sets, launcher, work_dir)
    _require_launching(spec, "calibrate")
    world, path = world_of(spec, nodes), out or Path(f"{spec.name}-cluster.yaml")
    _require_place(path)
    require_torch(spec)
    folder = SearchFolder(spec.work_dir / f"calibrate-{secrets.token_hex(3)}")
    runs_here = spec.launcher.kind in ("local", "ray") and spec.launcher.address is None
    if busy := busy_words() if runs_here else None:
        say(f"{busy}: what is measured now is slower than the machine is")
    found = _measured(spec, world, folder, path, as_json)
    cluster = calibrated_cluster(spec.cluster, found)
    text = cluster_file(cluster, found, CalibrationContext(spec.name, spec.launcher.kind, world, busy))
    write_text(path.absolute(), text)
    data = {
        "schema": CALIBRATE_SCHEMA,
        "file": str(path),
        "folder": str(folder.path),
        "cluster": cluster_fields(cluster),
        "measurements": _measurements_json(found),
    }
    answer(data, as_json, f"{text}\n{path} is written; give its path as cluster: in the search file")


def _measured(spec: SearchSpec, world: Cluster, folder: SearchFolder, path: Path, as_json: bool) -> Measurements:
    """What was measured; ends the command where nothing was, and `path` is not written."""
    from orchestrator.diagnostics.calibrate import NotMeasured, precisions_of
    from orchestrator.diagnostics.calibrate import calibrate as measure
    from orchestrator.diagnostics.job import JobWatcher
    from orchestrator.preflight.trainer import python_of

    precisions, python = precisions_of(spec), python_of(spec)

    def run(launcher: Launcher, stop: CancelOnSignal) -> Measurements:
        say(f"measuring {_words(world)}, in {folder.path}")
        return measure(launcher, folder, world, spec.model, precisions, python, JobWatcher(say, stop.is_requested))

    try:
        return with_launcher(spec, world, run, "calibrate", as_json)
    except NotMeasured as failed:
        problem = Problem("not_measured", f"{path} is not written: {failed}", fix=f"see {failed.log}")
        fail(ExitCode.NO_MEASUREMENT, problem, as_json)


def _loaded(search_file: Path, sets: list[str] | None, launcher: str | None, work_dir: Path | None) -> SearchSpec:
    from orchestrator.config.loader import load_search_file
    from orchestrator.config.spec import located
    from orchestrator.preflight.work_dir import require_places

    changes = overrides_of(sets, launcher, None, None if work_dir is None else str(work_dir), None)
    with named_as_typed(changes):
        spec = load_search_file(search_file, [change.text for change in changes])
        try:
            require_places(spec)
        except InputError as error:
            raise located(error, spec) from error
    return spec


def _require_own_trainer(spec: SearchSpec) -> None:
    if spec.trainer.kind != "parlay":
        rule, fix = "a selftest is of Parlay's own trainer", "remove the trainer section, or --set trainer.kind=parlay"
        raise InputError.of("selftest", f"kind is {spec.trainer.kind}", key="trainer.kind", rule=rule, fix=fix)


def _require_launching(spec: SearchSpec, verb: str) -> None:
    if spec.launcher.kind == "recorded":
        rule, fix = f"{verb} runs for real", "--launcher local, ray or slurm"
        raise InputError.of(verb, "kind is recorded", key="launcher.kind", rule=rule, fix=fix)


def _require_place(path: Path) -> None:
    """InputError unless a cluster file may be written there: nobody's own is written over."""
    from orchestrator.diagnostics.cluster_file import is_by_calibrate

    try:
        fault = None if not path.exists() or is_by_calibrate(path) else "exists, and calibrate has not written it"
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            fault = "lies in no folder that may be written to"
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
    if fault is not None:
        rule, fix = "a new file, or one that calibrate wrote", "name another with --out"
        raise InputError.of("output", f"{path} {fault}", key="--out", value=str(path), rule=rule, fix=fix)


def _run(
    spec: SearchSpec, world: Cluster, cases: Sequence[Case], folder: SearchFolder, as_json: bool
) -> SelftestReport:
    from orchestrator.diagnostics.selftest import SelftestWatcher
    from orchestrator.diagnostics.selftest import selftest as run_cases
    from orchestrator.preflight.trainer import python_of

    def run(launcher: Launcher, stop: CancelOnSignal) -> SelftestReport:
        say(f"{len(cases)} cases on {_words(world)}, in {folder.path}")
        watcher = SelftestWatcher(say, stop.is_requested, lambda result: say(row(result)))
        return run_cases(launcher, folder, world, cases, python_of(spec), watcher)

    return with_launcher(spec, world, run, "selftest", as_json)


def with_launcher(
    spec: SearchSpec, world: Cluster, run: Callable[[Launcher, CancelOnSignal], T], verb: str, as_json: bool
) -> T:
    """What `run` answers with the search's launcher; ends the command where it is interrupted."""
    from orchestrator.launchers.factory import make_launcher
    from orchestrator.lifecycle.create import with_carried_options

    spec, stop = with_carried_options(spec, os.environ, say), CancelOnSignal()
    try:
        launcher, remark = make_launcher(spec.launcher, parallel_trials=1, cluster=world)
        if remark is not None:
            say(remark)
        with closing(launcher), stop.handling():
            return run(launcher, stop)
    except KeyboardInterrupt:
        problem = Problem("interrupted", f"{verb} was stopped before its end", fix="run it again")
        fail(code_after(stop), problem, as_json)


def _measurements_json(found: Measurements) -> dict[str, Any]:
    """As they lie in the folder, with the rates that follow."""
    groups = [asdict(time) | {"bus_gb_per_s": time.bus_gb_per_s} for time in found.groups]
    pairs = [asdict(time) | {"gb_per_s": time.gb_per_s} for time in found.pairs]
    return found.to_json() | {"groups": groups, "pairs": pairs}


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
    return f"{counted(world.num_nodes, 'node')} x {world.gpus_per_node} {world.accelerator.name}"
