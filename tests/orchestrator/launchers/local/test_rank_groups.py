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
from trials.attempt_result import Liveness
from trials.files.folders import AttemptFolder, write_json
from trials.ranks.program import FILES_FAILED
from trials.trial import FailureReason

REPORT = GroupReport("node1", 10.0, 20.0, (RankExit(0, 0, False), RankExit(1, 0, False)), False, 0)
SIGKILLED = RankExit(1, -signal.SIGKILL, killed_by_us=False)


@pytest.fixture
def folder(tmp_path: Path) -> AttemptFolder:
    return AttemptFolder(tmp_path)


def with_exits(*exits: RankExit, **changes: object) -> GroupReport:
    return replace(REPORT, exits=exits, **changes)


def test_a_good_end_has_no_reason(folder: AttemptFolder) -> None:
    status = status_from_reports([REPORT], folder, cancelled=False)
    assert (status.liveness, status.started, status.failed, status.reason) == (Liveness.ENDED, True, False, None)
    assert (status.nodes, status.started_at, status.ended_at) == (("node1",), 10.0, 20.0)


def test_the_nodes_together_ran_from_the_first_start_to_the_last_end(folder: AttemptFolder) -> None:
    other = replace(REPORT, host="node2", started_at=11.0, ended_at=25.0)
    status = status_from_reports([REPORT, other], folder, cancelled=False)
    assert (status.nodes, status.started_at, status.ended_at) == (("node1", "node2"), 10.0, 25.0)


@pytest.mark.fault(47)
def test_a_rank_that_could_not_reach_its_files_is_the_cause_whatever_the_others_made_of_it(
    folder: AttemptFolder,
) -> None:
    folder.rank_log(1).write_text("OSError: [Errno 116] Stale file handle\n")
    status = status_from_reports(
        [with_exits(RankExit(0, 1, False), RankExit(1, FILES_FAILED, False))], folder, cancelled=False
    )
    assert status.reason is FailureReason.LAUNCH_FAILURE
    assert status.detail == "rank 1 exited with code 74\nOSError: [Errno 116] Stale file handle"


def test_a_rank_killed_by_nobody_we_know_is_a_node_failure(folder: AttemptFolder) -> None:
    status = status_from_reports([with_exits(RankExit(0, 1, False), SIGKILLED)], folder, cancelled=False)
    assert (status.reason, status.failed) == (FailureReason.NODE_FAILURE, True)
    assert status.detail == "rank 1 was killed by signal 9 on node1"


def test_a_killed_rank_while_the_kernel_killed_for_memory_is_host_oom(folder: AttemptFolder) -> None:
    status = status_from_reports([REPORT, with_exits(SIGKILLED, host="node2", oom_kills=1)], folder, cancelled=False)
    assert status.reason is FailureReason.HOST_OOM
    assert "node2" in str(status.detail)


def test_memory_kills_elsewhere_do_not_explain_a_killed_rank(folder: AttemptFolder) -> None:
    status = status_from_reports(
        [replace(REPORT, oom_kills=1), with_exits(SIGKILLED, host="node2")], folder, cancelled=False
    )
    assert status.reason is FailureReason.NODE_FAILURE


def test_a_rank_we_killed_is_not_the_cause(folder: AttemptFolder) -> None:
    exits = (RankExit(1, 7, False), RankExit(0, -signal.SIGKILL, killed_by_us=True))
    status = status_from_reports([with_exits(*exits)], folder, cancelled=False)
    assert (status.reason, status.failed, status.detail) == (None, True, "rank 1 exited with code 7")


@pytest.mark.parametrize(
    ("code", "words"),
    [(-signal.SIGSEGV, "rank 1 was killed by signal 11"), (2, "rank 1 exited with code 2"), (None, "rank 1 ended un")],
)
def test_the_first_rank_to_fail_is_named_with_the_end_of_its_log(
    folder: AttemptFolder, code: int | None, words: str
) -> None:
    folder.rank_log(1).write_text("first line\n" + "noise\n" * 2000 + "ValueError: broken\n")
    status = status_from_reports([with_exits(RankExit(1, code, False), RankExit(0, 1, False))], folder, cancelled=False)
    detail = str(status.detail)
    assert detail.startswith(words)
    assert detail.endswith("ValueError: broken")
    assert "first line" not in detail


def test_ranks_that_could_not_be_started_are_a_launch_failure(folder: AttemptFolder) -> None:
    report = GroupReport("node1", None, 20.0, (), False, 0, error="python3 is not an executable on node1")
    status = status_from_reports([report], folder, cancelled=False)
    assert (status.reason, status.started, status.failed) == (FailureReason.LAUNCH_FAILURE, False, True)
    assert status.detail == report.error


def test_a_passed_time_limit_is_the_reason_on_any_node(folder: AttemptFolder) -> None:
    reports = [REPORT, with_exits(RankExit(1, -signal.SIGTERM, False), timed_out=True)]
    assert status_from_reports(reports, folder, cancelled=False).reason is FailureReason.TIME_LIMIT


def test_what_was_cancelled_ends_as_cancelled_whatever_its_ranks_did(folder: AttemptFolder) -> None:
    reports = [with_exits(SIGKILLED, oom_kills=1)]
    assert status_from_reports(reports, folder, cancelled=True).reason is FailureReason.CANCELLED_BY_SEARCH


def test_what_never_started_anywhere_has_no_times(folder: AttemptFolder) -> None:
    status = status_from_reports([], folder, cancelled=True)
    assert (status.started, status.started_at, status.ended_at) == (False, None, None)


def test_a_rank_that_will_not_die_leaves_its_attempt_unknown() -> None:
    status = unkillable_status([RankProcess(0, "node1", 77, 1, "boot", 10.0)])
    assert status.liveness is Liveness.UNKNOWN
    assert "pid 77 on node1" in str(status.detail)


def test_what_an_earlier_driver_left_ended_with_its_last_sign_of_life(tmp_path: Path) -> None:
    request = attempt_request(tmp_path)
    write_ranks(request, "job", [RankProcess(rank, "gone", 77, 1, "boot", 1_000.0 + rank) for rank in (1, 0)])
    for file, seconds in ((request.folder.ranks, 1_001), (request.folder.heartbeat, 1_300), (request.folder.spec, 9e5)):
        file.touch()
        os.utime(file, (seconds, seconds))
    status = find_orphans({"key": request})["key"].status()
    assert (status.reason, status.started_at, status.ended_at) == (FailureReason.INTERRUPTED, 1_000.0, 1_300.0)


def test_what_never_started_before_its_driver_ended_has_no_start(tmp_path: Path) -> None:
    request = attempt_request(tmp_path)
    write_ranks(request, "job", ())
    status = find_orphans({"key": request})["key"].status()
    assert (status.liveness, status.started, status.started_at) == (Liveness.ENDED, False, None)
    assert status.ended_at is not None


@pytest.mark.parametrize("name", ["heartbeat", "ranks.json", "metrics.r0.jsonl", "metrics.r2.jsonl", "rank-00003.log"])
def test_every_file_a_running_attempt_writes_is_a_sign_of_life(folder: AttemptFolder, name: str) -> None:
    (folder.path / name).touch()
    os.utime(folder.path / name, (500, 500))
    assert last_sign_of_life(folder, 400.0) == 500.0


def test_an_attempt_ends_neither_before_its_start_nor_in_the_future(folder: AttemptFolder) -> None:
    assert last_sign_of_life(folder, None) is None
    folder.heartbeat.touch()
    os.utime(folder.heartbeat, (500, 500))
    assert last_sign_of_life(folder, 600.0) == 600.0
    ahead = time.time() + 3600
    os.utime(folder.heartbeat, (ahead, ahead))
    assert 600.0 < (interrupted_status(folder, 600.0).ended_at or 0) < ahead


def test_ranks_are_dealt_to_nodes_in_order_and_the_last_node_may_have_fewer(tmp_path: Path) -> None:
    request = with_spec(attempt_request(tmp_path), num_gpus=5)
    plans = node_plans(request)
    assert [(plan.first_rank, len(plan.logs), plan.world_size) for plan in plans] == [(0, 2, 5), (2, 2, 5), (4, 1, 5)]
    assert plans[2].logs == (str(request.folder.rank_log(4)),)
    assert plans[0].argv == (request.python, "-m", "trials.train", str(request.folder.spec))
    assert plans[0].directory == str(request.folder.path)


def test_paths_hold_wherever_the_ranks_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [plan] = node_plans(attempt_request(Path("here")))
    assert plan.directory.startswith(f"{tmp_path}/here/")
    assert plan.environment["PYTHONPATH"] == f"{tmp_path}/here/code"
    assert plan.argv[-1] == f"{plan.directory}/spec.json"


def test_the_trial_sees_our_code_first_and_one_thread_on_cpu(tmp_path: Path) -> None:
    request = attempt_request(tmp_path)
    on_cpu = node_plans(request)[0].environment
    assert (on_cpu["PYTHONPATH"], on_cpu["PYTHONSAFEPATH"], on_cpu["OMP_NUM_THREADS"]) == (request.code, "1", "1")
    assert "OMP_NUM_THREADS" not in node_plans(with_spec(request, accelerator="h100-80gb"))[0].environment


def test_the_devices_the_launcher_gives_come_last(tmp_path: Path) -> None:
    [plan] = node_plans(attempt_request(tmp_path), {"CUDA_VISIBLE_DEVICES": "3"})
    assert plan.environment["CUDA_VISIBLE_DEVICES"] == "3"


def test_ranks_json_reads_back_as_written(tmp_path: Path) -> None:
    request = attempt_request(tmp_path)
    ranks = (RankProcess(0, "node1", 77, 1, "boot", 10.0), RankProcess(1, "node1", 78, 2, "boot", 10.5))
    assert read_ranks(request.folder) is None
    write_ranks(request, "job", ())
    assert read_ranks(request.folder) == AcceptedLaunch(request.spec.attempt_key, "job")
    write_ranks(request, "job", ranks)
    assert read_ranks(request.folder) == AcceptedLaunch(request.spec.attempt_key, "job", ranks)


def test_a_newer_ranks_json_is_refused(tmp_path: Path) -> None:
    write_json(AttemptFolder(tmp_path).ranks, {"schema": "parlay.ranks/2"})
    with pytest.raises(ValueError, match="ranks/2"):
        read_ranks(AttemptFolder(tmp_path))
