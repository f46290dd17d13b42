"""The forked child becomes the rank: all that a plain start would have inherited, but for the program itself."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from trials.fork_server.equality import PRELOAD_VARIABLE, PROGRAM, native
from trials.fork_server.stub import state_of
from trials.ranks.environment import LAUNCHED_VARIABLE, PARENT_VARIABLE, WARM_VARIABLE

_PR_SET_PDEATHSIG = 1


def become_rank(
    request: Mapping[str, Any],
    stub: socket.socket,
    descriptors: Sequence[int],
    launched_ticks: str | None,
    server_pid: int,
) -> None:
    """Make this process, which was just forked, the requested rank.

    `descriptors` become 0, 1 and 2; a fourth is a pipe that is told which process this is. `launched_ticks` is the
    start of the stub in clock ticks since boot. It goes on once its stub was told, so that a rank never runs beside its
    plain start; OSError ends it otherwise.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server_pid:
        os._exit(1)
    os.setsid()
    for done in descriptors[3:]:
        os.write(done, f"{os.getpid()} {state_of(os.getpid())[19]}\n".encode())
    stub.sendall(f"started {os.getpid()}\n".encode())
    stub.close()
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    os.sched_setaffinity(0, request["affinity"])
    os.umask(request["umask"])
    os.chdir(native(request["directory"]))
    sys.argv = [PROGRAM, native(request["argv"][3])]
    _set_environment(request, launched_ticks, server_pid)
    _reset_signals(request)
    _reseed()


def _set_environment(request: Mapping[str, Any], launched_ticks: str | None, server_pid: int) -> None:
    os.environb.clear()
    for name, value in request["environment"].items():
        os.environb[name.encode("latin-1")] = value.encode("latin-1")
    del os.environ[PRELOAD_VARIABLE]
    if PARENT_VARIABLE in os.environ:
        os.environ[PARENT_VARIABLE] = str(server_pid)
    os.environ[WARM_VARIABLE] = "1"
    if launched_ticks is not None:
        os.environ[LAUNCHED_VARIABLE] = launched_ticks


def _reset_signals(request: Mapping[str, Any]) -> None:
    """Handlers and mask as Python's start would have set them under what the stub inherited."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError, ValueError):
            if number in request["ignored"]:
                signal.signal(number, signal.SIG_IGN)
            elif number == signal.SIGINT:
                signal.signal(number, signal.default_int_handler)
            else:
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])


def _reseed() -> None:
    """Seed what a process seeds by chance at its start. `random` and torch need nothing: one seeds itself after a fork,
    the other begins with a fixed seed."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.seed(random.SystemRandom().randrange(2**32))
