"""Launcher: how attempts become running ranks. One interface over plain processes, Ray, Slurm and recorded tables."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from search_spaces.errors import ExternalError
from trials.attempt_result import LaunchStatus
from trials.files.folders import AttemptFolder
from trials.files.path_owners import FolderIdentity
from trials.trial import TrialSpec

ENDING_ALLOWANCE_S = 15.0
"""Seconds by which an attempt may outlast its time limit at most: from SIGTERM to SIGKILL, until what the ranks started
is gone, and, on several nodes, until the driver has looked and ended those that started last."""


class LaunchRefused(ExternalError):
    """The launcher cannot take work at all (Ray unreachable, account invalid): the search stops with these words."""


class LaunchPostponed(Exception):
    """The attempt was not launched, or it is not known yet whether it was; it has not failed. Ask again later."""


@dataclass(frozen=True)
class LaunchRequest:
    """One attempt to start. spec.json already lies in `folder`; nothing else of the attempt exists yet.

    `python` is the interpreter on the compute side, `code` the folder put on its PYTHONPATH. The launcher begins to end
    the attempt, with reason time_limit, `time_limit_s` seconds after its first rank started, whatever the trial program
    does; its nodes are free `longest_s(time_limit_s)` after that start. `exclude` are nodes to keep away from where the
    launcher has a choice. `submitted_at` (UTC seconds since the epoch) is when the intent was written down; `job_id`
    and `restart` are what an earlier driver knew of the launch. `taken` is the search's folder as its driver
    took it.
    """

    spec: TrialSpec
    folder: AttemptFolder
    python: str
    code: str
    time_limit_s: float
    exclude: tuple[str, ...] = ()
    submitted_at: float | None = None
    job_id: str | None = None
    restart: int = 0
    taken: FolderIdentity | None = None

    @property
    def key(self) -> str:
        """The attempt's key, by which it is found again."""
        return self.spec.attempt_key

    @property
    def label(self) -> str:
        """What a user is told of it: `t0001.a1`."""
        return f"{self.spec.trial}.{self.spec.attempt}"

    def require_taken(self) -> None:
        """InputError where another folder lies in the place of the one that was taken: its code is not ours."""
        if self.taken is not None:
            self.taken.require_same()

    @property
    def argv(self) -> tuple[str, ...]:
        """What starts one rank, wherever that is."""
        return self.python, "-m", trial_program(self.spec), str(self.folder.spec.absolute())


def trial_program(spec: TrialSpec) -> str:
    """The module that runs in every rank: Parlay's trainer, its own looks at a cluster, or another's supervisor."""
    return _PROGRAMS.get(spec.trainer["kind"], "trials.external")


_PROGRAMS = {
    "parlay": "trials.train",
    "selftest": "trials.train.selftest",
    "calibrate": "trials.train.calibrate",
    "doctor": "trials.train.doctor",
}


@dataclass(frozen=True)
class EndedPilot:
    """A job of the search that held nodes for attempts side by side, and is over. Their job ids begin with `job_id`.

    `held_node_s` is what it held by the cluster's own clock, in seconds times nodes; where that does not tell, nothing
    but `tail_node_s` is known: what it may have held beside its attempts.
    """

    name: str
    job_id: str
    held_node_s: float | None
    tail_node_s: float


class Launcher(ABC):
    """Starts, watches and cancels attempts. Used by one driver thread; attempts are named by their attempt key.

    Exactly once: the driver records its intent before `launch` and the answer after it. After a crash it calls
    `adopt` for every attempt in flight before anything else.
    """

    name: str
    iteration_interval_s: float = 0.5
    """How long the driver may wait between two turns, at most, without being late for what the launcher tells it."""

    def launch(self, request: LaunchRequest) -> str | None:
        """Start the attempt and return the launcher's id for it, or None where there is none (no slot just now).

        Raises LaunchPostponed where it has to be asked again later, with the words to show; LaunchRefused when no
        attempt can be launched at all, another ExternalError when none can be at present, ValueError for one that was
        launched before, InputError where another folder lies in the place of the one that was taken, OSError where that
        cannot be seen. Never waits for the attempt to start running.
        """
        request.require_taken()
        return self._launch(request)

    @abstractmethod
    def _launch(self, request: LaunchRequest) -> str | None:
        """What `launch` does in the folder that was taken."""

    @abstractmethod
    def adopt(self, requests: Mapping[str, LaunchRequest]) -> dict[str, str]:
        """Take over attempts of an earlier driver that may still live; key -> job id of those that were ever accepted.

        Where attempts cannot outlive their driver, their remains are ended here, all at once and within 20 seconds;
        `poll` then tells them as ended with reason interrupted, at their last sign of life. An attempt that is not in
        the answer was never accepted: the driver launches it.
        """

    @abstractmethod
    def poll(self, keys: Iterable[str]) -> dict[str, LaunchStatus]:
        """What is known now of each of these attempts, with one question for all of them. Never raises.

        An attempt it never launched nor adopted is unknown; one it was asked to cancel ends as cancelled_by_search,
        and whoever asked knows better on whose wish.
        """

    @abstractmethod
    def cancel(self, keys: Iterable[str]) -> set[str]:
        """End these attempts and everything they started; returns the keys of those that may still run.

        One that was never launched is ended already, unless it is not known whether it was. All at once, within 20
        seconds however many they are.
        """

    def longest_s(self, time_limit_s: float, num_nodes: int = 1) -> float:
        """Seconds for which an attempt of this limit may hold each of its nodes at most: what is reserved for it.

        Raises LaunchPostponed while nobody can tell.
        """
        return time_limit_s + ENDING_ALLOWANCE_S

    def now(self) -> float:
        """UTC seconds since the epoch, on the launcher's clock (a simulated one for `simulated`)."""
        return time.time()

    def wait(self, seconds: float) -> None:
        """Let at most `seconds` of the launcher's clock pass; may return earlier when something changed.

        A simulated clock goes straight to the next change instead, however far that is.
        """
        time.sleep(seconds)

    def ended_pilots(self) -> list[EndedPilot]:
        """The jobs that attempts shared and that are over, as last seen, those of earlier drivers included."""
        return []

    def release(self) -> bool:
        """End what is held for attempts to come, since none comes any more; False while some of it is to be waited for.

        Never waits itself. Raises OSError where its folder cannot be read.
        """
        return True

    def cancel_leftovers(self) -> list[str]:
        """End what was held for a search that has ended, by whichever driver; names of the jobs that may live on.

        Raises OSError where its folder cannot be read.
        """
        return []

    @abstractmethod
    def close(self) -> None:
        """Give back what the launcher holds. Attempts still alive are not touched unless they cannot outlive it."""
