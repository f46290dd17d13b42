"""The job that a driver itself runs in: one process on one node, told before its time is over. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from slurm.request import JobOptions, JobRequest
from slurm.script import clock

SIGNAL_BEFORE_END_S = 120
"""How long before the end of its time a driver is told; Slurm may do so up to a minute earlier."""

PAUSE_S = 60
"""How long after its submission a link of the chain starts at the earliest: should drivers die as soon as they start,
they follow each other a minute apart and not as fast as Slurm can."""

_SHARED = ("account", "partition", "qos", "reservation", "comment")
"""Who pays, and where."""


@dataclass(frozen=True)
class DriverJob(JobRequest):
    """One node, one task: the batch script is the driver, without srun. `after` is the job whose end it waits for."""

    after: str | None = None

    @property
    def script(self) -> Path:
        return self.directory / "driver.sh"

    @property
    def log(self) -> Path:
        return self.directory / "driver.log"


def options_of_driver(options: JobOptions) -> JobOptions:
    """Of the options of a search's trials those that a driver shares. It needs no GPU."""
    return JobOptions(**{name: getattr(options, name) for name in _SHARED})


def place_directives(options: JobOptions) -> list[str]:
    """What `options_of_driver` leaves of a search's options."""
    return [f"--{name}={value}" for name in _SHARED if (value := getattr(options, name)) is not None]


def render_driver_script(job: DriverJob) -> str:
    """The text of `job.script`; sbatch is to be started in `job.directory`.

    The driver takes the place of the script's shell (`exec`), so that `B:` sends the signal to it and to nobody else.
    """
    directives = "\n".join(f"#SBATCH {directive}" for directive in _directives(job))
    return f"#!/bin/bash\n{directives}\n\nexec {shlex.join(job.argv)}\n"


def _directives(job: DriverJob) -> list[str]:
    waits = [] if job.after is None else [f"--dependency=afterany:{job.after}", f"--begin=now+{PAUSE_S}"]
    return [
        f"--job-name={job.name}",
        "--nodes=1",
        "--ntasks=1",
        f"--time={clock(job.time_limit_min)}",
        f"--signal=B:USR1@{SIGNAL_BEFORE_END_S}",
        "--no-requeue",  # the next link of the chain takes over
        f"--output={job.log.name}",
        "--open-mode=append",
        *place_directives(job.options),
        *waits,
    ]
