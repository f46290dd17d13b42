from __future__ import annotations

import pytest

from search_spaces.layouts.layout import Layout
from tests.kit import metrics
from tests.trials.train.trial_processes import make_spec
from trials.files.folders import AttemptFolder, read_json
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
