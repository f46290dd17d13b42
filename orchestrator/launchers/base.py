"""Launcher: how attempts become running ranks. One interface over plain processes, Ray, Slurm and recorded tables."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from search_spaces.errors import OutsideRefused
from trials.classify import Ending
from trials.folder import AttemptFolder
from trials.trial import TrialSpec

ENDING_ALLOWANCE_S = 15.0
"""Seconds by which an attempt may outlast its time limit at most: from SIGTERM to SIGKILL, until what the ranks started
is gone, and, on several nodes, until the driver has looked and ended those that started last."""


class LaunchRefused(OutsideRefused):
    """The launcher cannot take work at all (Ray unreachable, account invalid): the search stops with these words."""


@dataclass(frozen=True)
class LaunchRequest:
    """One attempt to start. spec.json already lies in `folder`; nothing else of the attempt exists yet.

    `python` is the interpreter on the compute side, `code` the folder put on its PYTHONPATH. The launcher begins to end
    the attempt, with reason time_limit, `time_limit_s` seconds after its first rank started, whatever the trial program
    does; no rank is left ENDING_ALLOWANCE_S later.
    """

    spec: TrialSpec
    folder: AttemptFolder
    python: str
    code: str
    time_limit_s: float


class Launcher(ABC):
    """Starts, watches and cancels attempts. Used by one driver thread; attempts are named by their attempt key.

    Exactly once: the driver records its intent before `launch` and the answer after it. After a crash it calls
    `adopt` for every attempt in flight before anything else.
    """

    name: str

    @abstractmethod
    def launch(self, request: LaunchRequest) -> str | None:
        """Start the attempt and return the launcher's id for it, or None where there is none (no slot just now).

        Raises LaunchRefused when no attempt can be launched at all, another OutsideRefused when none can be at present,
        ValueError for one that was launched before. Never waits for the attempt to start running.
        """

    @abstractmethod
    def adopt(self, requests: Mapping[str, LaunchRequest]) -> dict[str, str]:
        """Take over attempts of an earlier driver that may still live; key -> job id of those that were ever accepted.

        Where attempts cannot outlive their driver, their remains are ended here, all at once and within 20 seconds;
        `poll` then tells them as ended with reason interrupted, at their last sign of life. An attempt that is not in
        the answer was never accepted: the driver launches it.
        """

    @abstractmethod
    def poll(self, keys: Iterable[str]) -> dict[str, Ending]:
        """What is known now of each of these attempts, with one question for all of them. Never raises.

        An attempt it never launched nor adopted is unknown; one it was asked to cancel ends as cancelled_by_search,
        and whoever asked knows better on whose wish.
        """

    @abstractmethod
    def cancel(self, keys: Iterable[str]) -> set[str]:
        """End these attempts and everything they started; returns the keys of those that may still run.

        All at once, within 20 seconds however many they are.
        """

    def now(self) -> float:
        """UTC seconds since the epoch, on the launcher's clock (a simulated one for `recorded`)."""
        return time.time()

    def wait(self, seconds: float) -> None:
        """Let at most `seconds` of the launcher's clock pass; may return earlier when something changed.

        A simulated clock goes straight to the next change instead, however far that is.
        """
        time.sleep(seconds)

    @abstractmethod
    def close(self) -> None:
        """Give back what the launcher holds. Attempts still alive are not touched unless they cannot outlive it."""
