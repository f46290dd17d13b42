"""Watchdog thread that ends a rank whose launcher is gone or that makes no progress. Imports no torch."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from contextlib import suppress

from trials.measure_rules import MeasureRules
from trials.ranks.environment import RankEnvironment
from trials.ranks.failures import EXCERPT_CHARACTERS
from trials.ranks.program import exit_at_once
from trials.ranks.report import Report
from trials.trial import FailureReason

INTERVAL_S = 0.5
MAX_HANG_S = 300.0
"""Limit of any hang: no import, build or single step of a trial takes longer."""
MIN_HANG_S = 8.0
"""Least limit of a hang: importing torch takes 2 to 4 s, and longer for several ranks on few cores."""


def hang_limit_s(rules: MeasureRules) -> float:
    """Seconds without progress after which a trial hangs: half its time limit where that is short, so that it reports
    the hang before its launcher ends it, but never less than a start needs."""
    return min(MAX_HANG_S, max(MIN_HANG_S, rules.time_limit_s / 2))


def silence_reason(rules: MeasureRules) -> FailureReason:
    """The reason for a trial that hung: where the time limit was over before, that rather than a hang."""
    return FailureReason.HANG if rules.time_limit_s > MIN_HANG_S else FailureReason.TIME_LIMIT


class Watchdog(threading.Thread):
    """Touches the heartbeat, and ends this process at once when its parent is gone, when another rank has failed (a
    collective on a GPU would wait for it for minutes), or, with `reason`, without progress for `hang_limit_s`."""

    def __init__(
        self,
        report: Report,
        env: RankEnvironment,
        hang_limit_s: float,
        reason: FailureReason = FailureReason.HANG,
    ):
        super().__init__(name="watchdog", daemon=True)
        self._report = report
        self._parent_pid = env.parent_pid
        self._hang_limit_s = hang_limit_s
        self._reason = reason
        self._watched = threading.get_ident()

    def run(self) -> None:
        while True:
            if self._is_orphan():
                self._end()
            failure = self._failure()
            if failure is FailureReason.HANG:  # all ranks' stacks together show who waits for whom
                print(f"no progress; this rank is at\n{self._standing()}", file=sys.stderr)
            if failure is not None:
                self._end()
            time.sleep(INTERVAL_S)

    def _failure(self) -> FailureReason | None:
        """The attempt's failure as reported by some rank, or this rank's hang. A folder that cannot be reached (full
        disk, stale mount) is ignored; a hanging rank ends all the same."""
        failure = None
        with suppress(OSError):
            self._report.beat()
        with suppress(OSError):
            failure = self._report.failure()
        if failure is None and self._is_stuck():
            failure = self._reason
            with suppress(OSError):
                self._report.fail(self._reason, self._describe_hang())
        return failure

    def _is_orphan(self) -> bool:
        return self._parent_pid is not None and os.getppid() != self._parent_pid

    def _is_stuck(self) -> bool:
        return time.monotonic() - self._report.last_progress > self._hang_limit_s

    def _describe_hang(self) -> str:
        return f"no progress for {self._hang_limit_s:.0f} s; the rank is at\n{self._standing()}"

    def _standing(self) -> str:
        """The stack of the thread that made this watchdog."""
        frame = sys._current_frames().get(self._watched)
        return "".join(traceback.format_stack(frame))[-EXCERPT_CHARACTERS:]

    def _end(self) -> None:
        """End this process at once."""
        exit_at_once(1)
