"""Scripts that run the driver: a job, signalled before its time is over, and short runs by cron or scrontab. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm.request import JobOptions, JobRequest
from slurm.script import clock

SIGNAL_BEFORE_END_S = 120
"""Time before the job's limit at which the driver is signalled; Slurm may do so up to a minute earlier."""

PAUSE_S = 60
"""Earliest start of a driver job after its submission: drivers that die at once follow each other a minute apart."""

DRIVER_SUFFIX = ".driver"
"""End of the name of every job that drives a search."""

_SHARED = ("account", "partition", "qos", "reservation", "comment")
"""Options about accounting and placement, which the driver's job shares with the trials."""


@dataclass(frozen=True)
class DriverJob(JobRequest):
    """One node, one task: the batch script runs the driver without srun. `after` is the job that it depends on."""

    after: str | None = None

    @property
    def script(self) -> Path:
        return self.directory / "driver.sh"

    @property
    def log(self) -> Path:
        return self.directory / "driver.log"


def driver_options(options: JobOptions) -> JobOptions:
    """Return those options of a search's trials that its driver's job shares. It needs no GPU."""
    return JobOptions(**{name: getattr(options, name) for name in (*_SHARED, "dependency")})


def account_directives(options: JobOptions) -> list[str]:
    """Return sbatch directives for the options that `driver_options` keeps."""
    return [f"--{name}={value}" for name in _SHARED if (value := getattr(options, name)) is not None]


def render_driver_script(job: DriverJob) -> str:
    """Render the text of `job.script`, for sbatch in `job.directory`.

    The driver replaces the script's shell (`exec`), so that `B:` sends the signal to it alone.
    """
    directives = "\n".join(f"#SBATCH {directive}" for directive in _directives(job))
    return f"#!/bin/bash\n{directives}\n\nexec {shlex.join(job.argv)}\n"


def _first_waits(job: DriverJob) -> list[str]:
    """Return the user's dependency of the search's first job. Slurm cancels a job whose dependency can never be met."""
    if not job.is_first or job.options.dependency is None:
        return []
    return [f"--dependency={job.options.dependency}", "--kill-on-invalid-dep=yes"]


def _directives(job: DriverJob) -> list[str]:
    waits = _first_waits(job) if job.after is None else [f"--dependency=afterany:{job.after}", f"--begin=now+{PAUSE_S}"]
    return [
        f"--job-name={job.name}",
        "--nodes=1",
        "--ntasks=1",
        f"--time={clock(job.time_limit_min)}",
        f"--signal=B:USR1@{SIGNAL_BEFORE_END_S}",
        "--no-requeue",  # the next link of the chain takes over
        f"--output={job.log.name}",
        "--open-mode=append",
        *account_directives(job.options),
        *waits,
    ]


# -- repeated runs

LONGEST_RUN_MIN = 15
"""Time limit of a scrontab job: a run takes seconds, longer only where Slurm or the database hangs."""


def render_repeated(argv: Sequence[str], log: Path, environ: Mapping[str, str]) -> str:
    """Render a script that sets these variables, runs `argv` and appends its output to `log`.

    cron does not know the environment of the user's shell.
    """
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environ.items()]
    return "\n".join(["#!/bin/sh", *exports, f"exec {shlex.join(argv)} >> {shlex.quote(str(log))} 2>&1"]) + "\n"


def crontab_line(script: Path) -> str:
    """Return the line for `crontab -e`: every minute. cron reads a bare % as a newline."""
    return f"* * * * * {_command(script)}".replace("%", r"\%")


def scrontab_lines(script: Path, job_name: str, options: JobOptions) -> list[str]:
    """Return the lines for `scrontab -e`: every five minutes, one task, account and partition from `options`."""
    directives = [
        f"--job-name={job_name}",
        "--nodes=1",
        "--ntasks=1",
        f"--time={clock(LONGEST_RUN_MIN)}",
        "--output=/dev/null",
        *account_directives(options),
    ]
    return [*(f"#SCRON {directive}" for directive in directives), f"*/5 * * * * {_command(script)}"]


def _command(script: Path) -> str:
    return f"/bin/sh {shlex.quote(str(script))}"
