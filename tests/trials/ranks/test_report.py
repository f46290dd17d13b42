"""What a rank writes of its end, the watchdog that ends it, and the exit of its program."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from search_spaces.layouts.layout import Layout
from tests.kit import metrics
from tests.trials.train.trial_processes import make_spec
from trials.files.folders import AttemptFolder, read_json, write_json
from trials.measure_rules import MeasureRules
from trials.ranks.environment import RankEnvironment
from trials.ranks.program import FILES_FAILED, read_spec, run_program
from trials.ranks.report import Report
from trials.ranks.watchdog import MAX_HANG_S, MIN_HANG_S, Watchdog, hang_limit_s, silence_reason
from trials.trial import FailureReason, Outcome, OutcomeStatus

SPEC = make_spec(Layout())


@pytest.fixture
def folder(tmp_path) -> AttemptFolder:
    return AttemptFolder(tmp_path)


def report(folder: AttemptFolder, rank: int = 0, restart: int = 0) -> Report:
    return Report(SPEC, folder, rank, restart, started_at=1_700_000_000.0)


def outcome(folder: AttemptFolder, restart: int = 0) -> Outcome:
    return Outcome.from_json(read_json(folder.outcome(restart)))


def test_a_failure_says_who_where_and_why(folder):
    rank_3 = report(folder, rank=3)
    rank_3.enter("build")
    rank_3.fail(FailureReason.GPU_OOM, "tried to allocate 2 GiB")
    written = outcome(folder)
    assert (written.rank, written.phase, written.reason) == (3, "build", FailureReason.GPU_OOM)
    assert written.excerpt == "tried to allocate 2 GiB"
    assert (written.nonce, written.started_at) == (SPEC.nonce, "2023-11-14T22:13:20.000000Z")
    assert written.ended_at > written.started_at


def test_the_first_failure_stands_and_is_seen_by_all(folder):
    watching = report(folder)
    assert not watching.failure()
    report(folder, rank=1).fail(FailureReason.SCRIPT_ERROR, "the cause")
    report(folder, rank=0).fail(FailureReason.NODE_FAILURE, "a consequence")
    assert outcome(folder).excerpt == "the cause"
    assert watching.failure() is FailureReason.SCRIPT_ERROR


def test_a_measurement_or_an_early_end_stands_against_any_later_failure(folder):
    rank_0 = report(folder)
    rank_0.write(rank_0.pruned("slower than t0001"))
    assert outcome(folder).reason is FailureReason.PRUNED
    assert report(folder, rank=1).has_outcome()
    assert report(folder, rank=1).failure() is None
    again = report(folder, restart=1)
    assert not again.has_outcome()
    again.write(again.outcome(measured=metrics(1000.0)))
    report(folder, rank=1, restart=1).fail(FailureReason.SCRIPT_ERROR, "afterwards")
    found = outcome(folder, restart=1)
    assert (found.status, found.restart) == (OutcomeStatus.MEASURED, 1)
    assert not again.failure()


def test_only_rank_0_gives_the_sign_of_life(folder):
    report(folder, rank=1).beat()
    assert not folder.heartbeat.exists()
    report(folder, rank=0).beat()
    assert folder.heartbeat.exists()


class Ended(BaseException):
    pass


@pytest.fixture(autouse=True)
def _an_end_that_is_seen(monkeypatch):
    def end(self) -> None:
        raise Ended

    monkeypatch.setattr(Watchdog, "_end", end)


def watched(folder: AttemptFolder, rank: int, limit_s: float, reason: FailureReason = FailureReason.HANG) -> Watchdog:
    env = RankEnvironment.read({"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)})
    return Watchdog(report(folder, rank), env, limit_s, reason)


@pytest.mark.parametrize(("limit_s", "hang_s"), [(40.0, 20.0), (36_000.0, MAX_HANG_S), (3.0, MIN_HANG_S)])
def test_a_hang_is_half_a_time_limit_within_bounds(limit_s, hang_s):
    assert hang_limit_s(MeasureRules(time_limit_s=limit_s)) == hang_s


def test_silence_beyond_a_time_limit_so_short_tells_of_the_limit(folder):
    with pytest.raises(Ended):
        watched(folder, 0, limit_s=-1.0, reason=silence_reason(MeasureRules(time_limit_s=3.0))).run()
    assert report(folder, 1).failure() is FailureReason.TIME_LIMIT
    assert silence_reason(MeasureRules(time_limit_s=16.0)) is FailureReason.HANG


@pytest.mark.parametrize("is_at_once", [False, True])
def test_every_rank_says_where_it_stands_also_when_all_are_stuck_at_once(folder, monkeypatch, capsys, is_at_once):
    for rank in (0, 1):
        watchdog = watched(folder, rank, limit_s=-1.0)
        if is_at_once:  # each reads the others' outcomes just before they are written
            monkeypatch.setattr(watchdog._report, "failure", lambda: None)
        with pytest.raises(Ended):
            watchdog.run()
        assert __name__.rpartition(".")[2] in capsys.readouterr().err, rank
    assert report(folder, 1).failure() is FailureReason.HANG


def test_a_rank_ends_without_a_word_of_its_own_when_another_has_failed(folder, capsys):
    report(folder).fail(FailureReason.GPU_OOM, "no memory")
    with pytest.raises(Ended):
        watched(folder, 1, limit_s=3600.0).run()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("limit_s", "is_orphan"),
    [(-1.0, False), (3600.0, False), (3600.0, True)],
    ids=["stuck", "another-failed", "orphan"],
)
def test_a_rank_ends_also_where_its_folder_cannot_be_reached(folder, monkeypatch, capsys, limit_s, is_orphan):
    """At its second look it finds that another rank has failed."""
    stale = OSError(116, "Stale file handle")
    unreachable = Mock(last_progress=time.monotonic(), **{"beat.side_effect": stale, "fail.side_effect": stale})
    unreachable.failure.side_effect = [stale, FailureReason.GPU_OOM]
    monkeypatch.setattr("trials.ranks.watchdog.INTERVAL_S", 0.0)
    watchdog = watched(folder, 0, limit_s)
    watchdog._report = unreachable
    if is_orphan:
        watchdog._parent_pid = os.getpid()  # nobody is their own parent
    with pytest.raises(Ended):
        watchdog.run()
    assert ("this rank is at" in capsys.readouterr().err) is (limit_s < 0)


def left_with(path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException | None = None) -> int:
    """Exit code of a rank whose part fails with this error, or succeeds."""

    def run_rank(spec, folder, env) -> bool:
        if failure is not None:
            raise failure
        return True

    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as left:
        run_program("trials.train", [str(path)], read_spec, run_rank, sys.exit)
    return left.value.code


@pytest.mark.fault(47)
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (None, 0),
        (ZeroDivisionError(), 1),
        (OSError(errno.ENOENT, "no such file", "/etc/missing"), 1),
        (OSError(errno.ESTALE, "stale file handle"), FILES_FAILED),
    ],
)
def test_a_rank_whose_own_files_fail_leaves_with_a_code_of_its_own(tmp_path, monkeypatch, failure, code):
    write_json(tmp_path / "spec.json", make_spec(Layout()).to_json())
    assert left_with(tmp_path / "spec.json", monkeypatch, failure) == code


@pytest.mark.fault(47)
def test_a_spec_that_is_not_there_is_not_bad_usage_and_one_that_is_damaged_is(tmp_path, monkeypatch, capsys):
    path = tmp_path / "moved" / "spec.json"
    assert left_with(path, monkeypatch) == FILES_FAILED
    assert f"{path}: " in capsys.readouterr().err
    path.parent.mkdir()
    for damaged in ("{}", '{"schema": "parlay.spec/99"}', "no json"):
        path.write_text(damaged)
        assert left_with(path, monkeypatch) == 2, damaged


@pytest.mark.slow
@pytest.mark.parametrize("spoilt", ["pass", "os.close(1)"])
def test_a_program_leaves_with_its_code_also_where_its_words_cannot_be_written(spoilt):
    code = f"import os, sys; from trials.ranks.program import exit_at_once; print('words'); {spoilt}; exit_at_once(3)"
    with open("/dev/full", "w") as full:
        buffering = [sys.executable, "-E", "-c", code]  # whatever PYTHONUNBUFFERED says
        assert subprocess.run(buffering, stdout=full, timeout=30).returncode == 3
