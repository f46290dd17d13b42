"""Where the drivers of searches run: each an actor of a Ray of our own, or a thread of this process."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from orchestrator.launchers.ray.runtime import RayRuntime, RayUnavailable, RayWork, WorkLost
from orchestrator.service.driver_session import DriverExit, DriverResult, DriverSession, DriverThread
from search_spaces.errors import InputError, choice_fix


class ExecutorKind(StrEnum):
    RAY = "ray"
    THREAD = "thread"


class Executor(ABC):
    """Runs drivers' turns. Used by one thread, but for `close`, once nobody uses it any more."""

    kind: ExecutorKind

    @abstractmethod
    def start(self, session: DriverSession) -> Any:
        """Begin the turn, and return at once; what is returned names it."""

    @abstractmethod
    def result(self, running: Any) -> DriverResult | None:
        """How the turn ended; None while it goes on."""

    @abstractmethod
    def stop(self, running: Any) -> None:
        """Have the turn end at its next safe point; returns at once."""

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked anything at all; every turn of a dead one is lost."""
        return True

    @abstractmethod
    def close(self) -> None:
        """End it, with every turn that still goes on."""


class ThreadExecutor(Executor):
    """Threads share this process: one that hangs is not ended, and a crash of the process ends all of them."""

    kind = ExecutorKind.THREAD

    def start(self, session: DriverSession) -> DriverThread:
        thread = DriverThread(session)
        thread.start()
        return thread

    def result(self, running: DriverThread) -> DriverResult | None:
        return running.result

    def stop(self, running: DriverThread) -> None:
        running.session.stop()

    def close(self) -> None:
        """Threads end with the process."""


@dataclass(eq=False)
class _Actor:
    work: RayWork
    result: DriverResult | None = None


class RayExecutor(Executor):
    """Each turn has a process of its own, as has Ray: they end with this process, however it ends."""

    kind = ExecutorKind.RAY

    def __init__(self, runtime: RayRuntime, environment: Mapping[str, str]):
        """`environment` is what the drivers find around them: this process's own before Ray changed it."""
        self._runtime = runtime
        self._environment = environment

    def start(self, session: DriverSession) -> _Actor:
        return _Actor(self._runtime.begin(session, self._environment))

    def result(self, running: _Actor) -> DriverResult | None:
        if running.result is None and self._runtime.done([running.work]):
            running.result = self._found(running.work)
        return running.result

    def _found(self, work: RayWork) -> DriverResult:
        try:
            return self._runtime.result(work)
        except WorkLost as lost:
            return DriverResult(DriverExit.LOST, f"its process died: {lost}".splitlines()[0])
        except Exception as error:
            return DriverResult(DriverExit.FAILED, f"{type(error).__name__}: {error}")

    def stop(self, running: _Actor) -> None:
        running.work.actor.stop.remote()

    @property
    def is_alive(self) -> bool:
        return self._runtime.is_alive

    def close(self) -> None:
        self._runtime.close()


def make_executor(kind: ExecutorKind, note: Callable[[str], None]) -> Executor:
    """The executor of this kind; threads, as `note` is told, where no Ray can be started. For the main thread."""
    if kind is ExecutorKind.THREAD:
        return ThreadExecutor()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        return RayExecutor(RayRuntime.start_loopback(rank_slots=0, num_gpus=0), environment)
    except RayUnavailable as error:
        note(f"Ray cannot start, so drivers are threads of this process: {error}")
        return ThreadExecutor()


def executor_named(name: str) -> ExecutorKind:
    """The kind of this name; InputError for another."""
    try:
        return ExecutorKind(name)
    except ValueError:
        names = [kind.value for kind in ExecutorKind]
        rule, fix = "one of " + ", ".join(names), choice_fix(name, names)
        raise InputError.of("choice", f"is {name!r}", key="--executor", value=name, rule=rule, fix=fix) from None
