"""A script that cron, or Slurm's own scrontab, starts again and again. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm.driver_script import place_directives
from slurm.request import JobOptions
from slurm.script import clock

LONGEST_RUN_MIN = 15
"""What scrontab gives a run: it takes seconds, or as long as a Slurm that hangs or a database that is away let it."""


def render_repeated(argv: Sequence[str], log: Path, environ: Mapping[str, str]) -> str:
    """The script: `argv` with these variables, since cron knows nothing of the user's shell, its words at the end of
    `log`."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environ.items()]
    return "\n".join(["#!/bin/sh", *exports, f"exec {shlex.join(argv)} >> {shlex.quote(str(log))} 2>&1"]) + "\n"


def crontab_line(script: Path) -> str:
    """For `crontab -e`: every minute. cron takes a bare % for the end of the line."""
    return f"* * * * * {_command(script)}".replace("%", r"\%")


def scrontab_lines(script: Path, job_name: str, options: JobOptions) -> list[str]:
    """For `scrontab -e`: every five minutes, a job of one task, with the account and the partition of `options`."""
    directives = [
        f"--job-name={job_name}",
        "--nodes=1",
        "--ntasks=1",
        f"--time={clock(LONGEST_RUN_MIN)}",
        "--output=/dev/null",
        *place_directives(options),
    ]
    return [*(f"#SCRON {directive}" for directive in directives), f"*/5 * * * * {_command(script)}"]


def _command(script: Path) -> str:
    return f"/bin/sh {shlex.quote(str(script))}"
