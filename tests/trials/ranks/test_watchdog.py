from __future__ import annotations

import os

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import make_spec
from trials.files.folders import AttemptFolder
from trials.measure_rules import MeasureRules
from trials.ranks.environment import RankEnvironment
from trials.ranks.report import Report
from trials.ranks.watchdog import MAX_HANG_S, MIN_HANG_S, Watchdog, hang_limit_s, silence_reason
from trials.trial import FailureReason

SPEC = make_spec(Layout())


class Ended(BaseException):
    pass


class AtTheSameMoment(Report):
    """Reads other ranks' outcomes just before they are written."""

    def failure(self) -> None:
        return None


@pytest.fixture(autouse=True)
def _an_end_that_is_seen(monkeypatch):
    def end(self) -> None:
        raise Ended

    monkeypatch.setattr(Watchdog, "_end", end)


def watched(
    folder: AttemptFolder,
    rank: int,
    limit_s: float,
    kind: type[Report] = Report,
    reason: FailureReason = FailureReason.HANG,
) -> Watchdog:
    report = kind(SPEC, folder, rank, restart=0, started_at=0.0)
    env = RankEnvironment.read({"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)})
    return Watchdog(report, env, limit_s, reason)


@pytest.mark.parametrize(("limit_s", "hang_s"), [(40.0, 20.0), (36_000.0, MAX_HANG_S), (3.0, MIN_HANG_S)])
def test_a_hang_is_half_a_time_limit_within_bounds(limit_s, hang_s):
    assert hang_limit_s(MeasureRules(time_limit_s=limit_s)) == hang_s


def test_silence_beyond_a_time_limit_so_short_tells_of_the_limit(tmp_path):
    folder = AttemptFolder(tmp_path)
    with pytest.raises(Ended):
        watched(folder, 0, limit_s=-1.0, reason=silence_reason(MeasureRules(time_limit_s=3.0))).run()
    assert Report(SPEC, folder, 1, restart=0, started_at=0.0).failure() is FailureReason.TIME_LIMIT
    assert silence_reason(MeasureRules(time_limit_s=16.0)) is FailureReason.HANG


@pytest.mark.parametrize("kind", [Report, AtTheSameMoment])
def test_every_rank_says_where_it_stands_also_when_all_are_stuck_at_the_same_moment(tmp_path, capsys, kind):
    folder = AttemptFolder(tmp_path)
    for rank in (0, 1):
        with pytest.raises(Ended):
            watched(folder, rank, limit_s=-1.0, kind=kind).run()
        assert __name__.rpartition(".")[2] in capsys.readouterr().err, rank
    report = Report(SPEC, folder, 1, restart=0, started_at=0.0)
    assert report.failure() is FailureReason.HANG


def test_a_rank_ends_without_a_word_of_its_own_when_another_has_failed(tmp_path, capsys):
    folder = AttemptFolder(tmp_path)
    Report(SPEC, folder, 0, restart=0, started_at=0.0).fail(FailureReason.GPU_OOM, "no memory")
    with pytest.raises(Ended):
        watched(folder, 1, limit_s=3600.0).run()
    assert capsys.readouterr().err == ""


class OutOfReach(Report):
    """A report whose folder cannot be reached."""

    def beat(self) -> None:
        raise OSError(28, "No space left on device")

    def failure(self) -> FailureReason | None:
        raise OSError(116, "Stale file handle")

    def fail(self, *said: object) -> None:
        raise OSError(28, "No space left on device")


class OutOfReachOnce(OutOfReach):
    """A report whose second read finds that another rank has failed."""

    looks = 0

    def failure(self) -> FailureReason | None:
        self.looks += 1
        return super().failure() if self.looks == 1 else FailureReason.GPU_OOM


@pytest.mark.parametrize(
    ("kind", "limit_s", "is_orphan"),
    [(OutOfReach, -1.0, False), (OutOfReachOnce, 3600.0, False), (OutOfReach, 3600.0, True)],
    ids=["stuck", "another-failed", "orphan"],
)
def test_a_rank_ends_also_where_its_folder_cannot_be_reached(tmp_path, monkeypatch, capsys, kind, limit_s, is_orphan):
    monkeypatch.setattr("trials.ranks.watchdog.INTERVAL_S", 0.0)
    watchdog = watched(AttemptFolder(tmp_path), 0, limit_s, kind)
    if is_orphan:
        watchdog._parent_pid = os.getpid()  # nobody is their own parent
    with pytest.raises(Ended):
        watchdog.run()
    assert ("this rank is at" in capsys.readouterr().err) is (limit_s < 0)
