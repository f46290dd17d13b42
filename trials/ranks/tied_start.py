"""Start of a process that the kernel kills once the thread that started it is gone, also after a kill -9.

Standard library only and independent of other modules of Parlay: pickled by value to the nodes of a Ray cluster.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

# A preexec_fn could do the same but may deadlock in a process with threads.
_TIED = """
import os, signal, sys
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
except (ImportError, AttributeError, OSError):
    pass  # the trial program still watches PARLAY_PARENT_PID
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]} cannot be started: {error.strerror}")
"""


def tied_to_us(command: Iterable[str]) -> list[str]:
    """The command, begun by our own interpreter, which ties it to this process and then becomes it."""
    return [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command]
