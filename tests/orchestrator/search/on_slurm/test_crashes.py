"""Kill the driver before and after its calls to the outside, or end it every minute: the search is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator.launchers.slurm import job_files
from orchestrator.launchers.slurm.submissions import CONFIRM_WINDOW_S
from orchestrator.launchers.slurm_pilot import launcher, pool
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import Limits
from tests.fake_slurm.client import FakeSlurm
from tests.orchestrator.scripted import Script
from tests.rig import LAYOUTS, POLL_S, Killed, Rig, speed_of
from trials.analysis.finals import Finals
from trials.files.folders import AttemptFolder
from trials.ledger.events import SearchRecord
from trials.ledger.journal import Journal
from trials.ledger.writer import LedgerWriter
from trials.trial import FailureReason, TrialSpec, TrialState

pytestmark = pytest.mark.slow

BOOKS = {
    "an event into the journal": (Journal, "append", 17),
    "an event into the ledger": (LedgerWriter, "apply", 19),
}
ON_SLURM = {
    **BOOKS,
    "spec.json": (AttemptFolder, "write_spec", 2),
    "sbatch": (FakeSlurm, "submit", 1),
    "squeue": (FakeSlurm, "jobs", 7),
    "scontrol": (FakeSlurm, "describe", 1),
}
KILL_POINTS: dict[str, dict[str, tuple[object, str, int]]] = {
    "scripted": BOOKS,
    "jobs": {**ON_SLURM, "job.sh": (job_files, "write_text", 1), "scancel": (FakeSlurm, "cancel", 1)},
    "pilot": {
        **ON_SLURM,
        "job.sh of a step": (launcher, "write_job_files", 2),
        "a step's request": (launcher, "write", 2),
        "pilot.json": (pool, "write", 1),
        "job.sh of a pilot": (job_files, "write_text", 1),
        "job.json and job_end.json": (pool, "write_json", 1),
        "sbatch --test-only": (FakeSlurm, "test", 1),
    },
}
"""By kind of rig, the calls by which a driver changes or queries anything outside, and how many a walk goes on by."""

READ_ONLY = {"squeue", "scontrol", "sbatch --test-only"}
"""Kill points without effect: a kill after such a call leaves the same state as a kill before it."""


@dataclass
class KillPoint:
    """Counts calls and kills the driver before or after one of them; 0 kills at none."""

    kill_at: int = 0
    after: bool = False
    calls: int = 0

    def guard(self, call: Callable) -> Callable:
        def guarded(*args, **kwargs):
            self.calls += 1
            if self.calls == self.kill_at and not self.after:
                raise Killed
            answer = call(*args, **kwargs)
            if self.calls == self.kill_at and self.after:
                raise Killed
            return answer

        return guarded


@contextmanager
def counting(kind: str, name: str, kill_point: KillPoint) -> Iterator[None]:
    owner, attribute, _ = KILL_POINTS[kind][name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, attribute, kill_point.guard(getattr(owner, attribute)))
        yield


def eventful(how: str, path: Path) -> Rig:
    """A short search with a layout out of memory, repeats of the best one, and what happens to jobs.

    A node fails and a job is requeued, a pilot is cancelled by others, or, where attempts are scripted, one is retried.
    """
    rig = Rig("jobs" if how == "turns" else how, path, settings={"min_job_age_s": 86400.0})
    rig.limits = Limits(4, 2, budget_node_hours=6.0, finalists=1, finalist_repeats=1)
    rig.script = one_does_not_fit
    if how == "scripted":
        repeats = {"finalists": 1, "finalist_repeats": 2, "finals": Finals.FIXED}
        rig.limits, rig.first, rig.script = Limits(3, 2, **repeats), LAYOUTS[1:2], one_of_each
        return rig
    later = lambda seconds, action: rig.cluster.at(rig.cluster.time + seconds, action)  # noqa: E731
    if how == "pilot":
        later(150, lambda: _to_the_last(rig, rig.cluster.cancel))
    else:
        later(70, lambda: rig.cluster.fail_node("n1"))
        later(75, lambda: rig.cluster.resume_node("n1"))
        later(200, lambda: _to_the_last(rig, rig.cluster.requeue))
    return rig


def one_does_not_fit(spec: TrialSpec, restart: int) -> Script:
    if spec.trial == "t0002":
        return Script(reason=FailureReason.GPU_OOM)
    return Script(duration_s=50.0 if spec.trial == "t0003" else 60.0, tokens_per_sec=speed_of(spec))


def one_of_each(spec: TrialSpec, restart: int) -> Script:
    """The second trial fails, the first is retried; the third is the best until it is measured again."""
    if spec.trial == "t0001" and spec.attempt == "a1":
        return Script(reason=FailureReason.NODE_FAILURE, leaves_outcome=False)
    speed = 1500.0 if spec.trial == "t0003" else 1000.0 - int(spec.trial[1:])
    return replace(one_does_not_fit(spec, restart), duration_s=90.0, tokens_per_sec=speed)


def _to_the_last(rig: Rig, action: Callable[[str], object]) -> None:
    for job in [job for job in rig.cluster.jobs() if job.run and not job.state.is_ended][-1:]:
        action(job.job_id)


def drive(how: str, rig: Rig) -> SearchRecord:
    """Run the search by one driver, or by one for every minute, as cron does."""
    return advanced(rig) if how == "turns" else rig.run()


def advanced(
    rig: Rig, is_reached: Callable[[SearchRecord], bool] = lambda search: search.state.is_ended, every_s: float = 60.0
) -> SearchRecord:
    """Advance the search by a new driver every so many seconds, which then releases its lease."""
    for _ in range(500):
        search = rig.open_driver().advance()
        rig.launcher.close()
        if is_reached(search):
            return search
        rig.cluster.advance(every_s)
    raise AssertionError(f"still {story(search)}")


def story(search: SearchRecord) -> list[tuple]:
    """The facts that must not depend on kills of the driver."""
    trials = [(t.trial, t.layout.key, t.kind, t.state, t.reason) for t in search.trials]
    return [*trials, (search.state, search.end_reason, search.best_trial)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Callable[[str], tuple[list[tuple], dict[str, int]]]:
    """Story of a search without a kill, and the number of calls at each kill point."""
    known = {}

    def told(how: str) -> tuple[list[tuple], dict[str, int]]:
        if how not in known:
            rig = eventful(how, tmp_path_factory.mktemp("undisturbed") / how)
            counters = {name: KillPoint() for name in KILL_POINTS[rig.kind]}
            with ExitStack() as all_kill_points:
                for name, counter in counters.items():
                    all_kill_points.enter_context(counting(rig.kind, name, counter))
                search = drive(how, rig)
            rig.check(search)
            calls = {name: counter.calls for name, counter in counters.items()}
            assert min(calls[name] for name in calls if name != "scancel") > 1, "each kill point is reached"
            known[how] = story(search), calls
        return known[how]

    return told


def _cases() -> Iterator[object]:
    """Some calls of each kill point that changes something, and as a walk all of them, before and after; of sbatch some
    before and some after."""
    marks = [pytest.mark.walks, pytest.mark.timeout(240)]
    yield pytest.param("pilot", "sbatch", False, False, id="pilot, sbatch, before")
    for how in ("scripted", "jobs", "turns", "pilot"):
        points = KILL_POINTS["jobs" if how == "turns" else how]
        for name in [name for name in points if name != "scancel"]:
            if (how, name) != ("jobs", "sbatch"):
                yield pytest.param(how, name, name not in READ_ONLY, False, id=f"{how}, {name}, some")
            for after in (False,) if name in READ_ONLY else (False, True):
                if (name, after) != ("an event into the ledger", False):  # the same as after the journal's
                    yield pytest.param(how, name, after, True, id=f"{how}, {name}, {after}, all", marks=marks)


def numbers_of(how: str, name: str, calls: int, all_of_them: bool) -> list[int]:
    if not all_of_them:
        return sorted({max(1, calls // 3), max(1, 2 * calls // 3)}) if how in ("scripted", "jobs") else [2 * calls // 3]
    stride = {"scripted": 1, "jobs": 1, "turns": 6}.get(how)
    return list(range(1, calls + 1, stride or KILL_POINTS["pilot"][name][2]))


@pytest.mark.parametrize(
    ("how", "name", "after", "all_of_them"),
    [
        pytest.param("jobs", "sbatch", False, False, id="jobs, sbatch, before", marks=pytest.mark.fault(1)),
        pytest.param("jobs", "sbatch", True, False, id="jobs, sbatch, after", marks=pytest.mark.fault(2)),
        *_cases(),
    ],
)
def test_killed_at_a_call_and_resumed_the_search_is_the_same(tmp_path, undisturbed, how, name, after, all_of_them):
    """No attempt is launched twice or lost. Turns that are killed cost time, and with it perhaps an order."""
    wanted, calls = undisturbed(how)
    for number in numbers_of(how, name, calls[name], all_of_them):
        rig = eventful(how, tmp_path / str(number))
        with counting(rig.kind, name, KillPoint(number, after)), pytest.raises(Killed):
            drive(how, rig)
        if how != "scripted":
            rig.cluster.advance(7.0)
        search = drive(how, rig)
        rig.check(search)
        told = f"call {number} of {calls[name]}"
        assert len(search.trials) == len(wanted) - 1, told
        assert how == "turns" or story(search) == wanted, told


@pytest.mark.parametrize(("name", "after"), [("scancel", False), ("scancel", True), ("squeue", False)])
def test_killed_while_it_cancels_and_resumed_nothing_is_left(tmp_path, name, after):
    rig = Rig("jobs", tmp_path, Limits(9, 3), script=lambda spec, restart: Script(duration_s=None))
    began = rig.cluster.time
    rig.callbacks = DriverCallbacks(cancel_requested=lambda: rig.cluster.time > began + 40)
    with counting("jobs", name, KillPoint(1 if name == "scancel" else 3, after)), pytest.raises(Killed):
        rig.run()
    assert {trial.reason for trial in rig.run().trials} == {FailureReason.CANCELLED_BY_USER}


# -- a new driver for every step, as cron starts them

MINUTE = 60.0


@pytest.fixture
def rig(tmp_path) -> Rig:
    return Rig("jobs", tmp_path, Limits(1, 1), settings={"min_job_age_s": 86400.0})


def turn(rig: Rig):
    return advanced(rig, lambda search: True)


@pytest.mark.parametrize("every_s", [15.0, 5 * MINUTE])
def test_turns_find_what_one_driver_finds(tmp_path, every_s):
    stays = eventful("jobs", tmp_path / "stays").run()
    rig = eventful("turns", tmp_path / "turns")
    search = advanced(rig, every_s=every_s)
    rig.check(search)
    layouts, others = ({(t.layout.key, t.kind) for t in each.trials} for each in (search, stays))
    assert layouts == others
    assert search.trial(search.best_trial).layout == stays.trial(stays.best_trial).layout
    assert search.end_reason is stays.end_reason


def test_a_turn_that_finds_nothing_new_only_takes_over(rig):
    rig.limits, rig.script = Limits(2, 2), lambda spec, restart: Script(duration_s=None)
    searches = []
    for _ in range(3):
        searches.append(turn(rig))
        rig.cluster.advance(MINUTE)
    _, before, after = searches
    assert after.last_seq == before.last_seq + 1
    assert after.trials == before.trials


def test_a_submission_that_never_was_is_repeated_once_the_turns_have_waited_long_enough(rig):
    rig.slurm.submissions_time_out(1, appears_after_s=None)
    turn(rig)
    began = rig.cluster.time
    advanced(rig, lambda search: search.in_flight[0].state is not TrialState.SUBMITTED, every_s=10.0)
    assert CONFIRM_WINDOW_S <= rig.cluster.time - began <= CONFIRM_WINDOW_S + 2 * POLL_S
    rig.check(advanced(rig))
