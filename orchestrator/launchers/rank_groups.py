"""From a LaunchRequest to each node's plan, ranks.json, and from the nodes' reports to an Ending."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.processes import Graces, GroupPlan, GroupReport, RankExit, RankProcess
from trials.classify import Ending, Life
from trials.folder import AttemptFolder, read_json, write_json
from trials.trial import FailureReason, require_schema

RANKS_SCHEMA = "parlay.ranks/1"
_EXCERPT_BYTES = 4096
_EXCERPT_LINES = 20


def node_plans(
    request: LaunchRequest, environment: Mapping[str, str] | None = None, graces: Graces | None = None
) -> list[GroupPlan]:
    """What each node of the attempt runs, in rank order; `environment` is added for the launcher's own needs."""
    spec = request.spec
    folder = AttemptFolder(request.folder.path.absolute())  # the ranks start in it
    return [
        GroupPlan(
            argv=(request.python, "-m", "trials.train", str(folder.spec)),
            directory=str(folder.path),
            logs=tuple(str(folder.rank_log(rank)) for rank in ranks),
            first_rank=ranks.start,
            world_size=spec.num_gpus,
            time_limit_s=request.time_limit_s,
            environment=_trial_environment(request) | dict(environment or {}) | dict(request.environment),
            graces=graces or Graces(),
        )
        for ranks in _ranks_of_nodes(spec.num_gpus, spec.gpus_per_node)
    ]


def _ranks_of_nodes(num_gpus: int, gpus_per_node: int) -> list[range]:
    return [range(first, min(first + gpus_per_node, num_gpus)) for first in range(0, num_gpus, gpus_per_node)]


def _trial_environment(request: LaunchRequest) -> dict[str, str]:
    # On CPU a rank is one thread, and a GPU that is there all the same is not its business.
    on_cpu = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} if request.spec.accelerator == "cpu" else {}
    return {"PYTHONPATH": str(Path(request.code).absolute()), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", **on_cpu}


def write_ranks(request: LaunchRequest, job_id: str, ranks: Sequence[RankProcess]) -> None:
    """Swap in ranks.json. Written without ranks before the first is started: its presence says "accepted"."""
    data = {"schema": RANKS_SCHEMA, "attempt_key": request.spec.attempt_key, "job_id": job_id}
    write_json(request.folder.ranks, data | {"ranks": [asdict(rank) for rank in ranks]})


def read_ranks(folder: AttemptFolder) -> tuple[str, tuple[RankProcess, ...]] | None:
    """(job id, ranks) of an attempt that was accepted; None for one that never was. ValueError for another schema."""
    data = read_json(folder.ranks)
    if data is None:
        return None
    require_schema(data, RANKS_SCHEMA)
    return data["job_id"], tuple(RankProcess(**rank) for rank in data["ranks"])


def ending_from(reports: Sequence[GroupReport], folder: AttemptFolder, cancelled: bool) -> Ending:
    """What the reports of all nodes together say; `cancelled` when the launcher was asked to end the attempt."""
    exits = [rank_exit for report in reports for rank_exit in report.exits]
    reason, detail = _cause(reports, exits, cancelled)
    culprit = next((e for e in exits if e.code != 0 and not e.killed_by_us), None)
    if reason is None and culprit is not None:
        detail = _with_log(f"rank {culprit.rank} {_words(culprit)}", folder.rank_log(culprit.rank))
    starts = [report.started_at for report in reports if report.started_at is not None]
    return Ending(
        life=Life.ENDED,
        started=bool(starts),
        failed=any(e.code != 0 for e in exits) or any(report.error for report in reports),
        reason=reason,
        detail=detail,
        nodes=tuple(report.host for report in reports),
        started_at=min(starts, default=None),
        ended_at=max((report.ended_at for report in reports), default=None),
    )


def interrupted(left: Sequence[RankProcess]) -> Ending:
    """The ending of an earlier driver's attempt that could not outlive it; unknown while a rank will not die."""
    if left:
        stuck = ", ".join(f"pid {rank.pid} on {rank.host}" for rank in left)
        return Ending(Life.UNKNOWN, started=True, detail=f"of an earlier driver and not to be killed: {stuck}")
    return Ending(Life.ENDED, True, True, FailureReason.INTERRUPTED, "the ranks ended with their driver")


def _cause(
    reports: Sequence[GroupReport], exits: Sequence[RankExit], cancelled: bool
) -> tuple[FailureReason | None, str | None]:
    """What the launcher itself knows; (None, None) leaves it to the trial's own words."""
    if cancelled:
        return FailureReason.CANCELLED_BY_SEARCH, "cancelled"
    for report in reports:
        if report.error is not None:
            return FailureReason.LAUNCH_FAILURE, report.error
    for rank_exit in exits:
        if rank_exit.code == -signal.SIGKILL and not rank_exit.killed_by_us:
            return _killed_by_another(rank_exit, reports)
    if any(report.timed_out for report in reports):
        return FailureReason.TIME_LIMIT, "the launcher's time limit passed"
    return None, None


def _killed_by_another(killed: RankExit, reports: Sequence[GroupReport]) -> tuple[FailureReason, str]:
    report = next(report for report in reports if killed in report.exits)
    what = f"rank {killed.rank} was killed by signal 9 on {report.host}"
    if report.oom_kills > 0:
        return FailureReason.HOST_OOM, f"{what}, and the kernel killed for memory there meanwhile"
    return FailureReason.NODE_FAILURE, what


def _words(rank_exit: RankExit) -> str:
    if rank_exit.code is None:
        return "ended unseen"
    if rank_exit.code < 0:
        return f"was killed by signal {-rank_exit.code}"
    return f"exited with code {rank_exit.code}"


def _with_log(text: str, log: Path) -> str:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _EXCERPT_BYTES))
            tail = stream.read().decode(errors="replace")
    except OSError:
        return text
    return "\n".join([text, *tail.splitlines()[-_EXCERPT_LINES:]])
