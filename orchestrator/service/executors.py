"""Executors of drivers' sessions: an actor of Parlay's own Ray each, or a thread of this process each."""

from __future__ import annotations

import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from orchestrator.launchers.ray.runtime import RayRuntime, RayUnavailable, RayWork, WorkLost
from orchestrator.service.driver_session import DriverExit, DriverResult, DriverSession, DriverThread
from search_spaces.errors import InputError, choice_fix

_log = logging.getLogger(__name__)


class ExecutorKind(StrEnum):
    RAY = "ray"
    THREAD = "thread"


class Executor(ABC):
    """Runs drivers' sessions. Used by one thread; `close` is called last, by any thread."""

    kind: ExecutorKind

    @abstractmethod
    def start(self, session: DriverSession) -> Any:
        """Start the session and return a handle at once."""

    @abstractmethod
    def result(self, running: Any) -> DriverResult | None:
        """Result of the session; None while it runs."""

    @abstractmethod
    def stop(self, running: Any) -> None:
        """Ask the session to end at its next safe point; returns at once."""

    @property
    def is_alive(self) -> bool:
        """True if it can be used; every session of a dead executor is lost."""
        return True

    @abstractmethod
    def close(self) -> None:
        """End the executor and all its sessions."""


class ThreadExecutor(Executor):
    """Threads of this process: one that hangs cannot be ended, and a crash of the process ends all of them."""

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
    """A process for each session and a Ray of its own; all end with this process, however it ends."""

    kind = ExecutorKind.RAY

    def __init__(self, runtime: RayRuntime, environment: Mapping[str, str]):
        """`environment` is the drivers': that of this process before Ray changed it."""
        self._runtime = runtime
        self._environment = environment

    def start(self, session: DriverSession) -> _Actor:
        return _Actor(self._runtime.begin(session, self._environment))

    def result(self, running: _Actor) -> DriverResult | None:
        if running.result is None and self._runtime.done([running.work]):
            running.result = self._outcome(running.work)
        return running.result

    def _outcome(self, work: RayWork) -> DriverResult:
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


def make_executor(kind: ExecutorKind) -> Executor:
    """Return an executor of this kind; threads, with a note, if Ray cannot start. For the main thread."""
    if kind is ExecutorKind.THREAD:
        return ThreadExecutor()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        return RayExecutor(RayRuntime.start_loopback(rank_slots=0, num_gpus=0), environment)
    except RayUnavailable as error:
        _log.warning(f"Ray cannot start, so drivers run as threads of this process: {error}")
        return ThreadExecutor()


def executor_named(name: str) -> ExecutorKind:
    """Return the kind with this name. Raises InputError for an unknown one."""
    try:
        return ExecutorKind(name)
    except ValueError:
        names = [kind.value for kind in ExecutorKind]
        rule, fix = "one of " + ", ".join(names), choice_fix(name, names)
        raise InputError.of("choice", f"is {name!r}", key="--executor", value=name, rule=rule, fix=fix) from None
