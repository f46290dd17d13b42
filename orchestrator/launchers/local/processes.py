"""Processes of one node's ranks: started together, supervised, and ended reliably.

Standard library only and independent of other modules of Parlay but process_identity, kernel_oom, tied_start and two
lists of names: the code runs in the driver and is pickled by value to the nodes of a Ray cluster, where Parlay need not
be installed. Linux only.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from orchestrator.launchers.process_identity import boot_id, start_ticks
from slurm.environment import LAUNCHER_PREFIXES, PYTHON_VARIABLES, RANK_NAMES
from trials.ranks.kernel_oom import count_oom_kills
from trials.ranks.tied_start import tied_to_us

_FOREIGN_NAMES = {*RANK_NAMES, *PYTHON_VARIABLES}
_FOREIGN_PREFIXES = (*LAUNCHER_PREFIXES, "RAY_", "PARLAY_")
_DONE_VARIABLE = "PARLAY_DONE_DESCRIPTOR"  # of trials/fork_server/stub.py
_GROUP_ENDS_TIMEOUT_S = 1.0  # for all ranks: an init that does not reap would keep a group from ever being empty


@dataclass(frozen=True)
class GracePeriods:
    """Seconds left to the other ranks after one failed or succeeded, and between SIGTERM and SIGKILL."""

    after_failure_s: float = 10.0
    after_success_s: float = 60.0
    after_term_s: float = 5.0


@dataclass(frozen=True)
class GroupPlan:
    """Plan of one node: `argv` once per entry of `logs`, as ranks `first_rank`, `first_rank` + 1, ... of the world.

    `stub` comes before `argv` where a fork server of this node may fork the ranks: its process then stands for the rank
    (trials/fork_server/stub.py). `environment` is added to the node's own, from which all launchers' variables are
    removed; `settings` are the trial's own, which win, and remove what is None. Ending the ranks begins `time_limit_s`
    after the start of the first.
    """

    argv: tuple[str, ...]
    directory: str
    logs: tuple[str, ...]
    first_rank: int
    world_size: int
    time_limit_s: float
    environment: Mapping[str, str]
    grace_periods: GracePeriods = GracePeriods()
    stub: tuple[str, ...] = ()
    settings: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class RankProcess:
    """A running rank, or the stub that stands for a forked one.

    `start_ticks` (since boot `boot_id`) tell it from a later process with the same pid. `started_at` is UTC seconds
    since the epoch.
    """

    rank: int
    host: str
    pid: int
    start_ticks: int
    boot_id: str
    started_at: float


@dataclass(frozen=True)
class RankExit:
    """Exit of a rank. `code` is its exit status, minus the number of a signal that killed it, None if unknown."""

    rank: int
    code: int | None
    killed_by_us: bool


@dataclass(frozen=True)
class GroupReport:
    """Report on how a node's ranks ended; `exits` in the order observed. `error` is set when they could not all be
    started.

    Times are UTC seconds since the epoch: the start of the first rank, and the end of the last one as that start plus
    monotonic seconds, so that changes of the system clock have no effect. `oom_kills` counts the kernel's out-of-memory
    kills meanwhile.
    """

    host: str
    started_at: float | None
    ended_at: float
    exits: tuple[RankExit, ...]
    timed_out: bool
    oom_kills: int
    error: str | None = None


class RankGroup(threading.Thread):
    """Supervises one node's ranks in a thread, which starts them and outlives them; `start` begins it.

    Any thread may call any method. The supervising thread calls `on_start` once all ranks run and `on_end` when the
    report is complete; an exception in `on_start` ends the ranks again. No rank survives the thread or its process.
    `node_environment` is this process's own unless given.
    """

    def __init__(
        self,
        plan: GroupPlan,
        on_start: Callable[[tuple[RankProcess, ...]], None],
        on_end: Callable[[], None],
        node_environment: Mapping[str, str] | None = None,
    ):
        super().__init__(name="ranks", daemon=True)
        self.started_at: float | None = None
        self.report: GroupReport | None = None
        self._plan = plan
        self._node_environment = os.environ if node_environment is None else node_environment
        self._on_start = on_start
        self._on_end = on_end
        self._messages: queue.SimpleQueue[tuple[int, int | None] | None] = queue.SimpleQueue()
        self._ranks: tuple[RankProcess, ...] = ()
        self._forked: dict[int, int] = {}
        self._live: dict[int, subprocess.Popen[bytes]] = {}
        self._exits: list[RankExit] = []
        self._first_start: tuple[float, float] | None = None  # UTC and monotonic seconds
        self._group_ends_left_s = _GROUP_ENDS_TIMEOUT_S
        self._timed_out = self._killing = False
        self._term_at = self._kill_at = float("inf")

    def kill(self) -> None:
        """Kill the ranks in the background; `wait` returns when they have ended."""
        self._messages.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the ranks have ended; False when they have not within `timeout_s`."""
        self.join(timeout_s)
        return self.report is not None

    def run(self) -> None:
        """Start the ranks and supervise them to their end."""
        oom_kills = count_oom_kills()
        error = None
        try:
            environment = self._environment_of_ranks()
            for local_rank in range(len(self._plan.logs)):
                self._ranks = (*self._ranks, self._start_rank(local_rank, environment))
            self.started_at = self._ranks[0].started_at
            self._on_start(self._ranks)
            self._watch()
        except Exception as problem:  # a missing program, a full disk, no more threads: no rank stays unsupervised
            error = str(problem)
            self._abandon()
        self.report = GroupReport(
            host=socket.gethostname(),
            started_at=None if self._first_start is None else self._first_start[0],
            ended_at=self._now(),
            exits=tuple(self._exits),
            timed_out=self._timed_out,
            oom_kills=count_oom_kills() - oom_kills,
            error=error,
        )
        self._on_end()

    def _now(self) -> float:
        """Return UTC seconds, counted by the monotonic clock from the first rank's start."""
        if self._first_start is None:
            return time.time()
        started_at, start = self._first_start
        return started_at + time.monotonic() - start

    def _environment_of_ranks(self) -> dict[str, str]:
        environment = rank_environment(self._node_environment, self._plan)
        if shutil.which(self._plan.argv[0], path=environment.get("PATH")) is None:
            raise FileNotFoundError(f"{self._plan.argv[0]} is not an executable on {socket.gethostname()}")
        return environment

    def _start_rank(self, local_rank: int, environment: Mapping[str, str]) -> RankProcess:
        rank = self._plan.first_rank + local_rank
        argv = [*self._plan.stub, *self._plan.argv]
        done = os.pipe() if self._plan.stub else ()
        own = {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}
        if done:
            own[_DONE_VARIABLE] = str(done[1])
        try:
            with open(self._plan.logs[local_rank], "ab") as log:
                started_at, started = self._now(), time.monotonic()  # a busy machine is tens of ms in Popen
                child = subprocess.Popen(
                    tied_to_us(argv),
                    cwd=self._plan.directory,
                    env={**environment, **own},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=done[1:],
                )
        except BaseException:
            _close(done)
            raise
        _close(done[1:])
        self._live[rank] = child
        if done:
            self._forked[rank] = done[0]
        if self._first_start is None:
            self._first_start = started_at, started
            self._term_at = time.monotonic() + self._plan.time_limit_s
        threading.Thread(target=self._await_exit, args=(rank, child.pid), daemon=True).start()
        return RankProcess(rank, socket.gethostname(), child.pid, start_ticks(child.pid) or 0, boot_id(), started_at)

    def _await_exit(self, rank: int, pid: int) -> None:
        try:
            # Not reaped here: until the supervisor does, the pid is not reused and a signal cannot hit another process.
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # SIGCHLD is ignored in this process: the kernel reaped it
            ended = None
        if ended is None:
            self._messages.put((rank, None))
        else:
            sign = 1 if ended.si_code == os.CLD_EXITED else -1
            self._messages.put((rank, sign * ended.si_status))

    def _watch(self) -> None:
        while self._live:
            due = min(self._term_at, self._kill_at)
            timeout_s = None if due == float("inf") else max(0.0, due - time.monotonic())
            try:
                message = self._messages.get(timeout=timeout_s)
            except queue.Empty:
                self._escalate()
                continue
            if message is None:
                self._kill()
            else:
                self._note_exit(*message)

    def _escalate(self) -> None:
        if time.monotonic() >= self._kill_at:
            self._kill()
        elif time.monotonic() >= self._term_at:
            self._timed_out = True
            self._term_at = float("inf")
            self._signal(signal.SIGTERM)
            self._kill_within(self._plan.grace_periods.after_term_s)

    def _note_exit(self, rank: int, code: int | None) -> None:
        child = self._live.pop(rank)
        _signal_group(child.pid, signal.SIGKILL)  # processes that the rank left behind
        child.wait()
        self._group_ends_left_s -= _await_group_end(child.pid, self._group_ends_left_s)
        self._end_forked(rank)
        self._exits.append(RankExit(rank, code, killed_by_us=self._killing))
        grace_periods = self._plan.grace_periods
        self._kill_within(grace_periods.after_success_s if code == 0 else grace_periods.after_failure_s)

    def _kill_within(self, seconds: float) -> None:
        if not self._killing:
            self._kill_at = min(self._kill_at, time.monotonic() + seconds)

    def _kill(self) -> None:
        self._killing = True
        self._term_at = self._kill_at = float("inf")
        self._signal(signal.SIGKILL)

    def _abandon(self) -> None:
        self._kill()
        for rank, child in self._live.items():
            self._exits.append(RankExit(rank, child.wait(), killed_by_us=True))
            self._end_forked(rank)

    def _end_forked(self, rank: int) -> None:
        """End the process for which a stub stood that has ended; the fork server ends it as well, unless it hangs.

        The server named it in a pipe before it began, and it begins only while its stub lives.
        """
        if (pipe := self._forked.pop(rank, None)) is None:
            return
        os.set_blocking(pipe, False)
        with suppress(BlockingIOError):
            if words := os.read(pipe, 64).split():  # written at once
                pid, ticks = map(int, words)
                forked = RankProcess(rank, socket.gethostname(), pid, ticks, boot_id(), 0.0)
                while end_surviving_ranks((forked,), _GROUP_ENDS_TIMEOUT_S):
                    pass  # it holds its device until it is gone
        os.close(pipe)

    def _signal(self, signum: signal.Signals) -> None:
        for child in self._live.values():
            _signal_group(child.pid, signum)


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def rank_environment(node: Mapping[str, str], plan: GroupPlan) -> dict[str, str]:
    """Return the environment of a node's ranks: the node's own without launchers' variables, then the plan's, then its
    settings'."""
    inherited = {
        n: v
        for n, v in node.items()
        if n not in _FOREIGN_NAMES and not n.startswith(_FOREIGN_PREFIXES) and n not in plan.settings
    }
    return {
        **inherited,
        **plan.environment,
        **{name: value for name, value in plan.settings.items() if value is not None},
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_WORLD_SIZE": str(len(plan.logs)),
        "PARLAY_PARENT_PID": str(os.getpid()),
    }


def end_surviving_ranks(ranks: tuple[RankProcess, ...], timeout_s: float) -> tuple[RankProcess, ...]:
    """Kill ranks of an earlier process that still run on this host; return those that could not be killed.

    A pid that now belongs to another process (another start time, another boot) is left alone.
    """
    deadline = time.monotonic() + timeout_s
    alive = surviving_ranks(ranks)
    for rank in alive:
        _signal_group(rank.pid, signal.SIGKILL)
    while alive and time.monotonic() < deadline:
        time.sleep(0.01)  # not our children: their end has to be polled
        alive = surviving_ranks(alive)
    return alive


def surviving_ranks(ranks: tuple[RankProcess, ...]) -> tuple[RankProcess, ...]:
    """Return those of these ranks that run on this host."""
    here = socket.gethostname(), boot_id()
    return tuple(r for r in ranks if (r.host, r.boot_id) == here and start_ticks(r.pid) == r.start_ticks)


def _await_group_end(pid: int, timeout_s: float) -> float:
    """Poll until a killed process group is empty, since only children announce their end. Return the seconds waited."""
    start = time.monotonic()
    with suppress(ProcessLookupError):
        while time.monotonic() < start + timeout_s:
            os.killpg(pid, 0)
            time.sleep(0.005)
    return time.monotonic() - start


def _signal_group(pid: int, signum: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signum)
