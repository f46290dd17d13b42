"""Starts of drivers for those who supervise them: `parlay resume` in a process each, here or in a Ray actor."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

from orchestrator.launchers.ray.runtime import RayRuntime, RayUnavailable, WorkLost
from orchestrator.service.driver_process import DriverExit, DriverProcess, ExecutorKind

_log = logging.getLogger(__name__)


class Processes:
    """Drivers as child processes of this one."""

    kind = ExecutorKind.PROCESS
    is_alive = True

    def start(self, driver: DriverProcess) -> DriverProcess:
        driver.start()
        return driver

    def close(self) -> None:
        """Processes end with the thread that started them."""


class RayActors:
    """Drivers as Ray actors: each starts the process of its driver. All end with this process, however it ends."""

    kind = ExecutorKind.RAY

    def __init__(self, runtime: RayRuntime, environment: Mapping[str, str]):
        """`environment` is the drivers': that of this process before Ray changed it."""
        self._runtime = runtime
        self._environment = environment

    @property
    def is_alive(self) -> bool:
        """False once Ray is dead; every driver has died with it, and any further call would end this process."""
        return self._runtime.is_alive

    def start(self, driver: DriverProcess) -> RayDriver:
        return RayDriver(self._runtime, driver, self._environment)

    def close(self) -> None:
        self._runtime.close()


class RayDriver:
    """A Ray actor that starts a driver's process and waits for its exit."""

    def __init__(self, runtime: RayRuntime, driver: DriverProcess, environment: Mapping[str, str]):
        self._runtime = runtime
        self._work = runtime.begin(driver, environment)

    def result(self) -> DriverExit | None:
        """Its end; None while it runs."""
        if not self._runtime.done([self._work]):
            return None
        try:
            ended: DriverExit = self._runtime.result(self._work)
        except (WorkLost, OSError) as lost:
            return DriverExit(None, {"error": {"message": f"its actor died: {lost}".splitlines()[0]}})
        return ended

    def stop(self) -> None:
        """Let it leave at its next safe point; returns at once."""
        self._work.actor.stop.remote()

    def kill(self) -> None:
        """End it at once. What it leaves is for the next driver."""
        self._work.actor.kill.remote()


Executor = Processes | RayActors
RunningDriver = DriverProcess | RayDriver


def make_executor(kind: ExecutorKind) -> Executor:
    """Return an executor of this kind; processes, with a note, if Ray cannot start. For the main thread."""
    if kind is ExecutorKind.PROCESS:
        return Processes()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        return RayActors(RayRuntime.start_loopback(rank_slots=0, num_gpus=0), environment)
    except RayUnavailable as error:
        _log.warning(f"Ray cannot start, so drivers run as plain processes: {error}")
        return Processes()
