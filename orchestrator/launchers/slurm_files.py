"""What lies in a folder before its job is submitted: the script, and a copy of the user's setup file."""

from __future__ import annotations

from pathlib import Path

from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.rank_groups import device_environment, program_environment
from search_spaces.errors import OutsideRefused
from slurm.request import SETUP_NAME, JobOptions, JobRequest
from slurm.script import render_script
from trials.folder import write_text

MAX_SETUP_BYTES = 2**20


def job_request(request: LaunchRequest, options: JobOptions) -> JobRequest:
    """The job of an attempt, with these options of the user's."""
    spec, directory = request.spec, Path(request.folder.path).absolute()
    search, code = directory.parents[2], Path(request.code).absolute()
    return JobRequest(
        name=spec.attempt_key,
        directory=directory,
        num_nodes=spec.num_nodes,
        tasks_per_node=-(-spec.num_gpus // spec.num_nodes),
        time_limit_s=request.time_limit_s,
        argv=request.argv,
        environment=program_environment(request.code) | device_environment(spec),
        options=options,
        exclude=request.exclude,
        folders=(str(search),) if code.is_relative_to(search) else (str(search), str(code)),
    )


def write_job_files(job: JobRequest) -> None:
    """Write the job's script, and beside it a copy of what it sources: what ran is on record, whatever becomes of that.

    OutsideRefused where the setup file cannot be read just now.
    """
    if job.options.setup_file is not None:
        write_text(job.directory / SETUP_NAME, setup_text(job.options.setup_file))
    write_text(job.script, render_script(job))


def setup_text(path: str) -> str:
    """What is in the user's setup file; OutsideRefused where this machine cannot read it, or it is none."""
    fix = "put it back; it lies where this machine and the compute nodes see it"
    try:
        with open(path, "rb") as stream:
            raw = stream.read(MAX_SETUP_BYTES + 1)
        text = raw.decode()
    except OSError as error:
        raise OutsideRefused(f"launcher.slurm.setup_file {path}: {error.strerror or error}", fix) from error
    except UnicodeDecodeError as error:
        raise OutsideRefused(f"launcher.slurm.setup_file {path} is no text", "name a shell file") from error
    if len(raw) > MAX_SETUP_BYTES:
        raise OutsideRefused(
            f"launcher.slurm.setup_file {path} has more than {MAX_SETUP_BYTES} bytes", "source the rest from it"
        )
    return text
