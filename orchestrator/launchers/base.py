"""Launcher interface: start the ranks of attempts as processes, under Ray, under Slurm, or from a measured table."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.config.schema.launcher import ENDING_ALLOWANCE_S
from search_spaces.engines import PARLAY
from search_spaces.errors import ExternalError
from trials.attempt_result import LaunchStatus
from trials.files.folders import AttemptFolder
from trials.files.path_owners import FolderIdentity
from trials.trial import TrialSpec


class LaunchRefused(ExternalError):
    """The launcher cannot start any attempt (Ray unreachable, account invalid): the search stops with this message."""


class LaunchPostponed(Exception):
    """The attempt was not launched, or it is not known yet whether it was; it has not failed. Try again later."""


@dataclass(frozen=True)
class LaunchRequest:
    """One attempt to start. Its spec.json is in `folder`; nothing else of it exists yet.

    `python` is the interpreter on the compute side, `code` the folder put on its PYTHONPATH. `time_limit_s` seconds
    after the first rank started the launcher begins to end the attempt, with reason time_limit; its nodes are free
    `longest_s(time_limit_s)` after that start. `exclude` are nodes to avoid where the launcher has a choice.
    `submitted_at` (UTC seconds since the epoch) is when the intent was recorded; `job_id` and `restart` are an earlier
    driver's knowledge of the launch. `taken` identifies the search's folder as its driver opened it. `is_repeat`: it
    measures a layout again (a finalist's repeat, a run of a replay), with the user's placement. `is_first`: no attempt
    of the search has started yet.
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
    is_repeat: bool = False
    is_first: bool = False

    @property
    def key(self) -> str:
        """The attempt's key, by which it is found again."""
        return self.spec.attempt_key

    @property
    def label(self) -> str:
        """Name of the attempt in messages: `t0001.a1`."""
        return f"{self.spec.trial}.{self.spec.attempt}"

    def require_taken(self) -> None:
        """Raise InputError if the search's folder was replaced since its driver opened it."""
        if self.taken is not None:
            self.taken.require_same()

    @property
    def argv(self) -> tuple[str, ...]:
        """Command that starts one rank."""
        return self.python, "-m", trial_program(self.spec), str(self.folder.spec.absolute())


def trial_program(spec: TrialSpec) -> str:
    """Return the module of every rank: Parlay's trainer and diagnostics, or another trainer's supervisor."""
    return "trials.train" if spec.trainer["kind"] in _OF_PARLAY else "trials.external"


_OF_PARLAY = (PARLAY, "calibrate", "doctor", "fabric_check", "selftest")


class Launcher(ABC):
    """Starts, monitors and cancels attempts. Used by one driver thread; attempts are identified by their attempt key.

    Exactly once: the driver records its intent before `launch` and the answer after it. After a crash it calls `adopt`
    for every attempt in flight before anything else.
    """

    name: str
    iteration_interval_s: float = 0.5
    """Longest wait of the driver between two iterations, so that it sees changes in time."""
    runs_steps: bool = False
    """True if attempts are steps of pilots, which are reserved and charged in their place."""
    reserve_pilot: Callable[[str, int, float], None] = staticmethod(lambda name, num_nodes, reserved_s: None)
    """Records a pilot, with the most seconds for which its nodes may be held, before it is submitted, and once. Set by
    the driver."""

    @abstractmethod
    def launch(self, request: LaunchRequest) -> str | None:
        """Start the attempt and return the launcher's id for it, or None where there is none (no free slot).

        Never waits for the attempt to start running. Raises LaunchPostponed where it has to be tried again, with a
        message to show; LaunchRefused when no attempt can be launched at all, another ExternalError when none can be at
        present; ValueError for an attempt that was launched before; InputError if the search's folder was replaced,
        OSError where that cannot be checked.
        """

    @abstractmethod
    def adopt(self, requests: Mapping[str, LaunchRequest]) -> dict[str, str]:
        """Take over attempts of an earlier driver that may be alive; return key -> job id of those that were ever
        accepted.

        Where attempts cannot outlive their driver, their remains are ended here, all at once and within 20 seconds;
        `poll` then reports them as ended with reason interrupted, at the last time they wrote anything. An attempt that
        is missing in the result was never accepted: the driver launches it.
        """

    @abstractmethod
    def poll(self, keys: Iterable[str]) -> dict[str, LaunchStatus]:
        """Return what is known of each of these attempts, with one query for all of them. Never raises.

        An attempt that was neither launched nor adopted is unknown. One that the driver cancelled ends as
        cancelled_by_search; the driver knows whether a user asked for it.
        """

    @abstractmethod
    def cancel(self, keys: Iterable[str]) -> set[str]:
        """End these attempts with all their processes; return the keys of those that may still run.

        An attempt that was never launched has ended already, unless that is uncertain. All are ended at once, within 20
        seconds.
        """

    def longest_s(self, time_limit_s: float) -> float:
        """Return the most seconds for which an attempt of this limit may hold each of its nodes.

        Raises LaunchPostponed while that is unknown.
        """
        return time_limit_s + ENDING_ALLOWANCE_S

    def reservation_node_s(self, time_limit_s: float, num_nodes: int) -> float:
        """Return the node-seconds that are reserved before one more attempt can run: its own, or those of a pilot; 0
        where one has room for it. Raises as `longest_s`."""
        return num_nodes * self.longest_s(time_limit_s)

    def now(self) -> float:
        """Return UTC seconds since the epoch by the launcher's clock (a simulated one for `simulated`)."""
        return time.time()

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` of the launcher's clock; may return earlier when something changed.

        A simulated clock advances to the next change instead, however far that is.
        """
        time.sleep(seconds)

    def ended_pilots(self) -> dict[str, LaunchStatus]:
        """Return how pilots ended, by name, those of earlier drivers included. One that was never submitted has ended
        without a start."""
        return {}

    def cancel_waiting_pilot(self, name: str) -> bool:
        """Cancel this pilot if it still waits for its nodes, so that its reservation returns; False where it has them
        or has ended. Raises OSError where its folder cannot be read."""
        return False

    def release(self, gives_up: bool = True) -> bool:
        """End all pilots, since no attempt needs them; return False while their ends have to be waited for. While the
        cluster does not tell them, a minute is waited, or for ever unless it `gives_up`.

        Does not wait itself. Raises OSError where its folder cannot be read.
        """
        return True

    def cancel_leftovers(self) -> list[str]:
        """End what any driver held for a search that has ended; return names of the jobs that may still be alive.

        Raises OSError where its folder cannot be read.
        """
        return []

    def leaves_of(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Return the leaf switch, or the block, of each of these nodes; () where the leaf of one is not known."""
        return ()

    def num_choosable_nodes(self) -> int | None:
        """Return the number of nodes from which it can choose those of an attempt; None where it has no choice, or that
        is not known."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Free the launcher's resources. Live attempts are ended only if they cannot outlive it."""
