"""Batch scripts of job requests. Pure.

Values are written without escaping: option_checks.py refuses everything that would end a directive, since one blank or
quote there can silently drop every directive after it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import fields

from slurm.environment import RANK_NAMES
from slurm.hostlist import compress, expand_all
from slurm.request import SETUP_NAME, JobOptions, JobRequest, Placement, limit_min
from slurm.srun_command import (
    command,
    container_options,
    exported,
    gpu_options,
    launch_environment,
    rank_command,
    srun_options,
)

NEXT_RUN = "--- restart "
"""First line of a run in the job's and the ranks' logs after a requeue, followed by its number."""

_NEXT_RUN_LINE = re.compile(rf"^{re.escape(NEXT_RUN)}(\d{{1,6}})$", re.MULTILINE)

RANK_LOG = "rank-%5t.log"
"""Slurm's file name pattern of the ranks' logs: the rank with at least five digits."""

_NOTE_RESTART = f"""\
if [ -n "${{SLURM_RESTART_COUNT:-}}" ]; then
  for log in job.log rank-*.log; do [ ! -e "$log" ] || echo "{NEXT_RUN}$SLURM_RESTART_COUNT" >> "$log"; done
fi"""

_ALL_CPUS = "unset SRUN_CPUS_PER_TASK SLURM_CPUS_PER_TASK"

_HAS_MODULE = "type module >/dev/null 2>&1 || . /etc/profile"


def render_script(request: JobRequest, before_ranks: Sequence[str] = ()) -> str:
    """Render the text of `request.script`, for sbatch in `request.directory`, to which its paths are relative.

    `before_ranks` are lines after the user's own setup.
    """
    return _rendered(request, _launch_line(request), before_ranks)


def render_pilot_script(request: JobRequest) -> str:
    """Render the script of a job that is one process on its first node and starts steps itself."""
    return _rendered(request, f"exec {shlex.join(request.argv)}")


def render_fork_server_script(request: JobRequest) -> str:
    """Render the script of a step with one process on each node, beside the steps of ranks and with all devices.

    Its processes are started as ranks are, in the same container, and end independently of each other. They have all
    CPUs of the job: with a number of CPUs per task they would have those of one rank, and Slurm confines what they fork
    to theirs.
    """
    srun = [
        *("srun", "--export=ALL", "--overlap", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"),
        *("--mpi=none", "--cpu-bind=none", "--unbuffered", f"--job-name={request.name}"),
        *(f"--nodes={request.num_nodes}", f"--ntasks={request.num_nodes}", "--ntasks-per-node=1"),
        *gpu_options(request.options),
        *container_options(request),
    ]
    return _rendered(request, f"{_ALL_CPUS}\nexec {command([*srun, *rank_command(request)])}")


def _rendered(request: JobRequest, launch_line: str, before_ranks: Sequence[str] = ()) -> str:
    sections = (
        ["#!/bin/bash", *(f"#SBATCH {directive}" for directive in _directives(request))],
        [_NOTE_RESTART],
        setup_lines(request.options),
        list(before_ranks),
        [*export_lines(request), *_unset(request)],
        [launch_line],
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def last_run(log: str) -> str:
    """Return the part of a log that the job's last run wrote, without the runs before a requeue."""
    return _NEXT_RUN_LINE.split(log)[-1].lstrip("\n")


def restarts_in(log: str) -> int:
    """Return how often the job was requeued, by the lines of its log that begin a run."""
    return max(map(int, _NEXT_RUN_LINE.findall(log)), default=0)


def _directives(request: JobRequest) -> list[str]:
    """Return the directives in a fixed order; the user's raw ones last, since sbatch uses the last of two."""
    return [
        f"--job-name={request.name}",
        f"--nodes={request.num_nodes}",
        f"--ntasks-per-node={request.tasks_per_node}",
        f"--time={clock(request.time_limit_min)}",
        "--distribution=block",  # consecutive ranks share a node, as every layout assumes
        "--no-requeue",
        "--output=job.log",
        "--open-mode=append",  # an operator's requeue would otherwise truncate the log
        *_optional(request),
        *request.options.directives,
    ]


def _optional(request: JobRequest) -> list[str]:
    options = request.options
    values = {f.name: getattr(options, f.name) for f in fields(options) if f.metadata.get("is_directive")}
    if not request.is_first:
        del values["dependency"]
    for name, hosts in (("exclude", (*options.exclude, *request.exclude)), ("nodelist", options.nodelist)):
        values[name] = compress(expand_all(hosts)) or None
    return [
        *_exclusive(options.exclusive),
        *_placement(request),
        *(f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value is not None),
    ]


def _placement(request: JobRequest) -> list[str]:
    """Return the directives about where the nodes lie, of a job with several."""
    options, wanted = request.options, request.placement
    if wanted is Placement.ONE_BLOCK:
        return [f"--segment={request.num_nodes}"]
    if wanted is Placement.ONE_SWITCH:
        wait = "" if options.switch_wait_s is None else f"@{limit_min(options.switch_wait_s)}"
        return [f"--switches=1{wait}", *_segment(request)]
    return [*(["--contiguous"] if wanted is Placement.CONTIGUOUS else []), *_segment(request)]


def _segment(request: JobRequest) -> list[str]:
    """Return the directive for the largest equal parts of the job that fit: Slurm takes divisors of its nodes alone."""
    most = min(request.options.segment or 1, request.num_nodes)
    size = max(part for part in range(1, most + 1) if request.num_nodes % part == 0)
    return [f"--segment={size}"] if size > 1 else []


def _exclusive(wanted: bool | str) -> list[str]:
    if isinstance(wanted, str):
        return [f"--exclusive={wanted}"]
    return ["--exclusive"] if wanted else []


def clock(minutes: int) -> str:
    """Format a time limit as hh:mm:ss, as Slurm takes it."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def setup_lines(options: JobOptions) -> list[str]:
    """Return the user's setup. No `set -u` or `set -e`: modules and setup files are seldom written for them.

    A module that cannot be loaded ends the job at once, with its error in job.log.
    """
    lines = [f"module load {shlex.quote(module)} || exit" for module in options.modules]
    if lines:
        lines.insert(0, _HAS_MODULE)
    if options.setup_file is not None:
        lines.append(f". ./{SETUP_NAME}")
    return lines


def export_lines(request: JobRequest) -> list[str]:
    """Export the user's variables, then the request's. srun takes --cpus-per-task only from one (since 22.05)."""
    cpus = request.options.cpus_per_task
    cpus_of_task = {} if cpus is None else {"SRUN_CPUS_PER_TASK": str(cpus)}
    each = (request.options.env, request.environment, launch_environment(request), cpus_of_task)
    return [line for variables in each for line in exported(variables)]


def _unset(request: JobRequest) -> list[str]:
    """Unset rank variables that a module, a setup file or a submission by hand left behind."""
    names = [name for name in RANK_NAMES if name not in request.environment]
    return [f"unset {' '.join(names)}"] if names else []


def _launch_line(request: JobRequest) -> str:
    """Start srun with `exec`, so that its exit code is the script's and it receives Slurm's signals."""
    srun = [
        *("srun", "--export=ALL", "--kill-on-bad-exit=1"),
        *(f"--nodes={request.num_nodes}", f"--ntasks={request.num_nodes * request.tasks_per_node}"),
        *(f"--output={RANK_LOG}", "--open-mode=append"),
        *srun_options(request),
    ]
    return f"exec {command([*srun, *rank_command(request)])}"
