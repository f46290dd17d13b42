"""What a driver that leaves knows of its jobs beside the record, for the next one: how long something is in doubt.

A driver that lives for a turn only (`parlay advance`) would otherwise begin every wait anew, and never end one. Whoever
takes the search over takes the file away with it: what an earlier driver saw holds only while nobody has looked since,
and one that is killed leaves none, so that its successor waits anew, which is always safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.common.process_identity import boot_id
from trials.files.folders import read_json, write_json
from trials.trial import require_schema

HANDOVER_SCHEMA = "parlay.launcher/1"


@dataclass(frozen=True)
class HandoverEntry:
    """Of one attempt: for how many seconds it has been submitted, in doubt and absent, None where it is not; whether
    its end was asked for; and what `TrackedJob` says of its restarts and twins."""

    submitted_for_s: float | None = None
    unconfirmed_for_s: float | None = None
    absent_for_s: float | None = None
    cancelled: bool = False
    is_described: bool = False
    restart: int = 0
    started_at: float | None = None
    twins: Mapping[str, float] = field(default_factory=dict)

    def later(self, seconds: float) -> HandoverEntry:
        """The same after so many more seconds."""
        ages = {name: getattr(self, name) for name in ("submitted_for_s", "unconfirmed_for_s", "absent_for_s")}
        grown = {
            name: None if submission_order is None else submission_order + seconds
            for name, submission_order in ages.items()
        }
        return HandoverEntry(**{**asdict(self), **grown})


@dataclass(frozen=True)
class ClockReading:
    """Now: `monotonic_s` counts since this machine's `boot`, `utc_s` is a clock that people set."""

    boot: str
    monotonic_s: float
    utc_s: float

    def since(self, earlier: ClockReading) -> float:
        """Seconds that have passed at least, as far as clocks tell: on another machine only the one that people set."""
        if self.boot == earlier.boot:
            return max(0.0, self.monotonic_s - earlier.monotonic_s)
        return max(0.0, self.utc_s - earlier.utc_s)


class HandoverFile:
    """The file at `path`; without one nothing is remembered. The clocks are `Slurm.monotonic` and `Slurm.now`."""

    def __init__(self, path: Path | None, monotonic: Callable[[], float], utc: Callable[[], float]):
        self._path = path
        self._monotonic = monotonic
        self._utc = utc

    def take(self) -> dict[str, HandoverEntry]:
        """What the last driver left, by attempt key, and the file is gone; {} where it is not there or not whole."""
        if self._path is None:
            return {}
        try:
            data = read_json(self._path)
            self._path.unlink(missing_ok=True)
            return {} if data is None else _handover_entries(data, self._now())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def leave(self, attempts: Mapping[str, HandoverEntry]) -> None:
        """Write down what the next driver is to know; where that fails it waits anew."""
        if self._path is None or not attempts:
            return
        known = {key: asdict(attempt) for key, attempt in attempts.items()}
        with suppress(OSError):
            write_json(self._path, {"schema": HANDOVER_SCHEMA, "at": asdict(self._now()), "attempts": known})

    def _now(self) -> ClockReading:
        try:
            boot = boot_id()
        except OSError:
            boot = ""
        return ClockReading(boot, self._monotonic(), self._utc())


def _handover_entries(data: Mapping[str, Any], now: ClockReading) -> dict[str, HandoverEntry]:
    """ValueError, KeyError, TypeError or AttributeError for what no driver wrote."""
    require_schema(data, HANDOVER_SCHEMA)
    passed_s = now.since(ClockReading(**data["at"]))
    return {key: HandoverEntry(**attempt).later(passed_s) for key, attempt in data["attempts"].items()}
