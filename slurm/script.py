"""A job request as the batch script that Slurm is given. Pure.

Values are written as they are given: option_checks.py has let nothing pass that would end a directive, since one blank
or quote there can silently drop every directive after it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from slurm.environment import RANK_NAMES
from slurm.hostlist import compress, expand_all
from slurm.request import SETUP_NAME, JobOptions, JobRequest
from slurm.shell_quoting import command, exports
from slurm.srun_command import launch_environment, rank_command, srun_options

NEXT_RUN = "--- restart "
"""How a run begins in the job's and the ranks' logs after the job was put back into the queue; its number follows."""

RANK_LOG = "rank-%5t.log"
"""Slurm's pattern of the ranks' logs: the rank in at least five digits."""

_NOTE_RESTART = f"""\
if [ -n "${{SLURM_RESTART_COUNT:-}}" ]; then
  for log in job.log rank-*.log; do [ ! -e "$log" ] || echo "{NEXT_RUN}$SLURM_RESTART_COUNT" >> "$log"; done
fi"""

_HAS_MODULE = "type module >/dev/null 2>&1 || . /etc/profile"


def render_script(request: JobRequest, before_ranks: Sequence[str] = ()) -> str:
    """The text of `request.script`. sbatch is to be started in `request.directory`, to which its paths are relative.

    `before_ranks` are lines after the user's own preparations.
    """
    return _rendered(request, _launch_line(request), before_ranks)


def render_pilot_script(request: JobRequest) -> str:
    """The same for a job that is one process on its first node, and starts steps of its own."""
    return _rendered(request, f"exec {shlex.join(request.argv)}")


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
    """What the job's last run wrote into a log, in which the runs before a requeue stand too."""
    *_, last = re.split(rf"^{re.escape(NEXT_RUN)}\d+$", log, flags=re.MULTILINE)
    return last.lstrip("\n")


def _directives(request: JobRequest) -> list[str]:
    """In a fixed order; the user's raw ones last, since sbatch believes the last of two."""
    return [
        f"--job-name={request.name}",
        f"--nodes={request.num_nodes}",
        f"--ntasks-per-node={request.tasks_per_node}",
        f"--time={clock(request.time_limit_min)}",
        "--distribution=block",  # consecutive ranks share a node, as every layout takes for granted
        "--no-requeue",
        "--output=job.log",
        "--open-mode=append",  # an operator's requeue would otherwise wipe out the first run's words
        *_optional(request),
        *request.options.directives,
    ]


def _optional(request: JobRequest) -> list[str]:
    options = request.options
    values: dict[str, str | int | None] = {
        "account": options.account,
        "partition": options.partition,
        "qos": options.qos,
        "reservation": options.reservation,
        "constraint": options.constraint,
        "gpus-per-node": options.gpus_per_node,
        "gres": options.gres,
        "cpus-per-task": options.cpus_per_task,
        "threads-per-core": options.threads_per_core,
        "mem": options.mem,
        "exclude": compress(expand_all((*options.exclude, *request.exclude))) or None,
        "nodelist": compress(expand_all(options.nodelist)) or None,
        "network": options.network,
        "licenses": options.licenses,
        "comment": options.comment,
        "signal": options.signal,
    }
    return [*_exclusive(options.exclusive), *(f"--{key}={value}" for key, value in values.items() if value is not None)]


def _exclusive(wanted: bool | str) -> list[str]:
    if isinstance(wanted, str):
        return [f"--exclusive={wanted}"]
    return ["--exclusive"] if wanted else []


def clock(minutes: int) -> str:
    """A time limit as Slurm takes it, hh:mm:ss."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def setup_lines(options: JobOptions) -> list[str]:
    """The user's own preparations. No `set -u` or `set -e`: modules and setup files are seldom written for them.

    A module that cannot be loaded ends the job at once, with its own words in job.log.
    """
    lines = [f"module load {shlex.quote(module)} || exit" for module in options.modules]
    if lines:
        lines.insert(0, _HAS_MODULE)
    if options.setup_file is not None:
        lines.append(f". ./{SETUP_NAME}")
    return lines


def export_lines(request: JobRequest) -> list[str]:
    """The user's variables, then the request's. srun takes the CPUs of a task from a variable alone (since 22.05)."""
    cpus = request.options.cpus_per_task
    cpus_of_task = {} if cpus is None else {"SRUN_CPUS_PER_TASK": str(cpus)}
    each = (request.options.env, request.environment, launch_environment(request), cpus_of_task)
    return [line for variables in each for line in exports(variables)]


def _unset(request: JobRequest) -> list[str]:
    """Whatever a module, a setup file or a submission by hand left of another launcher's ranks."""
    names = [name for name in RANK_NAMES if name not in request.environment]
    return [f"unset {' '.join(names)}"] if names else []


def _launch_line(request: JobRequest) -> str:
    """`exec`, so that the script's exit code is srun's, and Slurm's signals reach the ranks through it."""
    words = [
        *("srun", "--export=ALL", "--kill-on-bad-exit=1"),
        *(f"--nodes={request.num_nodes}", f"--ntasks={request.num_nodes * request.tasks_per_node}"),
        *(f"--output={RANK_LOG}", "--open-mode=append"),
        *srun_options(request),
    ]
    return f"exec {command([*words, *rank_command(request)])}"
