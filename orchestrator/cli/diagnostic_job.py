"""Shared by the verbs that run a job of their own on a search's cluster: selftest, calibrate, doctor."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from orchestrator.cli.options import naming_options, to_overrides
from orchestrator.cli.output import exit_with_error, warn
from orchestrator.lifecycle.signals import CancelOnSignal, code_after
from search_spaces.errors import InputError, Problem
from trials.files.text import plural

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from orchestrator.launchers.base import Launcher
    from search_spaces.hardware.cluster import Cluster


T = TypeVar("T")


def load_for_job(
    search_file: Path,
    sets: list[str] | None,
    launcher: str | None,
    work_dir: Path | None,
    compares_speeds: bool = True,
) -> SearchSpec:
    """The search of this file, for a job of its own; `compares_speeds` as for `load_search_file`."""
    from orchestrator.config.loader import load_search_file
    from orchestrator.config.spec import with_locations
    from orchestrator.preflight.work_dir import require_directories

    changes = to_overrides(sets, launcher, None, None if work_dir is None else str(work_dir), None)
    with naming_options(changes):
        spec = load_search_file(search_file, [change.text for change in changes], compares_speeds)
        try:
            require_directories(spec)
        except InputError as error:
            raise with_locations(error, spec) from error
    return spec


def require_launching(spec: SearchSpec, verb: str) -> None:
    if spec.launcher.kind == "simulated":
        rule, fix = f"{verb} runs for real", "--launcher local, ray or slurm"
        raise InputError.of(verb, "kind is simulated", key="launcher.kind", rule=rule, fix=fix)


def with_launcher(
    spec: SearchSpec, cluster: Cluster, run: Callable[[Launcher, CancelOnSignal], T], verb: str, as_json: bool
) -> T:
    """Return the result of `run` with the search's launcher; exits with an error if interrupted."""
    from orchestrator.launchers.factory import make_launcher
    from orchestrator.lifecycle.create import with_environment_options

    spec, stop = with_environment_options(spec, os.environ), CancelOnSignal()
    try:
        launcher, remark = make_launcher(spec.launcher, parallel_trials=1, cluster=cluster)
        if remark is not None:
            warn(remark)
        with closing(launcher), stop.handling():
            return run(launcher, stop)
    except KeyboardInterrupt:
        problem = Problem("interrupted", f"{verb} was interrupted", fix="run it again")
        exit_with_error(code_after(stop), problem, as_json)


def format_cluster(cluster: Cluster) -> str:
    return f"{plural(cluster.num_nodes, 'node')} x {cluster.gpus_per_node} {cluster.accelerator.name}"
