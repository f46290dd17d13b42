"""Whether the user's Slurm would take a search's jobs at all, asked before anything is written down."""

from __future__ import annotations

import re
from collections.abc import Iterable

from orchestrator.launchers.factory import job_options
from orchestrator.search.attempts import LAUNCHER_GRACE_S
from orchestrator.search_file import SearchSpec, located
from search_spaces.errors import InputError, OutsideRefused, Problem
from search_spaces.space import SearchSpace
from slurm.client import SlurmClient
from slurm.interface import Slurm, SlurmUnreachable
from slurm.request import JobRequest

_KEYS = (
    (
        r"requested time limit|time limit specification|PartitionTimeLimit|MaxWall",
        "measure.time_limit",
        "lower it, or name a partition or QOS that allows more",
    ),
    (r"invalid account", "launcher.slurm.account", "name one of your accounts, as sacctmgr shows them"),
    (r"partition", "launcher.slurm.partition", "name a partition that sinfo shows and that you may use"),
    (r"qos", "launcher.slurm.qos", "name a QOS that your account has, as sacctmgr shows them"),
    (r"reservation", "launcher.slurm.reservation", "name one that scontrol show reservation shows"),
    (r"feature", "launcher.slurm.constraint", "name features that sinfo --format=%f shows"),
    (r"generic resource|\bgres\b", "launcher.slurm.gres", "write it as the site does: sinfo --format=%G"),
    (r"license", "launcher.slurm.licenses", "name licenses that scontrol show licenses shows"),
    (r"memory", "launcher.slurm.mem", "ask for less, or for 0 to get all that a node has"),
    (r"node name", "launcher.slurm", "look at nodelist and exclude: sinfo --Node shows the nodes' names"),
)
"""What Slurm's words are about -> the key of the search file, and what to do; the first that fits."""

_ANY_KEY = ("launcher.slurm", "ask for what sinfo shows: nodes, CPUs, GPUs and memory of a partition that you may use")


def require_site(spec: SearchSpec, space: SearchSpace, slurm: Slurm | None = None) -> None:
    """InputError with Slurm's own words where it would never run the search's smallest or largest jobs.

    OutsideRefused where no Slurm answers: a new search begins only where it can. A site's limits may lie between two
    sizes, so both ends are asked for; nothing is submitted.
    """
    if spec.launcher.kind != "slurm":
        return
    slurm = SlurmClient() if slurm is None else slurm
    try:
        problems = [problem for request in _requests(spec, space) for problem in _problems(slurm, request, spec)]
    except SlurmUnreachable as error:
        raise OutsideRefused(f"no Slurm: {error}") from error
    if problems:
        raise located(InputError(*problems), spec)


def _requests(spec: SearchSpec, space: SearchSpace) -> Iterable[JobRequest]:
    """A job of the smallest layouts, and one of the largest."""
    sizes = {layout.num_nodes: layout for layout in space.feasible}
    for num_nodes in sorted({min(sizes), max(sizes)}):
        yield JobRequest(
            name=f"{spec.name}.check",
            directory=spec.work_dir,
            num_nodes=num_nodes,
            tasks_per_node=-(-sizes[num_nodes].num_gpus // num_nodes),
            time_limit_s=spec.measure.time_limit_s + LAUNCHER_GRACE_S,
            argv=("true",),
            options=job_options(spec.launcher, spec.cluster),
        )


def _problems(slurm: Slurm, request: JobRequest, spec: SearchSpec) -> Iterable[Problem]:
    words = slurm.test(request)
    if words is None:
        return
    key, fix = next(((k, f) for pattern, k, f in _KEYS if re.search(pattern, words, re.IGNORECASE)), _ANY_KEY)
    yield Problem(
        "site_refused",
        f"Slurm refuses a job of {request.num_nodes} nodes x {request.tasks_per_node} ranks"
        f" for {request.time_limit_min} minutes: {words}",
        rule="every job of a search must be one that this cluster would run",
        fix=fix,
        key=key,
        value=_value(spec, key),
    )


def _value(spec: SearchSpec, key: str) -> object:
    if key == "measure.time_limit":
        return spec.measure.time_limit_s
    return getattr(spec.launcher.slurm, key.rpartition(".")[2], None)
