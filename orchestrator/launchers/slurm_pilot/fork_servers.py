"""Fork servers of a pilot: which steps they serve, and the script of their own step, which the agent starts."""

from __future__ import annotations

import hashlib
from dataclasses import astuple, replace
from pathlib import Path

from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.local.rank_groups import preload_environment
from orchestrator.launchers.slurm.job_files import job_request, write_job_files
from orchestrator.launchers.slurm_pilot.pilot import Pilot
from slurm.request import JobOptions, JobRequest
from slurm.script import render_fork_server_script
from trials.fork_server.equality import CONTAINER_VARIABLE, PRELOAD_VARIABLE, is_safe
from trials.pilot.files import FORK_SERVER_SCRIPT


def warm_environment(request: LaunchRequest, options: JobOptions) -> dict[str, str]:
    """Return the variables of ranks that a fork server of their node may fork; none for a plain start.

    Ranks whose steps each have folders of their own (`node_folders`) differ from any server in these variables.
    """
    if not all(map(is_safe, options.launch.node_folders)):
        return {}
    variables = preload_environment(request)
    if not variables or options.container is None:
        return variables
    return variables | {CONTAINER_VARIABLE: _digest(repr(astuple(options.container)))}


def stub_command(request: LaunchRequest) -> tuple[str, ...]:
    """Return the command before a rank's own; without servers it becomes the rank."""
    return request.python, "-I", "-S", str(Path(request.code, "trials", "fork_server", "stub.py").absolute()), "-"


def write_fork_servers(request: LaunchRequest, options: JobOptions, pilot: Pilot) -> str | None:
    """Write the script of the servers for this attempt, unless it is there; return the name of their folder in the
    pilot's.

    None for a plain start. Raises OSError, and ExternalError as `write_job_files`.
    """
    variables = warm_environment(request, options)
    if not variables:
        return None
    job = _server_job(request, options, pilot, variables)
    name = _digest(render_fork_server_script(job))
    folder = pilot.folder.fork_servers(name).absolute()
    job = replace(job, directory=folder, argv=(*job.argv, str(folder)))
    if not Path(folder, FORK_SERVER_SCRIPT).exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_job_files(job, render_fork_server_script)
    return name


def _server_job(request: LaunchRequest, options: JobOptions, pilot: Pilot, variables: dict[str, str]) -> JobRequest:
    """Return the servers as a job with what makes a rank, on all nodes of the pilot.

    Nothing else of the attempt is in it, such as its folder or limit: its text tells whose servers are whose.
    """
    job = job_request(request, options)
    return replace(
        job,
        name="fork_servers",
        directory=pilot.folder.path.absolute(),
        num_nodes=pilot.plan.num_nodes,
        tasks_per_node=1,
        time_limit_s=pilot.plan.time_limit_s,
        exclude=(),
        argv=(request.python, "-m", "trials.fork_server", variables[PRELOAD_VARIABLE]),
        environment={**job.environment, **variables},
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
