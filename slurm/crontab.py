"""Scripts and lines for cron and for Slurm's scrontab. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm.driver_script import account_directives
from slurm.request import JobOptions
from slurm.script import clock

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
