import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.launchers.local.processes import (
    GracePeriods,
    GroupPlan,
    GroupReport,
    RankGroup,
    RankProcess,
    end_surviving_ranks,
    rank_environment,
    surviving_ranks,
)
from orchestrator.launchers.process_identity import boot_id, start_ticks
from tests.orchestrator.launchers.attempts import is_running

GRACE_PERIODS = GracePeriods(after_failure_s=1.0, after_success_s=1.0, after_term_s=1.0)

processes = [pytest.mark.processes, pytest.mark.timeout(180)]


def plan_of(tmp_path: Path, code: str, ranks: int = 2, **changes: object) -> GroupPlan:
    fields = {
        "argv": (sys.executable, "-c", "import os, signal, sys, time\nrank = int(os.environ['RANK'])\n" + code),
        "directory": str(tmp_path),
        "logs": tuple(str(tmp_path / f"rank-{rank}.log") for rank in range(ranks)),
        "first_rank": 0,
        "world_size": ranks,
        "time_limit_s": 30.0,
        "environment": {},
        "grace_periods": GRACE_PERIODS,
    }
    return GroupPlan(**fields | changes)


class Group:
    """A rank group under test, with its callbacks recorded."""

    def __init__(self, plan: GroupPlan):
        self.ranks: tuple[RankProcess, ...] = ()
        self.running = threading.Event()
        self._group = RankGroup(plan, on_start=self._note, on_end=self.running.set)
        self._group.start()

    def _note(self, ranks: tuple[RankProcess, ...]) -> None:
        self.ranks = ranks
        self.running.set()

    def kill(self) -> None:
        self._group.kill()

    def report(self) -> GroupReport:
        assert self._group.wait(90)
        assert self._group.report is not None
        assert not any(is_running(rank.pid) for rank in self.ranks)
        return self._group.report


class TestRankGroup:
    pytestmark = processes

    def test_after_a_rank_failed_the_others_have_their_grace_and_are_then_killed(self, tmp_path):
        code = (
            "if rank == 0: open('here', 'w').close()\n"
            "while not os.path.exists('here' if rank == 1 else 'failing'): time.sleep(0.01)\n"
            "if rank == 1: open('failing', 'w').close(); sys.exit(3)\n"
            "if rank == 2: time.sleep(600)"
        )
        grace_periods = replace(GRACE_PERIODS, after_failure_s=3.0)
        exits = Group(plan_of(tmp_path, code, ranks=3, grace_periods=grace_periods)).report().exits
        assert {e.rank: (e.code, e.killed_by_us) for e in exits} == {
            0: (0, False),
            1: (3, False),
            2: (-signal.SIGKILL, True),
        }

    def test_a_rank_that_lingers_after_the_others_succeeded_is_killed(self, tmp_path):
        report = Group(plan_of(tmp_path, "print('rank', rank)\ntime.sleep(600 if rank else 0)")).report()
        assert {e.rank: e.code for e in report.exits} == {0: 0, 1: -signal.SIGKILL}
        assert (report.timed_out, report.error, report.oom_kills) == (False, None, 0)
        assert Path(plan_of(tmp_path, "").logs[0]).read_text() == "rank 0\n"

    def test_the_time_limit_asks_first_and_kills_then(self, tmp_path):
        asked = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5) if rank == 0 else None)\n"
        asked += "open(f'ready-{rank}', 'w').close()\nwhile True: time.sleep(1)"
        grace_periods = replace(GRACE_PERIODS, after_failure_s=3.0, after_term_s=3.0)
        plan = plan_of(tmp_path, asked, ranks=3, time_limit_s=0.1, grace_periods=grace_periods)
        os.mkfifo(plan.logs[2])  # holds back the start of the last rank until somebody reads
        group = Group(plan)
        while not all((tmp_path / f"ready-{rank}").exists() for rank in range(2)):
            time.sleep(0.01)
        with open(plan.logs[2], "rb"):
            report = group.report()
        codes = {e.rank: (e.code, e.killed_by_us) for e in report.exits}
        assert (codes[0], codes[1]) == ((5, False), (-signal.SIGKILL, True))
        assert report.timed_out
        assert report.ended_at - report.started_at >= 0.1 + grace_periods.after_term_s

    def test_the_time_limit_counts_from_the_start_of_the_first_rank(self, tmp_path):
        plan = plan_of(tmp_path, "time.sleep(2)\nopen(f'lived-{rank}', 'w').close()\ntime.sleep(600)", time_limit_s=2.0)
        os.mkfifo(plan.logs[1])  # holds back the start of the second rank until somebody reads
        group = Group(plan)
        while not (tmp_path / "lived-0").exists():
            time.sleep(0.01)
        with open(plan.logs[1], "rb"):
            report = group.report()
        assert report.timed_out
        assert not (tmp_path / "lived-1").exists()
        assert report.started_at == group.ranks[0].started_at < group.ranks[1].started_at

    def test_ranks_are_counted_from_before_the_first_process_is(self, tmp_path, monkeypatch):
        popen, calls = subprocess.Popen, []
        monkeypatch.setattr(subprocess, "Popen", lambda *of, **by: calls.append(time.time()) or popen(*of, **by))
        report = Group(plan_of(tmp_path, "pass", ranks=1)).report()
        assert report.started_at is not None
        assert report.started_at <= calls[0]

    def test_a_clock_that_is_set_changes_nothing_in_how_long_the_ranks_ran(self, tmp_path, monkeypatch):
        group = Group(plan_of(tmp_path, "time.sleep(600)"))
        assert group.running.wait(90)
        tomorrow = time.time() + 86400
        monkeypatch.setattr(time, "time", lambda: tomorrow)
        group.kill()
        report = group.report()
        assert report.started_at is not None
        assert 0 <= report.ended_at - report.started_at < 60

    def test_what_a_rank_started_ends_with_it(self, tmp_path):
        code = (
            "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\nprint(child.pid, flush=True)\n"
            "while rank or not (os.path.exists('rank-1.log') and os.path.getsize('rank-1.log')): time.sleep(0.01)"
        )
        group = Group(plan_of(tmp_path, code))
        group.report()
        # Killed, but not our children: their end is not announced, and a slow init uses up the time to wait for it.
        while any(is_running(int(Path(log).read_text())) for log in plan_of(tmp_path, "").logs):
            time.sleep(0.01)

    def test_a_missing_interpreter_is_an_error_and_not_an_exit(self, tmp_path):
        report = Group(plan_of(tmp_path, "", argv=("/no/such/python", "-c", "pass"))).report()
        assert report.started_at is None
        assert report.exits == ()
        assert "/no/such/python is not an executable" in str(report.error)

    def test_ranks_that_cannot_be_recorded_are_ended(self, tmp_path):
        started: list[RankProcess] = []

        def full_disk(ranks: tuple[RankProcess, ...]) -> None:
            started.extend(ranks)
            raise OSError(28, "No space left on device")

        group = RankGroup(plan_of(tmp_path, "time.sleep(600)"), on_start=full_disk, on_end=lambda: None)
        group.start()
        assert group.wait(90)
        assert group.report is not None
        assert "No space left" in str(group.report.error)
        assert len(started) == 2
        assert not any(is_running(rank.pid) for rank in started)

    def test_no_rank_outlives_a_killed_supervisor(self, tmp_path):
        program = (
            "import sys\nfrom pathlib import Path\n"
            "from tests.orchestrator.launchers.local.test_processes import Group, plan_of\n"
            "group = Group(plan_of(Path(sys.argv[1]), 'time.sleep(600)'))\n"
            "group.running.wait()\nprint(*(rank.pid for rank in group.ranks), flush=True)\ngroup.report()"
        )
        root = Path(__file__).parents[4]
        arguments = [sys.executable, "-c", program, str(tmp_path)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, cwd=root) as supervisor:
            assert supervisor.stdout is not None
            pids = [int(pid) for pid in supervisor.stdout.readline().split()]
            assert all(is_running(pid) for pid in pids)
            supervisor.kill()
            supervisor.stdout.read()  # ends when nobody holds the other side
        assert len(pids) == 2
        while any(is_running(pid) for pid in pids):  # the kernel ends a rank with its supervisor
            time.sleep(0.01)


class TestSurvivors:
    pytestmark = processes

    @pytest.fixture
    def stranger(self):
        with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
            yield process
            process.kill()

    def identity(self, pid: int, **changes: object) -> RankProcess:
        ticks = start_ticks(pid)
        rank = RankProcess(0, os.uname().nodename, pid, ticks or 0, boot_id(), started_at=0.0)
        return replace(rank, **changes)

    def test_a_survivor_is_ended(self, stranger):
        assert end_surviving_ranks((self.identity(stranger.pid),), timeout_s=60) == ()
        assert stranger.wait(60) == -signal.SIGKILL

    @pytest.mark.parametrize("changes", [{"start_ticks": 1}, {"boot_id": "another"}, {"host": "another"}])
    def test_a_stranger_with_the_same_pid_is_left_alone(self, stranger, changes):
        rank = self.identity(stranger.pid, **changes)
        assert surviving_ranks((rank,)) == ()
        assert end_surviving_ranks((rank,), timeout_s=10) == ()
        assert stranger.poll() is None


def test_ranks_see_no_other_launchers_variables_and_their_trials_settings_win_and_remove(tmp_path):
    others = "RANK MASTER_ADDR MASTER_PORT SLURM_PROCID SLURMD_NODENAME PMI_RANK PMIX_RANK OMPI_COMM_WORLD_RANK"
    others += " TORCHELASTIC_RUN_ID GROUP_RANK RAY_X PYTHONPATH PYTHONHOME PARLAY_PARENT_PID"
    node = {"PATH": "/bin", "NCCL_DEBUG": "INFO", "NCCL_ALGO": "Tree", **dict.fromkeys(others.split(), "1")}
    plan = plan_of(tmp_path, "", environment={"PYTHONPATH": "/code", "OMP_NUM_THREADS": "1"})
    settings = {"OMP_NUM_THREADS": "2", "NCCL_ALGO": None}
    assert rank_environment(node, replace(plan, settings=settings)) == {
        "PATH": "/bin",
        "NCCL_DEBUG": "INFO",
        "PYTHONPATH": "/code",
        "OMP_NUM_THREADS": "2",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "PARLAY_PARENT_PID": str(os.getpid()),
    }
