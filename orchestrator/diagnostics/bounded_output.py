"""Output of a program that may not answer, or not end its answer."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

MOST_BYTES = 2**20


def bounded_output(command: Sequence[str | os.PathLike[str]], environment: Mapping[str, str], limit_s: float) -> str:
    """Return what a program prints; it has no input, and runs in `/`. What it leaves behind is killed.

    Raises OSError, subprocess.TimeoutExpired, and ValueError for more than `MOST_BYTES` and for what is no text.
    """
    deadline = time.monotonic() + limit_s
    child = subprocess.Popen(
        command,
        env=environment,
        cwd="/",  # Python 3.10 imports from the working directory; it knows neither -P nor PYTHONSAFEPATH
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert child.stdout is not None, "a pipe"
    try:
        printed = _read(child.stdout.fileno(), deadline, subprocess.TimeoutExpired(command, limit_s))
        child.wait(max(0.0, deadline - time.monotonic()))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
    return printed.decode()


def _read(descriptor: int, deadline: float, too_late: Exception) -> bytes:
    pipe, printed = select.poll(), bytearray()
    pipe.register(descriptor, select.POLLIN)
    while len(printed) <= MOST_BYTES:
        if not pipe.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise too_late
        if not (part := os.read(descriptor, 2**16)):
            return bytes(printed)
        printed += part
    raise ValueError(f"it printed more than {MOST_BYTES} bytes")
