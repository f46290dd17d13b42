import json
import multiprocessing
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from orchestrator.launchers.slurm.queries import LONGEST_INTERVAL_S, PollBackoff
from orchestrator.launchers.slurm.squeue_cache import SqueueCache
from slurm.interface import SlurmUnreachable
from slurm.job_state import JobSnapshot, JobState

JOB = JobSnapshot("7", "gpt-abcdef.t0001.a1", "me", JobState.RUNNING, "RUNNING", None, ("n1", "n2"), 1.0, 2.5)
ODD = JobSnapshot("8", "x", "me", JobState.UNKNOWN, "NEW_WORD", "a, b", (), None, None, None, 3, 0, 1)


class CountingSlurm:
    """Slurm that counts its queries."""

    user = "me"

    def __init__(self, *jobs: JobSnapshot, fails: bool = False):
        self.answer, self.fails, self.asked = jobs, fails, 0

    def jobs(self) -> tuple[JobSnapshot, ...]:
        self.asked += 1
        if self.fails:
            raise SlurmUnreachable("down")
        return self.answer

    def jobs_on(self, nodes: Sequence[str]) -> tuple[JobSnapshot, ...]:
        return tuple(job for job in self.jobs() if {*job.nodes} & {*nodes})


@pytest.fixture
def clock(monkeypatch):
    times = {"now": 1000.0}
    monkeypatch.setattr("orchestrator.launchers.slurm.squeue_cache.time.time", lambda: times["now"])
    return times


def shared(slurm: CountingSlurm, folder: Path, key: tuple[str, ...] = ("/etc/slurm.conf",)) -> SqueueCache:
    return SqueueCache(slurm, folder, key)


def test_a_second_driver_takes_the_first_ones_answer_while_it_is_young_enough(tmp_path, clock):
    first, second = CountingSlurm(JOB, ODD), CountingSlurm()
    shared(first, tmp_path).jobs(30.0)
    clock["now"] += 30.0
    answer = shared(second, tmp_path).jobs(30.0)
    assert (answer.jobs, answer.asked_at, second.asked) == ((JOB, ODD), 1000.0, 0)
    clock["now"] += 0.5
    assert shared(second, tmp_path).jobs(30.0).jobs == ()
    assert second.asked == 1


def test_jobs_on_nodes_are_shared_as_the_users_own_are_for_the_same_nodes(tmp_path, clock):
    slurm = CountingSlurm(JOB, ODD)
    assert shared(slurm, tmp_path).jobs(30.0).jobs == (JOB, ODD)
    clock["now"] += 1.0
    for driver in [shared(slurm, tmp_path)] * 3:
        assert driver.jobs_on(["n1"], 1.0).jobs == (JOB,)
    assert slurm.asked == 2
    assert shared(slurm, tmp_path).jobs_on(["n3"], 1.0).jobs == ()
    assert slurm.asked == 3


@pytest.mark.parametrize(
    ("age_s", "passes_s", "num_asked"),
    [(0, 0.0, 2), (30.0, 0.0, 1), (30.0, -60.0, 2)],
    ids=["fresh", "shared", "future"],
)
def test_who_needs_a_fresh_answer_asks_and_one_from_the_future_has_no_age(tmp_path, clock, age_s, passes_s, num_asked):
    slurm = CountingSlurm(JOB)
    shared(slurm, tmp_path).jobs(age_s)
    clock["now"] += passes_s
    shared(slurm, tmp_path).jobs(age_s)
    assert slurm.asked == num_asked


def test_other_clusters_and_other_users_have_answers_of_their_own(tmp_path):
    shared(CountingSlurm(JOB), tmp_path, ("/a",)).jobs(30.0)
    elsewhere, somebody = CountingSlurm(), CountingSlurm()
    somebody.user = "you"
    assert shared(elsewhere, tmp_path, ("/b",)).jobs(30.0).jobs == ()
    assert shared(somebody, tmp_path, ("/a",)).jobs(30.0).jobs == ()


@pytest.mark.security("private_files")
def test_the_file_is_private_and_a_strangers_is_ignored(tmp_path, monkeypatch):
    before, slurm = os.umask(0), CountingSlurm(JOB)
    try:
        shared(slurm, tmp_path).jobs(30.0)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    stranger = os.geteuid() + 1
    monkeypatch.setattr("orchestrator.launchers.slurm.squeue_cache.os.geteuid", lambda: stranger)
    shared(slurm, tmp_path).jobs(30.0)
    assert slurm.asked == 2


def rewritten(**changes: object) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def with_job(**changes: object) -> Callable[[Path], object]:
    def spoil(path: Path) -> None:
        data = json.loads(path.read_text())
        data["jobs"][0] |= changes
        path.write_text(json.dumps(data))

    return spoil


def replaced_by_a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


SPOILED = {
    "cut": lambda path: path.write_text(path.read_text()[:-20]),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "another schema": rewritten(schema="parlay.slurm-jobs/2"),
    "another cluster": rewritten(key=["/other", "me"]),
    "a state nobody knows": with_job(state="ODD"),
    "nodes in one text": with_job(nodes="n1"),
    "a time in words": with_job(started_at="now"),
    "readable by others": lambda path: path.chmod(0o644),
    "a link": replaced_by_a_link,
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_a_file_that_cannot_be_trusted_is_ignored_and_replaced(tmp_path, spoil):
    slurm = CountingSlurm(JOB)
    shared(slurm, tmp_path).jobs(30.0)
    [path] = tmp_path.glob("*.json")
    spoil(path)
    for _ in range(2):
        assert shared(slurm, tmp_path).jobs(30.0).jobs == (JOB,)
    assert slurm.asked == 2


def test_without_a_folder_every_driver_asks_for_itself_and_no_answer_is_not_shared(tmp_path):
    slurm = CountingSlurm(JOB)
    for _ in range(2):
        assert shared(slurm, tmp_path / "missing").jobs(30.0).jobs == (JOB,)
    assert slurm.asked == 2
    with pytest.raises(SlurmUnreachable):
        shared(CountingSlurm(fails=True), tmp_path).jobs(30.0)
    assert list(tmp_path.glob("*.json")) == []


class SlowSlurm:
    """Slurm that marks each query and answers only when all clients have started."""

    user = "me"

    def __init__(self, folder: Path, all_started):
        self._folder, self._all_started = folder, all_started

    def jobs(self) -> tuple[JobSnapshot, ...]:
        self._all_started.wait(60)
        (self._folder / f"asked-{os.getpid()}").touch()
        return (JOB,)


def ask(folder: Path, started, all_started, answers) -> None:
    started.release()
    answers.put(SqueueCache(SlowSlurm(folder, all_started), folder, ()).jobs(30.0).jobs)


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_of_drivers_that_ask_at_once_one_asks_slurm(tmp_path):
    context = multiprocessing.get_context("fork")
    started, all_started, answers = context.Semaphore(0), context.Event(), context.Queue()
    drivers = [context.Process(target=ask, args=(tmp_path, started, all_started, answers)) for _ in range(4)]
    for driver in drivers:
        driver.start()
    for _ in drivers:
        assert started.acquire(timeout=60)
    all_started.set()
    assert [answers.get(timeout=60) for _ in drivers] == [(JOB,)] * 4
    for driver in drivers:
        driver.join(60)
    assert len(list(tmp_path.glob("asked-*"))) == 1


@pytest.mark.parametrize(
    ("floor_s", "answers_s", "interval_s"),
    [
        (30.0, [0.2], 30.0),
        (30.0, [12.0], 60.0),
        (30.0, [None] * 3, 240.0),
        (30.0, [None] * 6, LONGEST_INTERVAL_S),
        (30.0, [None] * 6 + [0.1], 30.0),
        (2 * LONGEST_INTERVAL_S, [None], 2 * LONGEST_INTERVAL_S),
    ],
)
def test_a_slow_controller_is_asked_less_often_and_a_silent_one_ever_less(floor_s, answers_s, interval_s):
    backoff = PollBackoff(floor_s)
    for took_s in answers_s:
        if took_s is None:
            backoff.failed()
        else:
            backoff.answered(took_s)
    assert backoff.interval_s == interval_s


def test_a_question_that_ran_into_its_limit_counts_as_slow():
    backoff = PollBackoff(1.0)
    backoff.failed(took_s=30.0)
    assert backoff.interval_s == 150.0
