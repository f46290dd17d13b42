"""A thread in each rank that ends the rank when nobody waits for it or nothing moves. Imports no torch."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback

from trials.train.environment import RankEnvironment
from trials.train.failures import EXCERPT_CHARACTERS
from trials.train.report import Report
from trials.trial import FailureReason

INTERVAL_S = 0.5
HANG_LIMIT_S = 300.0
"""No import, no build and no single step of a trial takes longer unless something is stuck."""


class Watchdog(threading.Thread):
    """Touches the heartbeat, and ends this process at once when its parent is gone, when another rank has failed (a
    collective on a GPU would wait for it for minutes), or when there was no progress for `hang_limit_s`."""

    def __init__(self, report: Report, env: RankEnvironment, hang_limit_s: float = HANG_LIMIT_S):
        super().__init__(name="watchdog", daemon=True)
        self._report = report
        self._parent_pid = env.parent_pid
        self._hang_limit_s = hang_limit_s
        self._watched = threading.get_ident()

    def run(self) -> None:
        while True:
            self._report.beat()
            if self._is_orphan() or self._report.has_failed():
                _exit()
            if time.monotonic() - self._report.last_progress > self._hang_limit_s:
                self._report.fail(FailureReason.HANG, self._describe_hang())
                _exit()
            time.sleep(INTERVAL_S)

    def _is_orphan(self) -> bool:
        return self._parent_pid is not None and os.getppid() != self._parent_pid

    def _describe_hang(self) -> str:
        frame = sys._current_frames().get(self._watched)
        stack = "".join(traceback.format_stack(frame))[-EXCERPT_CHARACTERS:]
        return f"no progress for {self._hang_limit_s:.0f} s; the rank stands at\n{stack}"


def _exit() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
