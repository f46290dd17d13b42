from __future__ import annotations

import subprocess
import sys

import pytest

from search_spaces.layouts.layout import Layout
from tests.kit import metrics
from tests.trials.train.trial_processes import make_spec
from trials.files.folders import AttemptFolder, read_json, write_json
from trials.ranks.report import Report
from trials.trial import FailureReason, Outcome, OutcomeStatus

SPEC = make_spec(Layout())


@pytest.fixture
def folder(tmp_path) -> AttemptFolder:
    return AttemptFolder(tmp_path)


def report(folder: AttemptFolder, rank: int = 0, restart: int = 0) -> Report:
    return Report(SPEC, folder, rank, restart, started_at=1_700_000_000.0)


def outcome(folder: AttemptFolder, restart: int = 0) -> Outcome:
    data = read_json(folder.outcome(restart))
    assert data is not None
    return Outcome.from_json(data)


def test_a_failure_says_who_where_and_why(folder):
    rank_3 = report(folder, rank=3)
    rank_3.enter("build")
    rank_3.fail(FailureReason.GPU_OOM, "tried to allocate 2 GiB")
    written = outcome(folder)
    assert (written.rank, written.phase, written.reason) == (3, "build", FailureReason.GPU_OOM)
    assert written.excerpt == "tried to allocate 2 GiB"
    assert (written.nonce, written.started_at) == (SPEC.nonce, "2023-11-14T22:13:20.000000Z")
    assert written.ended_at is not None


def test_the_first_failure_stands(folder):
    report(folder, rank=1).fail(FailureReason.SCRIPT_ERROR, "the cause")
    report(folder, rank=0).fail(FailureReason.NODE_FAILURE, "a consequence")
    assert outcome(folder).excerpt == "the cause"


def test_a_measurement_stands_against_any_later_failure(folder):
    rank_0 = report(folder)
    rank_0.write(rank_0.outcome(measured=metrics(1000.0)))
    report(folder, rank=1).fail(FailureReason.SCRIPT_ERROR, "afterwards")
    assert outcome(folder).status is OutcomeStatus.MEASURED
    assert not rank_0.failure()


def test_each_restart_has_an_outcome_of_its_own(folder):
    report(folder).fail(FailureReason.SCRIPT_ERROR, "before the restart")
    restarted = report(folder, restart=1)
    assert not restarted.has_outcome()
    restarted.fail(FailureReason.GPU_OOM, "after it")
    assert outcome(folder, restart=1).restart == 1


def test_a_failure_of_any_rank_is_seen_by_all(folder):
    watching = report(folder)
    assert not watching.failure()
    report(folder, rank=1).fail(FailureReason.GPU_OOM, "elsewhere")
    assert watching.failure()


def test_a_trial_that_ended_itself_has_failed_for_no_rank(folder):
    rank_0 = report(folder)
    rank_0.write(rank_0.pruned("slower than t0001"))
    assert outcome(folder).reason is FailureReason.PRUNED
    assert report(folder, rank=1).has_outcome()
    assert report(folder, rank=1).failure() is None


def test_only_rank_0_gives_the_sign_of_life(folder):
    report(folder, rank=1).beat()
    assert not folder.heartbeat.exists()
    report(folder, rank=0).beat()
    assert folder.heartbeat.exists()


HANGING = """
import math, sys, time
from pathlib import Path
from trials.files.folders import AttemptFolder, read_json
from trials.ranks.environment import RankEnvironment
from trials.ranks.report import Report
from trials.ranks.watchdog import Watchdog
from trials.trial import TrialSpec

folder = AttemptFolder(Path(sys.argv[1]))
report = Report(TrialSpec.from_json(read_json(folder.spec)), folder, 0, 0, time.time())
report.last_progress = math.inf  # until it stands where it is to be found
Watchdog(report, RankEnvironment(0, 1, 0), hang_limit_s=float(sys.argv[2])).start()

def stand_still():
    report.progress()
    time.sleep(120)

stand_still()
"""


def run_until_ended_by_its_watchdog(folder: AttemptFolder, hang_limit_s: float) -> str:
    """The end of the rank's output."""
    command = [sys.executable, "-c", HANGING, str(folder.path), str(hang_limit_s)]
    done = subprocess.run(command, check=False, capture_output=True, timeout=60)
    assert done.returncode == 1
    return done.stderr.decode()


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_a_rank_without_progress_ends_and_says_where_it_stood(folder):
    write_json(folder.spec, SPEC.to_json())
    assert "this rank is at" in run_until_ended_by_its_watchdog(folder, hang_limit_s=0.2)
    written = outcome(folder)
    assert written.reason is FailureReason.HANG
    assert "stand_still" in written.excerpt


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_a_rank_ends_when_another_has_failed(folder):
    write_json(folder.spec, SPEC.to_json())
    report(folder, rank=1).fail(FailureReason.GPU_OOM, "elsewhere")
    assert run_until_ended_by_its_watchdog(folder, hang_limit_s=60) == ""
    assert outcome(folder).reason is FailureReason.GPU_OOM
