"""Shared by the verbs that run a job of their own on a search's cluster: selftest, calibrate, doctor."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from orchestrator.cli.options import loading, to_overrides
from orchestrator.cli.output import Exit, log, warn
from orchestrator.lifecycle.signals import StopSignals
from search_spaces.errors import InputError, Problem
from trials.files.folders import SearchFolder
from trials.files.text import plural

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from orchestrator.launchers.attempt_runner import AttemptRunner
    from search_spaces.hardware.cluster import Cluster


T = TypeVar("T")


def load_for_job(
    search_file: Path,
    sets: list[str] | None,
    launcher: str | None,
    work_dir: str | None,
    verb: str,
    compares_speeds: bool = True,
) -> SearchSpec:
    """The search of this file, for a job of its own; `compares_speeds` as for `load_search_file`. InputError where its
    launcher runs nothing."""
    from orchestrator.config.spec import with_locations
    from orchestrator.diagnostics.preflight.work_dir import require_directories

    changes = to_overrides(sets, launcher=launcher, work_dir=work_dir)
    with loading(search_file, changes, compares_speeds) as spec:
        try:
            require_directories(spec)
        except InputError as error:
            raise with_locations(error, spec) from error
    if spec.launcher.kind == "simulated":
        rule, fix = f"{verb} runs for real", "--launcher local, ray or slurm"
        raise InputError.of(verb, "kind is simulated", key="launcher.kind", rule=rule, fix=fix)
    return spec


def run_job(
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


def format_cluster(cluster: Cluster) -> str:
    return f"{plural(cluster.num_nodes, 'node')} x {cluster.gpus_per_node} {cluster.accelerator.name}"
