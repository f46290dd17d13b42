"""What a command's exit status means; docs/contract.md."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.lifecycle.signals import CancelOnSignal, DriverSignals


class ExitCode(IntEnum):
    SUCCESS = 0
    INTERNAL_ERROR = 1
    BAD_INPUT = 2
    NO_MEASUREMENT = 3
    UNKNOWN_ID = 4
    HELD_BY_ANOTHER = 5
    REFUSED = 6
    CANCEL_INCOMPLETE = 7
    DOCTOR_FOUND_ERROR = 8
    REPLAY_SLOWER = 10
    REPLAY_FASTER = 11
    REPLAY_IMPOSSIBLE = 12
    REPLAY_INCONCLUSIVE = 13
    STOPPED_EARLY = 75
    INTERRUPTED = 130


def code_after(signals: DriverSignals | CancelOnSignal) -> ExitCode:
    """How a command leaves that a signal has stopped."""
    return ExitCode.STOPPED_EARLY if signals.is_terminated else ExitCode.INTERRUPTED
