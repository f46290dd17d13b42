"""`parlay slurm-sandbox`: a real Slurm on this machine, to try Parlay on."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import AsJson
from orchestrator.cli.output import exit_with_error, log, print_result
from orchestrator.cli.verbosity import Verb
from orchestrator.common.exit_codes import ExitCode
from search_spaces.errors import InputError, Problem
from trials.files.text import plural

if TYPE_CHECKING:
    from orchestrator.cli.tool_answers import SandboxAnswer
    from orchestrator.config.spec import SearchSpec
    from slurm.sandbox.config_files import CloudNodes
    from slurm.sandbox.sandbox import SlurmSandbox

SandboxFolder = Annotated[
    Path | None, typer.Argument(metavar="[FOLDER]", help="Folder of all its files; default: in Parlay's home.")
]

_RESTART_FIX = "parlay slurm-sandbox stop, then start again; its daemons' logs lie in log/ of its folder"

commands = typer.Typer(
    name="slurm-sandbox", help="A real Slurm on this machine, to try Parlay on.", no_args_is_help=True
)


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
    as_json: AsJson = False,
) -> None:
    """Start a sandbox, with its earlier records if there are any, and print how to use it."""
    wanted = {
        "nodes": nodes,
        "cpus_per_node": cpus_per_node,
        "gpus_per_node": gpus_per_node,
        "accounting": accounting,
        "cloud": cloud_like(like) if like else None,
    }
    with _sandbox_errors(as_json):
        sandbox = _sandbox(_folder_of(folder), {name: value for name, value in wanted.items() if value is not None})
        _provide_packages(sandbox.shape.accounting, install, as_json)
        began = time.monotonic()
        sandbox.start()
    print_result(_answer(sandbox), as_json, _usage_text(sandbox, time.monotonic() - began))


@commands.command(cls=Verb)
def stop(folder: SandboxFolder = None, as_json: AsJson = False) -> None:
    """Stop a sandbox and its jobs; its records are kept for the next start."""
    from slurm.sandbox.sandbox import SlurmSandbox

    place = _folder_of(folder)
    with _sandbox_errors(as_json):
        sandbox = SlurmSandbox.found_in(place)
        if sandbox is None:
            raise InputError.of(
                "slurm_sandbox", "no sandbox has been started there", key="FOLDER", value=str(place), fix="name another"
            )
        sandbox.stop()
    print_result(_answer(sandbox), as_json, f"the sandbox in {sandbox.paths.folder} is stopped")


def cloud_like(search_files: Sequence[Path]) -> tuple[CloudNodes, ...]:
    """Nodes of the clusters of these searches; equal partitions are merged."""
    from orchestrator.config.loader import load_search_file

    return tuple(dict.fromkeys(cloud_of(load_search_file(path)) for path in search_files))


def cloud_of(spec: SearchSpec) -> CloudNodes:
    """Nodes of the search's cluster, in its partition, or in one named after the search.

    A cluster file does not give the CPUs of a node: the site's usable CPUs, else a default, or as many as the ranks
    request.
    """
    from slurm.sandbox.config_files import CLOUD_CPUS, CloudNodes

    cluster, wanted = spec.cluster, spec.launcher.slurm
    gpus = 0 if cluster.accelerator.name == "cpu" else cluster.gpus_per_node
    cpus = wanted.usable_cpus or max(CLOUD_CPUS, (wanted.cpus_per_task or 1) * cluster.gpus_per_node)
    return CloudNodes(wanted.partition or spec.name, cluster.num_nodes, gpus, cpus)


def _folder_of(given: Path | None) -> Path:
    from trials.ledger.location import home_folder

    return home_folder() / "slurm-sandbox" if given is None else given


def _sandbox(folder: Path, wanted: dict[str, Any]) -> SlurmSandbox:
    """The sandbox of this folder: its earlier shape with the wanted changes."""
    from slurm.sandbox.sandbox import SlurmSandbox

    before = SlurmSandbox.found_in(folder)
    return SlurmSandbox(folder, **(before.shape.arguments if before else {}) | wanted)


def _provide_packages(accounting: bool, install: bool, as_json: bool) -> None:
    from slurm.sandbox.apt_packages import InstallFailed, can_install, install_packages, missing_packages

    missing = missing_packages(accounting)
    if not missing:
        return
    if not (install and can_install()):
        exit_with_error(ExitCode.REFUSED, _missing(missing, can_install()), as_json)
    log(f"installing {' '.join(missing)}")
    try:
        install_packages(missing)
    except InstallFailed as error:
        exit_with_error(ExitCode.REFUSED, Problem("slurm_sandbox", str(error), fix=_RESTART_FIX), as_json)


def _missing(packages: Sequence[str], can_install: bool) -> Problem:
    from slurm.sandbox.apt_packages import install_command

    by_hand = f"as root: {install_command(packages)}"
    return Problem(
        "slurm_sandbox",
        f"Slurm is not installed: these Debian packages are missing: {' '.join(packages)}",
        fix=f"parlay slurm-sandbox start --install, or {by_hand}" if can_install else by_hand,
    )


@contextmanager
def _sandbox_errors(as_json: bool) -> Iterator[None]:
    """Within this block an unusable argument becomes an InputError, and a Slurm that does not start a refusal."""
    from slurm.sandbox.sandbox import SandboxFailed

    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError.of("slurm_sandbox", str(error), fix="change the value, or leave it out") from error
    except (SandboxFailed, subprocess.TimeoutExpired) as error:
        exit_with_error(ExitCode.REFUSED, Problem("slurm_sandbox", str(error), fix=_RESTART_FIX), as_json)


def _answer(sandbox: SlurmSandbox) -> SandboxAnswer:
    from orchestrator.cli.tool_answers import SandboxAnswer

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
    each = f"{shape.cpus_per_node} CPUs" + (f" and {shape.gpus_per_node} GPUs" if shape.gpus_per_node else "")
    return "\n".join(
        (
            f"# Slurm is up after {seconds:.1f} s: {shape.nodes} nodes of {each}, all on this machine. Use it:",
            *(f"export {name}={shlex.quote(value)}" for name, value in sandbox.environment.items()),
            *map(_cloud_line, shape.cloud),
            "parlay run quickstart --launcher slurm",
            f"# Stop it: parlay slurm-sandbox stop {place}",
        )
    )


def _cloud_line(cloud: CloudNodes) -> str:
    gpus = f" and {cloud.gpus_per_node} GPUs" if cloud.gpus_per_node else ""
    return (
        f"# {plural(cloud.nodes, 'node')} of {cloud.cpus_per_node} CPUs{gpus} are simulated, for dry runs:"
        f" --dry-run --set launcher.slurm.partition={cloud.partition}"
    )
