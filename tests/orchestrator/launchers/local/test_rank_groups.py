"""Status of an attempt from the reports of its nodes, its plans, and its ranks.json."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.launchers.local.processes import GroupReport, RankExit, RankProcess
from orchestrator.launchers.local.rank_groups import (
    AcceptedLaunch,
    find_orphans,
    interrupted_status,
    last_sign_of_life,
    node_plans,
    read_ranks,
    status_from_reports,
    unkillable_status,
    write_ranks,
)
from tests.orchestrator.launchers.attempts import attempt_request, with_spec
from trials.attempt_result import LaunchStatus, Liveness
from trials.files.folders import AttemptFolder, write_json
from trials.ranks.program import FILES_FAILED
from trials.trial import FailureReason

REPORT = GroupReport("node1", 10.0, 20.0, (RankExit(0, 0, False), RankExit(1, 0, False)), False, 0)
SIGKILLED = RankExit(1, -signal.SIGKILL, killed_by_us=False)
ON_NODE_2 = {"host": "node2"}


@pytest.fixture
def folder(tmp_path: Path) -> AttemptFolder:
    return AttemptFolder(tmp_path)


def ended(folder: AttemptFolder, *reports: GroupReport, cancelled: bool = False) -> LaunchStatus:
    return status_from_reports(list(reports), folder, cancelled=cancelled)


def exits(*codes: RankExit | tuple[int, int | None], **changes: object) -> GroupReport:
    found = tuple(code if isinstance(code, RankExit) else RankExit(*code, False) for code in codes)
    return replace(REPORT, exits=found, **changes)


def test_a_good_end_has_no_reason_and_nodes_ran_from_the_first_start_to_the_last_end(folder):
    status = ended(folder, REPORT, replace(REPORT, host="node2", started_at=11.0, ended_at=25.0))
    assert (status.liveness, status.started, status.failed, status.reason) == (Liveness.ENDED, True, False, None)
    assert (status.nodes, status.started_at, status.ended_at) == (("node1", "node2"), 10.0, 25.0)


@pytest.mark.parametrize(
    ("reports", "cancelled", "reason", "words"),
    [
        ([exits((0, 1), SIGKILLED)], False, FailureReason.NODE_FAILURE, "rank 1 was killed by signal 9 on node1"),
        ([REPORT, exits(SIGKILLED, oom_kills=1, **ON_NODE_2)], False, FailureReason.HOST_OOM, "node2"),
        ([replace(REPORT, oom_kills=1), exits(SIGKILLED, **ON_NODE_2)], False, FailureReason.NODE_FAILURE, "rank 1"),
        ([exits((1, 7), RankExit(0, -signal.SIGKILL, True))], False, None, "rank 1 exited with code 7"),
        ([REPORT, exits((1, -signal.SIGTERM), timed_out=True)], False, FailureReason.TIME_LIMIT, ""),
        ([exits(SIGKILLED, oom_kills=1)], True, FailureReason.CANCELLED_BY_SEARCH, ""),
    ],
    ids=["killed", "memory", "memory of another node", "we killed it", "time limit", "cancelled"],
)
def test_what_ended_the_first_rank_that_failed_is_the_reason(folder, reports, cancelled, reason, words):
    status = ended(folder, *reports, cancelled=cancelled)
    assert (status.reason, status.failed) == (reason, True)
    assert words in str(status.detail)


@pytest.mark.fault(47)
def test_a_rank_that_could_not_reach_its_files_is_the_cause_whatever_the_others_made_of_it(folder):
    folder.rank_log(1).write_text("OSError: [Errno 116] Stale file handle\n")
    status = ended(folder, exits((0, 1), (1, FILES_FAILED)))
    assert status.reason is FailureReason.LAUNCH_FAILURE
    assert status.detail == "rank 1 exited with code 74\nOSError: [Errno 116] Stale file handle"


@pytest.mark.parametrize(
    ("code", "words"),
    [(-signal.SIGSEGV, "rank 1 was killed by signal 11"), (2, "rank 1 exited with code 2"), (None, "rank 1 ended un")],
)
def test_the_first_rank_to_fail_is_named_with_the_end_of_its_log(folder, code, words):
    folder.rank_log(1).write_text("first line\n" + "noise\n" * 2000 + "ValueError: broken\n")
    detail = str(ended(folder, exits((1, code), (0, 1))).detail)
    assert detail.startswith(words)
    assert detail.endswith("ValueError: broken")
    assert "first line" not in detail


def test_ranks_that_could_not_be_started_are_a_launch_failure_and_what_never_started_has_no_times(folder):
    report = GroupReport("node1", None, 20.0, (), False, 0, error="python3 is not an executable on node1")
    status = ended(folder, report)
    assert (status.reason, status.started, status.failed) == (FailureReason.LAUNCH_FAILURE, False, True)
    assert status.detail == report.error
    status = ended(folder, cancelled=True)
    assert (status.started, status.started_at, status.ended_at) == (False, None, None)


def test_a_rank_that_will_not_die_leaves_its_attempt_unknown():
    status = unkillable_status([RankProcess(0, "node1", 77, 1, "boot", 10.0)])
    assert status.liveness is Liveness.UNKNOWN
    assert "pid 77 on node1" in str(status.detail)


def test_what_an_earlier_driver_left_ended_with_its_last_sign_of_life_and_has_no_start_if_it_never_started(tmp_path):
    request = attempt_request(tmp_path)
    write_ranks(request, "job", [RankProcess(rank, "gone", 77, 1, "boot", 1_000.0 + rank) for rank in (1, 0)])
    for file, seconds in ((request.folder.ranks, 1_001), (request.folder.heartbeat, 1_300), (request.folder.spec, 9e5)):
        file.touch()
        os.utime(file, (seconds, seconds))
    status = find_orphans({"key": request})["key"].status()
    assert (status.reason, status.started_at, status.ended_at) == (FailureReason.INTERRUPTED, 1_000.0, 1_300.0)
    write_ranks(request, "job", ())
    status = find_orphans({"key": request})["key"].status()
    assert (status.liveness, status.started, status.started_at) == (Liveness.ENDED, False, None)
    assert status.ended_at is not None


@pytest.mark.parametrize("name", ["heartbeat", "ranks.json", "metrics.r0.jsonl", "metrics.r2.jsonl", "rank-00003.log"])
def test_every_file_a_running_attempt_writes_is_a_sign_of_life(folder, name):
    (folder.path / name).touch()
    os.utime(folder.path / name, (500, 500))
    assert last_sign_of_life(folder, 400.0) == 500.0


def test_an_attempt_ends_neither_before_its_start_nor_in_the_future(folder):
    assert last_sign_of_life(folder, None) is None
    folder.heartbeat.touch()
    os.utime(folder.heartbeat, (500, 500))
    assert last_sign_of_life(folder, 600.0) == 600.0
    ahead = time.time() + 3600
    os.utime(folder.heartbeat, (ahead, ahead))
    assert 600.0 < (interrupted_status(folder, 600.0).ended_at or 0) < ahead


def test_ranks_are_dealt_to_nodes_in_order_and_the_last_node_may_have_fewer(tmp_path):
    request = with_spec(attempt_request(tmp_path), num_gpus=5)
    plans = node_plans(request)
    assert [(plan.first_rank, len(plan.logs), plan.world_size) for plan in plans] == [(0, 2, 5), (2, 2, 5), (4, 1, 5)]
    assert plans[2].logs == (str(request.folder.rank_log(4)),)
    assert plans[0].argv == (request.python, "-m", "trials.train", str(request.folder.spec))
    assert plans[0].directory == str(request.folder.path)


def test_a_plan_has_absolute_paths_our_code_first_one_thread_on_cpu_and_the_launchers_devices(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    request = attempt_request(Path("here"))
    [plan] = node_plans(request, {"CUDA_VISIBLE_DEVICES": "3"})
    assert plan.directory.startswith(f"{tmp_path}/here/")
    assert plan.argv[-1] == f"{plan.directory}/spec.json"
    names = ("PYTHONPATH", "PYTHONSAFEPATH", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
    assert [plan.environment[name] for name in names] == [f"{tmp_path}/here/code", "1", "1", "3"]
    assert "OMP_NUM_THREADS" not in node_plans(with_spec(request, accelerator="h100-80gb"))[0].environment


def test_ranks_json_reads_back_as_written_and_a_newer_one_is_refused(tmp_path):
    request = attempt_request(tmp_path)
    ranks = (RankProcess(0, "node1", 77, 1, "boot", 10.0), RankProcess(1, "node1", 78, 2, "boot", 10.5))
    assert read_ranks(request.folder) is None
    for written in ((), ranks):
        write_ranks(request, "job", written)
        assert read_ranks(request.folder) == AcceptedLaunch(request.spec.attempt_key, "job", written)
    write_json(request.folder.ranks, {"schema": "parlay.ranks/2"})
    with pytest.raises(ValueError, match="ranks/2"):
        read_ranks(request.folder)
