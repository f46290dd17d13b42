"""Job of one of Parlay's programs, as a single attempt of a launcher: for selftest, calibrate and doctor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.common.code_snapshot import snapshot_code
from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.program_spec import program_spec
from search_spaces.hardware.cluster import Cluster
from search_spaces.model_shape import ModelShape
from trials.attempt_result import LaunchStatus
from trials.files.folders import AttemptFolder, SearchFolder, read_json, write_json
from trials.files.path_owners import FolderIdentity
from trials.trial import Attempt, Outcome

RESULTS_GRACE_S = 90.0
"""NFS may show another machine's files a minute late, as for outcomes."""


def new_job(
    folder: SearchFolder,
    cluster: Cluster,
    model: ModelShape,
    trainer: Mapping[str, Any],
    python: str,
    time_limit_s: float,
) -> LaunchRequest:
    """Return an attempt on all ranks of `cluster`, with its spec and code written to `folder`.

    `folder` is new; its name is the search id. `trainer` selects the program.
    """
    folder.path.mkdir(parents=True, mode=0o700)
    snapshot_code(folder.code)
    attempt = Attempt("t0001", "a1", "0" * 32, cluster.num_nodes, time_limit_s)
    spec = program_spec(cluster, model, trainer, folder.search_id, attempt, time_limit_s)
    request = LaunchRequest(
        spec,
        folder.attempt(attempt.trial, attempt.attempt),
        python,
        str(folder.code),
        time_limit_s,
        taken=FolderIdentity.at(folder.path),
    )
    request.folder.path.mkdir(parents=True, mode=0o700)
    write_json(request.folder.spec, spec.to_json())
    return request


def rank_failure(folder: AttemptFolder, status: LaunchStatus) -> tuple[int, str] | None:
    """Return the failed rank and its reason, or None if no rank wrote a valid outcome."""
    try:
        data = read_json(folder.outcome(status.restart))
        outcome = None if data is None else Outcome.from_json(data)
    except ValueError:
        return None
    if outcome is None or outcome.rank is None:
        return None
    last_line = (outcome.excerpt or "").strip().splitlines()[-1:]
    return outcome.rank, ": ".join([f"rank {outcome.rank}: {outcome.reason}", *last_line])


def launcher_reason(status: LaunchStatus, otherwise: str) -> str:
    """Return the launcher's reason for the end of an attempt, or `otherwise`."""
    return status.detail or (str(status.reason) if status.reason else otherwise)
