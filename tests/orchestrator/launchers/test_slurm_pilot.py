"""Pilots on a simulated Slurm: which is asked for when, who waits for it, who pays. The agent is the test's own."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.launchers.base import LaunchPostponed
from orchestrator.launchers.slurm_pilot import SlurmPilotLauncher
from orchestrator.launchers.slurm_pilot_jobs import SILENT_S, Pilots
from orchestrator.launchers.slurm_pilot_plan import SLOW_START_S, STARTUP_S, TAIL_S, PilotRules, WorkLeft, least_s
from slurm.fake import FakeSlurm
from slurm.fake_cluster import FakeCluster
from slurm.fake_jobs import FakeJob, JobPlan
from slurm.fake_placement import FakeNode
from slurm.jobs import JobState
from slurm.pace import PollPace
from slurm.request import Container, JobOptions, Runtime
from slurm.shared_answer import Answer
from tests.orchestrator.launchers.attempts import attempt_request, poll_one
from trials.classify import Ending, Life
from trials.pilot.files import PilotFolder, StepEnd, StepFate, StepSign, StepStart, write
from trials.trial import FailureReason

LIMIT_S = 600.0


class Rig:
    """Four nodes, pilots of two; `plan` is what a pilot's job does."""

    def __init__(self, root: Path, attempts: int = 1):
        self.root = root
        self.work = WorkLeft(attempts, parallel=1)
        self.plan = JobPlan()
        self.notes: list[str] = []
        self.cluster = FakeCluster([FakeNode(f"n{i}") for i in range(1, 5)], lambda job: self.plan)
        self.slurm = FakeSlurm(self.cluster)
        self.launcher = self.new_launcher()

    def new_launcher(self, container: Container | None = None) -> SlurmPilotLauncher:
        jobs = lambda max_age_s: Answer(self.slurm.jobs(), self.slurm.now(), 0.0)  # noqa: E731
        rules, options = PilotRules(2, 2), JobOptions(container=container)
        return SlurmPilotLauncher(
            self.slurm,
            options,
            rules,
            PollPace(5.0),
            jobs,
            lambda: self.work,
            self.cluster.advance,
            self.notes.append,
            self.root / "searches" / "demo-abc234" / "launcher.json",
        )

    def request(self, trial: str = "t0001", **changes):
        return replace(attempt_request(self.root, trial=trial, time_limit_s=LIMIT_S), **changes)

    def launch(self, trial: str = "t0001", **changes):
        request = self.request(trial, **changes)
        self.launcher.launch(request)
        return request

    def pilot(self, number: int = 1) -> PilotFolder:
        return PilotFolder(self.root / "searches" / "demo-abc234" / "pilots" / f"p{number:04d}")

    def job(self, number: int = 1) -> FakeJob:
        return next(job for job in self.cluster.jobs() if job.request.name == f"demo-abc234.p{number:04d}")

    def serve(self, number: int = 1) -> PilotFolder:
        """The pilot's agent comes to life and claims what it is asked for."""
        folder = self.pilot(number)
        folder.heartbeat.write_text(str(self.cluster.time))
        self.look()
        for name, signs in folder.signs().items():
            if StepSign.REQUESTED in signs:
                assert folder.take(name, StepSign.CLAIMED)
        self.look()
        return folder

    def look(self, seconds: float = 6.0) -> None:
        self.cluster.advance(seconds)
        self.launcher.poll([])

    def ending(self, request) -> Ending:
        return poll_one(self.launcher, request)


def nodes_asked(folder: PilotFolder, name: str) -> tuple[str, ...]:
    signs = folder.signs()[name]
    return folder.request(name, StepSign.CLAIMED if StepSign.CLAIMED in signs else StepSign.REQUESTED).nodes


def finish(folder: PilotFolder, name: str, node_s: float = 100.0, exit_code: int = 0) -> None:
    at = 1e9
    write(folder.sign(name, StepSign.STARTED), StepStart(at, "0"))
    write(folder.sign(name, StepSign.ENDED), StepEnd(StepFate.ENDED, at, at + 10, exit_code, 0, node_s, "0"))


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_one_pilot_for_all_and_each_attempt_on_nodes_of_its_own(rig):
    first, second, third = (rig.launch(f"t000{n}") for n in (1, 2, 3))
    folder = rig.serve()
    assert [job.request.name for job in rig.cluster.jobs()] == ["demo-abc234.p0001"]
    assert [nodes_asked(folder, name) for name in ("t0001.a1", "t0002.a1")] == [("n1",), ("n2",)]
    assert (rig.ending(third).started, rig.ending(third).detail) == (False, "Resources")
    finish(folder, "t0002.a1")
    assert rig.ending(second).job_id == f"{rig.job().job_id}.0"
    assert nodes_asked(folder, "t0003.a1") == ("n2",)
    assert rig.ending(first).life is Life.ALIVE


def test_while_slurm_is_silent_steps_go_on_and_end(rig):
    first = rig.launch()
    folder = rig.serve()
    rig.cluster.controller_down(for_s=3600.0)
    rig.look(30.0)
    write(folder.sign("t0001.a1", StepSign.STARTED), StepStart(1e9, "0"))
    folder.heartbeat.write_text("again")
    assert rig.ending(first).started
    finish(folder, "t0001.a1")
    assert rig.ending(first).life is Life.ENDED


def test_a_pilot_whose_agent_gives_no_sign_of_life_leaves_its_steps_unknown(rig):
    first = rig.launch()
    rig.serve()
    rig.look(SILENT_S + 1)
    assert rig.ending(first).life is Life.UNKNOWN
    assert rig.launcher.cancel([first.key]) == {first.key}  # and with its pilot it then ends
    rig.look()
    rig.look()
    assert rig.ending(first).reason is FailureReason.CANCELLED_BY_SEARCH


def test_an_attempt_that_would_outlast_its_pilot_waits_for_the_next(rig):
    rig.launch()
    folder = rig.serve()
    finish(folder, "t0001.a1")
    rig.cluster.advance(rig.job().limit_s - LIMIT_S)
    folder.heartbeat.write_text("again")
    second = rig.launch("t0002")
    assert folder.let_go.exists()
    assert rig.ending(second).job_id == rig.job(2).job_id
    assert "t0002.a1" not in folder.signs()


def test_where_too_few_nodes_are_left_the_next_pilot_keeps_away_from_the_bad_ones(rig):
    rig.launch()
    finish(rig.serve(), "t0001.a1")
    rig.look()
    rig.launch("t0002", exclude=("n1",))
    assert rig.job().request.exclude == ()
    finish(rig.pilot(), "t0002.a1")
    rig.look()
    rig.launch("t0003", exclude=("n1", "n2"))
    assert rig.pilot().let_go.exists()
    assert rig.job(2).request.exclude == ("n1", "n2")
    assert nodes_asked(rig.serve(2), "t0003.a1") == ("n3",)


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_pilot_that_never_serves_fails_those_that_wait_and_no_next_one_is_asked_for(tmp_path, exit_code):
    rig = Rig(tmp_path)
    rig.plan = JobPlan(1.0, exit_code=exit_code)
    first = rig.launch()
    for _ in range(5):
        rig.look(10.0)
    assert (rig.ending(first).life, rig.ending(first).reason) == (Life.ENDED, FailureReason.LAUNCH_FAILURE)
    assert len(rig.cluster.jobs()) == 1


def test_a_pilot_that_the_user_cancels_before_it_runs_ends_what_waits_for_it(tmp_path):
    rig = Rig(tmp_path)
    rig.cluster.drain_node("n1")
    rig.cluster.drain_node("n2")
    rig.cluster.drain_node("n3")
    first = rig.launch()
    rig.look()
    rig.cluster.cancel(rig.job().job_id)
    rig.look(30.0)
    assert rig.ending(first).reason is FailureReason.CANCELLED_BY_USER


def test_what_was_asked_of_a_pilot_that_ended_before_it_began_anything_is_tried_again_and_pays_what_that_held(rig):
    first = rig.launch()
    folder = rig.pilot()
    folder.heartbeat.write_text("alive")
    rig.look()
    assert StepSign.REQUESTED in folder.signs()["t0001.a1"]
    rig.cluster.cancel(rig.job().job_id)
    rig.look(30.0)
    rig.look()
    assert StepSign.WITHDRAWN in folder.signs()["t0001.a1"]
    ending = rig.ending(first)
    assert (ending.life, ending.reason) == (Life.ENDED, FailureReason.INTERRUPTED)
    assert ending.twin_node_s == held_node_s(rig.job()) > 0.0
    assert len(rig.cluster.jobs()) == 1


def test_what_was_asked_of_a_pilot_that_ended_first_runs_in_the_next_where_another_has_begun_there(rig):
    rig.launch()
    folder = rig.serve()
    second = rig.launch("t0002")
    rig.look()
    assert StepSign.REQUESTED in folder.signs()["t0002.a1"]
    rig.cluster.cancel(rig.job().job_id)
    rig.look(30.0)
    rig.look()
    assert StepSign.WITHDRAWN in folder.signs()["t0002.a1"]
    assert nodes_asked(rig.serve(2), "t0002.a1") == ("n1",)
    assert rig.ending(second).life is Life.ALIVE


def test_a_claimed_step_ends_with_its_pilot_and_pays_what_nobody_else_did(rig):
    first, _ = rig.launch(), rig.launch("t0002")
    folder = rig.serve()
    finish(folder, "t0002.a1", node_s=100.0)
    rig.cluster.advance(500.0)
    folder.heartbeat.write_text("again")
    rig.look()
    rig.cluster.cancel(rig.job().job_id)
    rig.look(30.0)
    rig.look()
    ending = rig.ending(first)
    assert (ending.life, ending.reason) == (Life.ENDED, FailureReason.INTERRUPTED)
    job = rig.job()
    assert job.ended_at is not None
    assert job.started_at is not None
    assert ending.twin_node_s == 2 * (job.ended_at - job.started_at) - 100.0


def test_what_a_pilot_held_and_no_step_paid_is_reserved_and_falls_on_the_next(rig):
    plain = rig.launcher.longest_s(LIMIT_S, 2)
    rig.launch()
    finish(rig.serve(), "t0001.a1", node_s=0.0)
    rig.cluster.advance(200.0)
    rig.cluster.cancel(rig.job().job_id)
    rig.look(30.0)
    held = held_node_s(rig.job())
    assert rig.launcher.longest_s(LIMIT_S, 2) == plain + held / 2
    rig.launch("t0002")
    plan = rig.pilot(2).read_plan()
    assert plan is not None
    assert plan.owed_node_s == 2 * TAIL_S + held
    assert plan.owes_for == ("p0001",)
    assert rig.launcher.longest_s(LIMIT_S, 2) == plain
    assert held > 400


def test_what_is_unpaid_is_reserved_by_the_next_driver_that_has_nothing_in_flight(rig):
    plain = rig.launcher.longest_s(LIMIT_S, 2)
    rig.launch()
    rig.serve()
    finish(rig.pilot(), "t0001.a1", node_s=0.0)
    rig.look()
    rig.cluster.cancel(rig.job().job_id)
    rig.look(30.0)
    unpaid_s = held_node_s(rig.job()) / 2
    rig.launcher = rig.new_launcher()
    assert rig.launcher.longest_s(LIMIT_S, 2) == plain + unpaid_s > plain


def test_a_reservation_waits_while_the_pilots_cannot_be_read(rig, monkeypatch):
    monkeypatch.setattr(Pilots, "open", lambda *_: (_ for _ in ()).throw(OSError("stale")))
    with pytest.raises(LaunchPostponed, match="stale"):
        rig.launcher.longest_s(LIMIT_S, 2)


def test_the_next_driver_knows_what_runs_what_waits_and_what_was_never_taken(rig):
    first, second, third = (rig.launch(f"t000{n}") for n in (1, 2, 3))
    folder = rig.serve()
    job_id = rig.job().job_id
    write(folder.sign("t0001.a1", StepSign.STARTED), StepStart(1e9, "4"))
    rig.launcher = rig.new_launcher()
    fourth = rig.request("t0004")
    asked = {r.key: r for r in (first, second, replace(third, job_id=job_id), fourth)}
    assert rig.launcher.adopt(asked) == {first.key: f"{job_id}.4", second.key: job_id, third.key: job_id}
    finish(folder, "t0001.a1")
    rig.look()
    assert nodes_asked(folder, "t0003.a1") == ("n1",)
    rig.launcher.launch(fourth)
    assert len(rig.cluster.jobs()) == 1


def test_an_intent_whose_submission_was_lost_is_gone_on_with_under_its_name(rig):
    rig.slurm.submissions_time_out(appears_after_s=10.0)
    request = rig.request()
    with pytest.raises(Exception, match="no answer"):
        rig.launcher.launch(request)
    rig.launcher = rig.new_launcher()
    assert rig.launcher.adopt({request.key: request}) == {request.key: rig.job().job_id}
    rig.look(20.0)
    assert nodes_asked(rig.serve(), "t0001.a1") == ("n1",)
    assert len(rig.cluster.jobs()) == 1


def test_an_attempt_that_was_never_written_down_is_launched_anew(rig):
    rig.launch()
    request = rig.request("t0002")
    request.folder.spec.unlink()
    rig.launcher = rig.new_launcher()
    assert rig.launcher.adopt({request.key: request}) == {}


def test_it_asks_for_what_is_left_to_try(tmp_path):
    rig = Rig(tmp_path, attempts=5)
    rig.launch()
    assert least_s(LIMIT_S) < 5 * LIMIT_S < rig.job().limit_s


def test_pilots_that_nobody_needs_end_with_their_driver_and_others_stay(rig):
    rig.launch()
    folder = rig.serve()
    rig.launcher.close()
    assert not folder.let_go.exists()
    finish(folder, "t0001.a1")
    rig.look()
    folder.closed.write_text("{}")
    rig.launcher.close()
    assert folder.let_go.exists()


@pytest.fixture
def full(tmp_path: Path) -> Rig:
    """A cluster on which no pilot starts just now."""
    rig = Rig(tmp_path)
    for node in ("n1", "n2", "n3"):
        rig.cluster.drain_node(node)
    return rig


def test_a_pilot_that_no_answer_of_slurm_has_shown_yet_ends_with_the_search(full):
    first = full.launch()
    assert full.launcher.cancel([first.key]) == set()
    full.launcher.close()
    assert full.job().state is JobState.CANCELLED


def test_a_pilot_whose_end_slurm_does_not_confirm_is_told_of(full):
    first = full.launch()
    full.look()
    full.cluster.controller_down(for_s=3600.0)
    full.look(30.0)
    assert full.launcher.cancel([first.key]) == {first.key}
    full.launcher.close()
    assert full.notes[-1] == f"pilots that nobody needs may still be there: scancel {full.job().job_id}"
    assert full.pilot().let_go.exists()  # so that its agent ends as soon as it starts


def test_a_pilot_that_runs_and_does_not_serve_is_said(rig):
    first = rig.launch()
    rig.look()
    assert rig.ending(first).detail == "Resources"
    rig.look(SLOW_START_S)
    assert "p0001 runs, and its agent does not come to life" in (rig.ending(first).detail or "")


def held_node_s(job: FakeJob) -> float:
    assert job.ended_at is not None
    assert job.started_at is not None
    return 2 * (job.ended_at - job.started_at)


def test_attempts_that_waited_for_a_pilot_in_vain_share_what_it_held_once(rig):
    rig.plan = JobPlan(100.0, exit_code=1)
    first, second = rig.launch(), rig.launch("t0002")
    rig.look(120.0)
    rig.look()
    assert [rig.ending(one).twin_node_s for one in (first, second)] == [100.0, 100.0]
    assert held_node_s(rig.job()) == 200.0
    rig.launcher = rig.new_launcher()  # after one that was killed before it had written down how they ended
    again = [replace(first, job_id=None), replace(second, job_id=rig.job().job_id)]
    assert set(rig.launcher.adopt({one.key: one for one in again})) == {first.key, second.key}
    assert [rig.ending(one).twin_node_s for one in again] == [100.0, 100.0]
    rig.launch("t0003")
    plan = rig.pilot(2).read_plan()
    assert plan is not None
    assert plan.owed_node_s == 2 * TAIL_S


def test_shares_that_cannot_be_written_down_are_not_told_yet(rig, monkeypatch):
    rig.plan = JobPlan(100.0, exit_code=1)
    first = rig.launch()
    with monkeypatch.context() as patch:
        patch.setattr(Pilots, "charge", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        rig.look(120.0)
        rig.look()
        assert (rig.ending(first).life, rig.ending(first).detail) == (Life.ALIVE, "disk full")
    assert (rig.ending(first).life, rig.ending(first).twin_node_s) == (Life.ENDED, 200.0)


def test_a_pilot_whose_agent_hangs_at_its_start_is_cancelled_and_that_is_said(rig):
    first = rig.launch()
    reserved_s = rig.launcher.longest_s(LIMIT_S, 2)
    rig.look(STARTUP_S - 30.0)
    assert rig.job().state is JobState.RUNNING
    for _ in range(3):
        rig.look(35.0)
    assert rig.job().state is JobState.CANCELLED
    ending = rig.ending(first)
    assert (ending.life, ending.reason) == (Life.ENDED, FailureReason.LAUNCH_FAILURE)
    assert "its agent did not come to life within 5 minutes: see " in (ending.detail or "")
    assert len([note for note in rig.notes if "pilot p0001 is cancelled: its agent did not come to life" in note]) == 1
    assert 2 * STARTUP_S <= ending.twin_node_s == held_node_s(rig.job()) <= 2 * reserved_s


def test_one_that_comes_to_life_late_is_not(rig):
    rig.launch()
    rig.look(STARTUP_S - 30.0)
    rig.serve()
    rig.look(60.0)
    assert rig.job().state is JobState.RUNNING


def test_a_pilot_is_asked_for_no_longer_than_what_the_ones_before_it_left_of_the_budget(tmp_path):
    rig = Rig(tmp_path)
    rig.work, rig.plan = WorkLeft(1000, 1, node_hours=4.0), JobPlan(5400.0, exit_code=1)
    rig.launch()
    assert rig.job().limit_s == 2 * 3600.0
    finish(rig.serve(), "t0001.a1", node_s=0.0)
    rig.look(5400.0)
    rig.look(30.0)
    rig.launch("t0002")
    assert rig.job(2).limit_s <= (4.0 * 3600 - 2 * 5400.0) / 2 + 60.0


def test_a_folder_that_could_not_be_read_at_first_is_read_again(rig, monkeypatch):
    rig.launch()
    rig.serve()
    rig.launch("t0002", exclude=("n1", "n2"))
    rig.pilot(2).job.unlink()  # its driver was killed before it knew the id
    rig.launcher, read = rig.new_launcher(), Pilots._list
    monkeypatch.setattr(Pilots, "_list", lambda pilots, pilot: (_ for _ in ()).throw(OSError("stale")))
    with pytest.raises(OSError, match="stale"):
        rig.launcher.launch(rig.request("t0003"))
    monkeypatch.setattr(Pilots, "_list", read)
    assert rig.launcher.launch(rig.request("t0003")) == rig.job(2).job_id
    assert len(rig.cluster.jobs()) == 2


def test_a_request_that_is_claimed_while_the_next_driver_reads_it_is_found(rig):
    first = rig.launch()
    folder = rig.pilot()
    folder.heartbeat.write_text("alive")
    rig.look()
    rig.launcher = rig.new_launcher()
    watch, claims = rig.launcher._watch, iter([lambda: folder.take("t0001.a1", StepSign.CLAIMED)])
    adopted = watch.request_in

    def claimed_first(pilot, label):
        next(claims)()
        return adopted(pilot, label)

    watch.request_in = claimed_first
    assert rig.launcher.adopt({first.key: first}) == {first.key: rig.job().job_id}


def test_beside_a_container_the_agent_runs_in_the_python_that_runs_parlay(rig):
    rig.launcher = rig.new_launcher(Container(Runtime.APPTAINER, "/images/x.sif"))
    rig.launch(python="/opt/of-the-image/python3")
    assert rig.job().request.argv[:3] == (sys.executable, "-m", "trials.pilot")
