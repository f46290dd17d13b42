"""`parlay slurm-sandbox`: a real Slurm on this machine, to try Parlay on."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from orchestrator.cli.output import Exit, log, print_result
from orchestrator.cli.verbs import Verb, group
from orchestrator.config.answer import Answer
from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.exit_codes import ExitCode
from search_spaces.errors import ExternalError, InputError, Problem
from slurm.sandbox import apt_packages
from slurm.sandbox.config_files import CLOUD_CPUS, CloudNodes, Shape
from slurm.sandbox.daemons import SandboxFailed
from slurm.sandbox.sandbox import SlurmSandbox
from trials.files.text import plural
from trials.ledger.location import home_folder

SandboxFolder = Annotated[
    Path | None, typer.Argument(metavar="[FOLDER]", help="Folder of all its files; default: in Parlay's home.")
]
_RESTART_FIX = "parlay slurm-sandbox stop, then start again; its daemons' logs lie in log/ of its folder"

commands = group("slurm-sandbox")


class SandboxAnswer(Answer):
    """Printed by slurm-sandbox start and stop."""

    schema_: Literal["parlay.slurm_sandbox/1"] = "parlay.slurm_sandbox/1"
    folder: str
    slurm_conf: str
    nodes: int
    cpus_per_node: int
    gpus_per_node: int
    accounting: bool
    cloud: list[CloudNodes]
    """Partitions of nodes that do not exist, of --like."""
    running: bool


@commands.command(cls=Verb)
def start(
    folder: SandboxFolder = None,
    nodes: Annotated[int | None, typer.Option("--nodes", help="Number of nodes; 2 in a new sandbox.")] = None,
    cpus_per_node: Annotated[
        int | None,
        typer.Option(
            "--cpus-per-node", help="CPUs per node, more than the machine has if need be; 4 in a new sandbox."
        ),
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option("--gpus-per-node", help="Simulated GPUs per node; 0 in a new sandbox.")
    ] = None,
    accounting: Annotated[
        bool | None,
        typer.Option("--accounting/--no-accounting", help="Run slurmdbd, so that sacct works; off in a new sandbox."),
    ] = None,
    like: Annotated[
        list[Path] | None,
        typer.Option(
            "--like",
            metavar="SEARCH.YAML",
            help="Add a partition of simulated nodes like that search's, for dry runs; may be repeated.",
        ),
    ] = None,
    install: Annotated[bool, typer.Option("--install", help="Install missing Debian packages; needs root.")] = False,
) -> None:
    """Start a sandbox, with its earlier records if there are any, and print how to use it."""
    wanted = {
        "nodes": nodes,
        "cpus_per_node": cpus_per_node,
        "gpus_per_node": gpus_per_node,
        "accounting": accounting,
        "cloud": cloud_like(like) if like else None,
    }
    place = _folder_of(folder)
    with _sandbox_errors():
        before = SlurmSandbox.found_in(place)
        given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        sandbox = SlurmSandbox(place, replace(before.shape if before else Shape(), **given))
        _provide_packages(sandbox.shape.accounting, install)
        began = time.monotonic()
        sandbox.start()
    print_result(_answer(sandbox), _usage_text(sandbox, time.monotonic() - began))


@commands.command(cls=Verb)
def stop(folder: SandboxFolder = None) -> None:
    """Stop a sandbox and its jobs; its records are kept for the next start."""
    place = _folder_of(folder)
    with _sandbox_errors():
        sandbox = SlurmSandbox.found_in(place)
        if sandbox is None:
            message, fix = "no sandbox has been started there", "name another"
            raise InputError.of("slurm_sandbox", message, key="FOLDER", value=str(place), fix=fix)
        sandbox.stop()
    print_result(_answer(sandbox), f"the sandbox in {sandbox.paths.folder} is stopped")


def cloud_like(search_files: Sequence[Path]) -> tuple[CloudNodes, ...]:
    """Nodes of the clusters of these searches; equal partitions are merged."""
    return tuple(dict.fromkeys(cloud_of(load_search_file(path)) for path in search_files))


def cloud_of(spec: SearchSpec) -> CloudNodes:
    """Nodes of the search's cluster, in its partition, or in one named after the search.

    A cluster file does not give the CPUs of a node: the site's usable CPUs, else a default, or as many as the ranks
    request.
    """
    cluster, wanted = spec.cluster, spec.launcher.slurm
    gpus = 0 if cluster.accelerator.name == "cpu" else cluster.gpus_per_node
    cpus = wanted.usable_cpus or max(CLOUD_CPUS, (wanted.cpus_per_task or 1) * cluster.gpus_per_node)
    return CloudNodes(wanted.partition or spec.name, cluster.num_nodes, gpus, cpus)


def _folder_of(given: Path | None) -> Path:
    return home_folder() / "slurm-sandbox" if given is None else given


def _provide_packages(accounting: bool, install: bool) -> None:
    missing = apt_packages.missing_packages(accounting)
    if not missing:
        return
    can_install = apt_packages.can_install()
    if not (install and can_install):
        by_hand = f"as root: {apt_packages.install_command(missing)}"
        message = f"Slurm is not installed: these Debian packages are missing: {' '.join(missing)}"
        fix = f"parlay slurm-sandbox start --install, or {by_hand}" if can_install else by_hand
        raise Exit(ExitCode.REFUSED, Problem("slurm_sandbox", message, fix=fix))
    log(f"installing {' '.join(missing)}")
    apt_packages.install_packages(missing)


@contextmanager
def _sandbox_errors() -> Iterator[None]:
    """Within this block an unusable argument becomes an InputError, and a Slurm that does not start a refusal."""
    try:
        yield
    except (InputError, ExternalError):
        raise
    except ValueError as error:
        raise InputError.of("slurm_sandbox", str(error), fix="change the value, or leave it out") from error
    except (SandboxFailed, apt_packages.InstallFailed, subprocess.TimeoutExpired) as error:
        raise Exit(ExitCode.REFUSED, Problem("slurm_sandbox", str(error), fix=_RESTART_FIX)) from error


def _answer(sandbox: SlurmSandbox) -> SandboxAnswer:
    shape = sandbox.shape
    return SandboxAnswer(
        folder=str(sandbox.paths.folder),
        slurm_conf=str(sandbox.paths.slurm_conf),
        nodes=shape.nodes,
        cpus_per_node=shape.cpus_per_node,
        gpus_per_node=shape.gpus_per_node,
        accounting=shape.accounting,
        cloud=list(shape.cloud),
        running=sandbox.running(),
    )


def _usage_text(sandbox: SlurmSandbox, seconds: float) -> str:
    shape, place = sandbox.shape, shlex.quote(str(sandbox.paths.folder))
    each = _node(shape.cpus_per_node, shape.gpus_per_node)
    return "\n".join(
        (
            f"# Slurm is up after {seconds:.1f} s: {shape.nodes} nodes of {each}, all on this machine. Use it:",
            *(f"export {name}={shlex.quote(value)}" for name, value in sandbox.environment.items()),
            *(
                f"# {plural(cloud.nodes, 'node')} of {_node(cloud.cpus_per_node, cloud.gpus_per_node)} are simulated,"
                f" for dry runs: --dry-run --set launcher.slurm.partition={cloud.partition}"
                for cloud in shape.cloud
            ),
            "parlay run quickstart --launcher slurm",
            f"# Stop it: parlay slurm-sandbox stop {place}",
        )
    )


def _node(cpus: int, gpus: int) -> str:
    return f"{cpus} CPUs" + (f" and {gpus} GPUs" if gpus else "")
