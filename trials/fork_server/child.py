"""The forked child becomes the rank: all that a plain start would have inherited, then the same program."""

from __future__ import annotations

import ctypes
import os
import random
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from trials.fork_server.equality import PRELOAD_VARIABLE, PROGRAM, Request
from trials.ranks.environment import LAUNCHED_VARIABLE, PARENT_VARIABLE, WARM_VARIABLE

_PR_SET_PDEATHSIG = 1
_OF_THE_SERVER = (PRELOAD_VARIABLE,)


def become_rank(
    request: Request, descriptors: Sequence[int], launched_ticks: int | None, server_pid: int, added: dict[bytes, bytes]
) -> NoReturn:
    """Run the requested program in this process, which was just forked, and end with its exit code.

    `descriptors` become 0, 1 and 2. `launched_ticks` is the start of the stub in clock ticks since boot, `added` the
    variables that Python's start adds to an environment.
    """
    code = 1
    try:
        end_with_parent(server_pid)
        os.setsid()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        for descriptor in descriptors:
            os.close(descriptor)
        os.sched_setaffinity(0, request.affinity)
        os.umask(request.umask)
        os.chdir(request.directory)
        _set_environment(request, launched_ticks, server_pid, added)
        _reset_signals(request)
        _reseed()
        code = _exit_code_of(lambda: _run(os.fsdecode(request.argv[3])))
    except BaseException:
        with suppress(OSError):
            traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def end_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process once its parent's thread has ended, and end it now where it has."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def _set_environment(request: Request, launched_ticks: int | None, server_pid: int, added: dict[bytes, bytes]) -> None:
    os.environb.clear()
    os.environb.update({**added, **request.environment})
    for name in _OF_THE_SERVER:
        os.environ.pop(name, None)
    if PARENT_VARIABLE in os.environ:
        os.environ[PARENT_VARIABLE] = str(server_pid)
    os.environ[WARM_VARIABLE] = "1"
    if launched_ticks is not None:
        os.environ[LAUNCHED_VARIABLE] = str(launched_ticks)
    time.tzset()


def _reset_signals(request: Request) -> None:
    """Handlers and mask as Python's start would have set them under what the stub inherited."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError, ValueError):
            if number in request.ignored:
                signal.signal(number, signal.SIG_IGN)
            elif number == signal.SIGINT:
                signal.signal(number, signal.default_int_handler)
            else:
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)


def _reseed() -> None:
    """Seed what a process seeds by chance at its start. `random` and torch need nothing: one seeds itself after a fork,
    the other begins with a fixed seed."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.seed(random.SystemRandom().randrange(2**32))


def _run(spec: str) -> None:
    sys.argv = [PROGRAM, spec]
    runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)


def _exit_code_of(program: Callable[[], None]) -> int:
    """The exit code of a Python program, as the interpreter gives it."""
    try:
        program()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return (ended.code or 0) & 0xFF
        print(ended.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 0
