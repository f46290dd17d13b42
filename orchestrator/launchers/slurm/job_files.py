"""Files of a job: its script and a copy of the user's setup file before its submission, logs and outcomes after it.

Those are read as far as their file system shows them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from orchestrator.config.schema.setup_file import setup_text
from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.local.rank_groups import device_environment, program_environment
from search_spaces.errors import ExternalError, InputError
from search_spaces.layouts.settings import IMAGE, Settings
from slurm.request import SETUP_NAME, JobOptions, JobRequest
from slurm.script import last_run, render_script, restarts_in
from trials.files.folders import AttemptFolder, read_json, write_text
from trials.files.text import tail
from trials.files.tracebacks import first_cause

LOG_LINES = 40
_ALL_LINES = 2**16
"""More than the end of a log that is read has."""


def job_request(request: LaunchRequest, options: JobOptions) -> JobRequest:
    """Return the job of an attempt with the user's options."""
    spec, directory = request.spec, Path(request.folder.path).absolute()
    search, code = directory.parents[2], Path(request.code).absolute()
    settings = spec.layout.of_trial
    return JobRequest(
        name=spec.attempt_key,
        directory=directory,
        num_nodes=spec.num_nodes,
        tasks_per_node=-(-spec.num_gpus // spec.num_nodes),
        time_limit_s=request.time_limit_s,
        argv=request.argv,
        environment=program_environment(request.code) | device_environment(spec),
        options=with_launch(options, settings),
        exclude=request.exclude,
        is_first=request.is_first,
        is_repeat=request.is_repeat,
        folders=(str(search),) if code.is_relative_to(search) else (str(search), str(code)),
        prefix=settings.prefix,
    )


def with_launch(options: JobOptions, settings: Settings) -> JobOptions:
    """Return the options with the launch options and the container's image of a trial."""
    launch = replace(options.launch, srun=(*options.launch.srun, *settings.srun_options))
    image, container = settings.software.get(IMAGE), options.container
    if image is not None and container is not None:
        container = replace(container, image=image)
    return replace(options, launch=launch, container=container)


def write_job_files(job: JobRequest, render: Callable[[JobRequest], str] = render_script) -> None:
    """Write the job's script and a copy of its setup file, if any, so that its content at this time is on record.

    ExternalError where the setup file cannot be read at present; then nothing is written.
    """
    if job.options.setup_file is not None:
        try:
            text = setup_text(job.options.setup_file)
        except InputError as error:
            raise ExternalError(str(error), error.problems[0].fix) from error
        write_text(job.directory / SETUP_NAME, text)
    write_text(job.script, render(job))


# -- after the submission


def may_exist(path: Path) -> bool:
    """True if the file exists, or if its file system does not answer: then it has to be assumed."""
    try:
        return path.exists()
    except OSError:
        return True


def last_restart(folder: AttemptFolder, log: Path) -> int:
    """Return how often the job was requeued, by its ranks' files and its log: accounting does not record it."""
    counts = [0]
    for count in (folder.last_restart, lambda: restarts_in(tail(log, _ALL_LINES))):
        with suppress(OSError):
            counts.append(count())
    return max(counts)


def has_outcome(folder: AttemptFolder, restart: int) -> bool:
    """True if a complete outcome exists. The folder is listed first: network file systems refresh only then."""
    try:
        with os.scandir(folder.path) as entries:
            names = {entry.name for entry in entries}
        return folder.outcome(restart).name in names and read_json(folder.outcome(restart)) is not None
    except (OSError, ValueError):
        return False


def failure_excerpt(folder: AttemptFolder, message: str, log: str) -> str:
    """Combine Slurm's message with the root-cause traceback over all ranks, or else the end of the job's log."""
    logs = (log_tail(path, 400) for path in folder.rank_logs())
    return "\n".join(part for part in (message, first_cause(logs) or log) if part)


def log_tail(path: Path, lines: int = LOG_LINES) -> str:
    """Return the last lines of a log that are of the job's last run; "" where it cannot be read."""
    try:
        return last_run(tail(path, lines))
    except OSError:
        return ""
