"""Check that the cluster's Slurm would accept a search's jobs, before anything is written."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from dataclasses import replace

from orchestrator.config.fork_servers import launcher_with_servers
from orchestrator.config.site import site_remarks
from orchestrator.config.spec import SearchSpec, with_locations
from orchestrator.launchers.factory import job_options
from orchestrator.launchers.slurm_pilot.sizing import ROOM_S, STARTUP_S, min_pilot_s
from orchestrator.search.node_hours import LAUNCHER_GRACE_S
from search_spaces.errors import ExternalError, InputError, Problem
from search_spaces.search_space import SearchSpace
from slurm.client import SlurmClient
from slurm.interface import Slurm, SlurmUnreachable, Submission, SubmitStatus
from slurm.option_checks import OptionProblem, option_warnings
from slurm.request import JobRequest, Placement
from trials.files.text import plural

_log = logging.getLogger(__name__)


_KEYS = (
    (
        r"requested time limit|time limit specification|PartitionTimeLimit|MaxWall",
        "measure.time_limit",
        "lower it, or name a partition or QOS that allows more",
    ),
    (r"invalid account", "launcher.slurm.account", "name one of your accounts, as sacctmgr shows them"),
    (
        r"PartitionNodeLimit|Node count specification",
        "constraints.max_nodes",
        "allow fewer or more, as the partition does, or name another partition",
    ),
    (r"partition", "launcher.slurm.partition", "name a partition that sinfo shows and that you may use"),
    (r"qos", "launcher.slurm.qos", "name a QOS that your account has, as sacctmgr shows them"),
    (r"dependency", "launcher.slurm.dependency", "name jobs that squeue shows, as sbatch --dependency takes them"),
    (r"reservation", "launcher.slurm.reservation", "name one that scontrol show reservation shows"),
    (r"feature", "launcher.slurm.constraint", "name features that sinfo --format=%f shows"),
    (r"generic resource|\bgres\b", "launcher.slurm.gres", "write it as the site does: sinfo --format=%G"),
    (r"license", "launcher.slurm.licenses", "name licenses that scontrol show licenses shows"),
    (r"memory", "launcher.slurm.mem", "ask for less, or for 0 to get all that a node has"),
    (r"segment", "launcher.slurm.segment", "set it to 0 where the site has no topology/block: jobs then lie anywhere"),
    (r"node name", "launcher.slurm", "look at nodelist and exclude: sinfo --Node shows the nodes' names"),
)
"""Pattern of Slurm's message -> key of the search file it is about, and the fix; the first match counts."""

_ANY_KEY = ("launcher.slurm", "request nodes, CPUs, GPUs and memory that sinfo shows for a partition that you may use")

_REPEAT_KEY = (
    "launcher.slurm.repeat_placement",
    "set it to any, or to a placement that the site has: scontrol show topology lists switches or blocks",
)


_WITHOUT_COMMANDS = (
    "run it where Slurm's commands are installed, for example on a login node; or start a Slurm on this machine with"
    " parlay slurm-sandbox start; or use --launcher local"
)
_WITHOUT_CONFIGURATION = (
    "set SLURM_CONF to your cluster's slurm.conf; for a sandbox parlay slurm-sandbox start prints what to set"
)
_WITHOUT_ANSWER = (
    "try again when scontrol ping answers; check that SLURM_CONF names the right cluster; a stopped sandbox is"
    " restarted with parlay slurm-sandbox start"
)


def require_site(spec: SearchSpec, space: SearchSpace, slurm: Slurm | None = None) -> None:
    """InputError with Slurm's message if it would never run the search's smallest or largest jobs.

    What those jobs would wait for besides other jobs is logged. ExternalError if Slurm does not answer. Both sizes
    are tested, since a limit may lie between them; nothing is submitted.
    """
    if not spec.launcher.uses_slurm:
        return
    slurm = SlurmClient() if slurm is None else slurm
    try:
        tested = [tested_job(request, slurm) for request in smallest_and_largest(spec, space)]
    except SlurmUnreachable as error:
        raise slurm_unreachable_error(error) from error
    problems = [refusal_problem(request, s.message, spec) for request, s in tested if s.status is SubmitStatus.REFUSED]
    if problems:
        raise with_locations(InputError(*problems), spec)
    for warning in option_warnings(tested[-1][0].options):
        _log.warning(f"{describe_option(warning)}: {warning.fix}")
    jobs = 1 if spec.launcher.kind == "slurm_pilot" else spec.search.parallel_trials
    for message in site_remarks(spec.launcher.slurm, tested[-1][0].num_nodes, tested[-1][0].time_limit_s, jobs):
        _log.warning(message)
    for request, submission in tested:
        if submission.status is SubmitStatus.BUSY:
            _log.warning(f"{describe_request(request)} would have to wait: {submission.message}")


def tested_job(request: JobRequest, slurm: Slurm) -> tuple[JobRequest, Submission]:
    """The job and Slurm's answer to it; those of a repeat of this size if Slurm refuses only its placement."""
    submission, repeat = slurm.test(request), replace(request, is_repeat=True)
    if submission.status is not SubmitStatus.REFUSED and repeat.placement is not Placement.ANY:
        of_repeat = slurm.test(repeat)
        if of_repeat.status is SubmitStatus.REFUSED:
            return repeat, of_repeat
    return request, submission


def describe_option(warning: OptionProblem) -> str:
    """Describe an option that is accepted with a warning."""
    return f"launcher.slurm.{warning.key} {warning.rule}"


def slurm_unreachable_error(error: SlurmUnreachable) -> ExternalError:
    """Error for a Slurm that does not answer, with SLURM_CONF and the fix."""
    message, configuration = str(error), os.environ.get("SLURM_CONF")
    fix = _WITHOUT_ANSWER
    if "not on PATH" in message:
        fix = _WITHOUT_COMMANDS
    elif "configuration source" in message:
        fix = _WITHOUT_CONFIGURATION
    asked = "SLURM_CONF is not set" if configuration is None else f"SLURM_CONF is {configuration}"
    return ExternalError(f"Slurm is not available: {message} ({asked})", fix)


def smallest_and_largest(spec: SearchSpec, space: SearchSpace) -> Iterable[JobRequest]:
    """Yield a job of the smallest and one of the largest layouts; for pilots the shortest one that fits a trial."""
    nodes = space.layouts["num_nodes"]
    tasks = dict(zip(nodes.tolist(), (-(-space.layouts.num_gpus // nodes)).tolist(), strict=True))
    limit_s, gpus_per_node = spec.measure.time_limit_s + LAUNCHER_GRACE_S, spec.cluster.gpus_per_node
    if spec.launcher.kind == "slurm_pilot":
        yield _job_to_test(spec, spec.nodes_per_pilot, gpus_per_node, min_pilot_s(limit_s))
        return
    for num_nodes in sorted({min(tasks), max(tasks)}):
        yield _job_to_test(spec, num_nodes, tasks[num_nodes], limit_s)


def _job_to_test(spec: SearchSpec, num_nodes: int, tasks_per_node: int, limit_s: float) -> JobRequest:
    return JobRequest(
        name=f"{spec.name}.check",
        directory=spec.work_dir,
        num_nodes=num_nodes,
        tasks_per_node=tasks_per_node,
        time_limit_s=limit_s,
        argv=("true",),
        options=job_options(launcher_with_servers(spec), spec.cluster),
        is_first=True,
    )


def refusal_problem(request: JobRequest, message: str, spec: SearchSpec) -> Problem:
    """Problem with Slurm's message about this job, the key of the search file that it is about, and the fix."""
    key, fix = next(((k, f) for pattern, k, f in _KEYS if re.search(pattern, message, re.IGNORECASE)), _ANY_KEY)
    if request.is_repeat:
        key, fix = _REPEAT_KEY
    rule = "the cluster must accept every job of the search"
    if spec.launcher.has_pilots and key == "measure.time_limit":
        rule = f"{rule}; {describe_shortest_pilot(spec.measure.time_limit_s)}"
        fix = f"{fix}; or launcher.kind slurm: each job is as long as one trial"
    return Problem(
        "submission_rejected",
        f"Slurm refuses {describe_request(request)}: {message}",
        rule=rule,
        fix=fix,
        key=key,
        value=_value(spec, key),
    )


def describe_shortest_pilot(time_limit_s: float) -> str:
    """Describe the parts of the shortest pilot's time limit, for trials of this limit."""
    parts = (
        f"measure.time_limit {time_limit_s:g} s + {LAUNCHER_GRACE_S:g}",
        f"{STARTUP_S:g} until its agent serves at the latest",
        f"{ROOM_S:g} for the trial's end",
    )
    return f"the shortest pilot takes {', '.join(parts)}, in whole minutes"


def describe_request(request: JobRequest) -> str:
    """Describe a job's size and time limit."""
    size = f"{plural(request.num_nodes, 'node')} x {plural(request.tasks_per_node, 'rank')}"
    what = "a repeat's job" if request.is_repeat else "a job"
    return f"{what} of {size} for {plural(request.time_limit_min, 'minute')}"


def _value(spec: SearchSpec, key: str) -> object:
    if key == "measure.time_limit":
        return spec.measure.time_limit_s
    if key == "constraints.max_nodes":
        return spec.constraints.max_nodes
    return getattr(spec.launcher.slurm, key.rpartition(".")[2], None)
