"""Node plans of a launch request, the file ranks.json, and the launch status from the nodes' reports."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.launchers.base import LaunchRequest, trial_program
from orchestrator.launchers.local.processes import (
    GracePeriods,
    GroupPlan,
    GroupReport,
    RankExit,
    RankProcess,
    end_surviving_ranks,
    surviving_ranks,
)
from trials.attempt_result import LaunchStatus, Liveness
from trials.files.folders import AttemptFolder, read_as, write_json
from trials.files.text import tail
from trials.fork_server.equality import PRELOAD_VARIABLE, PROGRAM
from trials.ranks.program import FILES_FAILED
from trials.trainers.registry import preload_of
from trials.trial import FailureReason, TrialSpec

RANKS_SCHEMA = "parlay.ranks/1"
_EXCERPT_LINES = 20


@dataclass(frozen=True)
class AcceptedLaunch:
    """Content of ranks.json: the attempt was accepted under this job id, these ranks were started."""

    attempt_key: str
    job_id: str
    ranks: tuple[RankProcess, ...] = ()


@dataclass(frozen=True)
class OrphanedAttempt:
    """An accepted attempt of an earlier driver, which it could not outlive."""

    request: LaunchRequest
    accepted: AcceptedLaunch

    def status(self) -> LaunchStatus:
        left = surviving_ranks(self.accepted.ranks)
        started_at = min((rank.started_at for rank in self.accepted.ranks), default=None)
        return unkillable_status(left) if left else interrupted_status(self.request.folder, started_at)


def node_plans(
    request: LaunchRequest, environment: Mapping[str, str] | None = None, grace_periods: GracePeriods | None = None
) -> list[GroupPlan]:
    """Return the plan of each node of the attempt, in rank order; `environment` is added for the launcher's needs."""
    spec = request.spec
    folder = AttemptFolder(request.folder.path.absolute())  # the ranks start in it
    return [
        GroupPlan(
            argv=request.argv,
            directory=str(folder.path),
            logs=tuple(str(folder.rank_log(rank)) for rank in ranks),
            first_rank=ranks.start,
            world_size=spec.num_gpus,
            time_limit_s=request.time_limit_s,
            environment={
                **program_environment(request.code),
                **device_environment(request.spec),
                **preload_environment(request),
                **(environment or {}),
            },
            grace_periods=grace_periods or GracePeriods(),
            settings=spec.layout.of_trial.env,
        )
        for ranks in _ranks_of_nodes(spec.num_gpus, spec.gpus_per_node)
    ]


def _ranks_of_nodes(num_gpus: int, gpus_per_node: int) -> list[range]:
    return [range(first, min(first + gpus_per_node, num_gpus)) for first in range(0, num_gpus, gpus_per_node)]


def program_environment(code: str) -> dict[str, str]:
    """Return variables that make the trial program import only the search's own code."""
    return {"PYTHONPATH": str(Path(code).absolute()), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}


def device_environment(spec: TrialSpec) -> dict[str, str]:
    """Return variables about the node's devices, which are the same for all launchers."""
    # On CPU a rank is one thread and must not use a GPU of the node.
    return {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} if spec.accelerator == "cpu" else {}


def preload_environment(request: LaunchRequest) -> dict[str, str]:
    """Return the variable that names what may be imported before the ranks are forked; none for a plain start."""
    if request.spec.measure.warm_start is False or trial_program(request.spec) != PROGRAM:
        return {}
    if counts_own_cores(request.spec):  # when torch is imported, before a forked rank has them
        return {}
    preload = preload_of(request.spec)
    return {} if preload is None else {PRELOAD_VARIABLE: preload}


def counts_own_cores(spec: TrialSpec) -> bool:
    """Return True if the ranks have as many threads as cores that the launch line gives them."""
    settings = spec.layout.of_trial
    threads = device_environment(spec) | settings.given_env
    return settings.launch.get("cpu_bind", "none") != "none" and "OMP_NUM_THREADS" not in threads


def write_ranks(request: LaunchRequest, job_id: str, ranks: Sequence[RankProcess]) -> None:
    """Replace ranks.json. It is first written without ranks, before any is started: its presence means "accepted"."""
    accepted = AcceptedLaunch(request.spec.attempt_key, job_id, tuple(ranks))
    write_json(request.folder.ranks, {"schema": RANKS_SCHEMA, **asdict(accepted)})


def read_ranks(folder: AttemptFolder) -> AcceptedLaunch | None:
    """Read ranks.json; None for an attempt that was never accepted. DamagedFile for anything else."""
    return read_as(AcceptedLaunch, folder.ranks, RANKS_SCHEMA)


def find_orphans(requests: Mapping[str, LaunchRequest]) -> dict[str, OrphanedAttempt]:
    """Return those of these attempts that were accepted."""
    found = {key: (request, read_ranks(request.folder)) for key, request in requests.items()}
    return {
        key: OrphanedAttempt(request, accepted) for key, (request, accepted) in found.items() if accepted is not None
    }


def end_orphans(attempts: Iterable[OrphanedAttempt], timeout_s: float) -> None:
    """End the remaining processes of these attempts on this host, all at once."""
    end_surviving_ranks(tuple(rank for attempt in attempts for rank in attempt.accepted.ranks), timeout_s)


def status_from_reports(reports: Sequence[GroupReport], folder: AttemptFolder, cancelled: bool) -> LaunchStatus:
    """Combine the reports of all nodes; `cancelled` when the launcher was asked to end the attempt."""
    exits = [rank_exit for report in reports for rank_exit in report.exits]
    reason, detail = _cause(reports, exits, cancelled)
    failed = [e for e in exits if e.code != 0 and not e.killed_by_us]
    culprit = next((e for e in failed if e.code == FILES_FAILED), next(iter(failed), None))
    if reason is None and culprit is not None:
        reason = FailureReason.LAUNCH_FAILURE if culprit.code == FILES_FAILED else None
        detail = _with_log(f"rank {culprit.rank} {_describe_exit(culprit)}", folder.rank_log(culprit.rank))
    starts = [report.started_at for report in reports if report.started_at is not None]
    return LaunchStatus(
        liveness=Liveness.ENDED,
        started=bool(starts),
        failed=any(e.code != 0 for e in exits) or any(report.error for report in reports),
        reason=reason,
        detail=detail,
        nodes=tuple(report.host for report in reports),
        started_at=min(starts, default=None),
        ended_at=max((report.ended_at for report in reports), default=None),
    )


def interrupted_status(folder: AttemptFolder, started_at: float | None) -> LaunchStatus:
    """Return the status of an earlier driver's attempt, which ended with it; the time of its end is an estimate."""
    return LaunchStatus(
        liveness=Liveness.ENDED,
        started=started_at is not None,
        failed=True,
        reason=FailureReason.INTERRUPTED,
        detail="the ranks were ended with their driver",
        started_at=started_at,
        ended_at=last_sign_of_life(folder, started_at),
    )


def unkillable_status(left: Sequence[RankProcess]) -> LaunchStatus:
    """Return the status of ranks that SIGKILL does not end: unknown until they have ended."""
    stuck = ", ".join(f"pid {rank.pid} on {rank.host}" for rank in left)
    return LaunchStatus(Liveness.UNKNOWN, started=True, detail=f"could not be killed: {stuck}")


def last_sign_of_life(folder: AttemptFolder, started_at: float | None) -> float | None:
    """Return when the attempt last wrote anything (UTC seconds), by its files' times; None without a file.

    Never before `started_at` and never in the future: another machine's clock may have set these times.
    """
    files = (folder.ranks, folder.heartbeat, *folder.path.glob("metrics.*.jsonl"), *folder.rank_logs())
    last = max((seconds for file in files if (seconds := _written_at(file)) is not None), default=started_at)
    if last is None:
        return None
    last = min(last, time.time())
    return last if started_at is None else max(last, started_at)


def _written_at(file: Path) -> float | None:
    try:
        return file.stat().st_mtime
    except OSError:
        return None


def _cause(
    reports: Sequence[GroupReport], exits: Sequence[RankExit], cancelled: bool
) -> tuple[FailureReason | None, str | None]:
    """Return reason and detail as far as the launcher knows them, else (None, None)."""
    if cancelled:
        return FailureReason.CANCELLED_BY_SEARCH, "cancelled"
    for report in reports:
        if report.error is not None:
            return FailureReason.LAUNCH_FAILURE, report.error
    for rank_exit in exits:
        if rank_exit.code == -signal.SIGKILL and not rank_exit.killed_by_us:
            return _killed_by_another(rank_exit, reports)
    if any(report.timed_out for report in reports):
        return FailureReason.TIME_LIMIT, "the time limit was reached"
    return None, None


def _killed_by_another(killed: RankExit, reports: Sequence[GroupReport]) -> tuple[FailureReason, str]:
    report = next(report for report in reports if killed in report.exits)
    what = f"rank {killed.rank} was killed by signal 9 on {report.host}"
    if report.oom_kills > 0:
        return FailureReason.HOST_OOM, f"{what}, where the kernel reported an out-of-memory kill"
    return FailureReason.NODE_FAILURE, what


def _describe_exit(rank_exit: RankExit) -> str:
    if rank_exit.code is None:
        return "ended unseen"
    if rank_exit.code < 0:
        return f"was killed by signal {-rank_exit.code}"
    return f"exited with code {rank_exit.code}"


def _with_log(text: str, log: Path) -> str:
    try:
        return "\n".join([text, tail(log, _EXCERPT_LINES)])
    except OSError:
        return text
