"""Handover file: how long jobs have been unconfirmed or absent, left by one driver for the next.

A driver that runs for one iteration (`parlay advance`) would otherwise restart every wait, and never finish one. The
next driver removes the file when it reads it, since its content holds only while no other driver polls. A killed driver
leaves none, so its successor restarts the waits, which is always safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.launchers.process_identity import boot_id
from search_spaces.decoding import decode, decode_value, require_schema
from trials.files.folders import read_json, write_json

HANDOVER_SCHEMA = "parlay.launcher/1"


@dataclass(frozen=True)
class HandoverEntry:
    """State of one attempt. Durations are None where they do not apply; the other fields are those of `TrackedJob`."""

    submitted_for_s: float | None = None
    unconfirmed_for_s: float | None = None
    absent_for_s: float | None = None
    cancelled: bool = False
    is_described: bool = False
    restart: int = 0
    started_at: float | None = None
    duplicates: Mapping[str, float] = field(default_factory=dict)

    def aged_by(self, seconds: float) -> HandoverEntry:
        """Return the entry after so many more seconds."""
        ages = {name: getattr(self, name) for name in ("submitted_for_s", "unconfirmed_for_s", "absent_for_s")}
        grown = {name: None if age_s is None else age_s + seconds for name, age_s in ages.items()}
        return HandoverEntry(**{**asdict(self), **grown})


@dataclass(frozen=True)
class ClockReading:
    """Clocks at one time: `monotonic_s` counts since this machine's `boot`, `utc_s` is the system clock."""

    boot: str
    monotonic_s: float
    utc_s: float

    def since(self, earlier: ClockReading) -> float:
        """Return the seconds passed at least; after a boot or on another machine only the system clocks tell."""
        if self.boot == earlier.boot:
            return max(0.0, self.monotonic_s - earlier.monotonic_s)
        return max(0.0, self.utc_s - earlier.utc_s)


class HandoverFile:
    """The file at `path`, if any. The clocks are `Slurm.monotonic` and `Slurm.now`."""

    def __init__(self, path: Path | None, monotonic: Callable[[], float], utc: Callable[[], float]):
        self._path = path
        self._monotonic = monotonic
        self._utc = utc

    def load(self) -> dict[str, HandoverEntry]:
        """Read and remove the entries of the last driver, by attempt key; {} for a missing or damaged file."""
        if self._path is None:
            return {}
        try:
            data = read_json(self._path)
            self._path.unlink(missing_ok=True)
            return {} if data is None else _handover_entries(data, self._now())
        except (OSError, ValueError):
            return {}

    def save(self, attempts: Mapping[str, HandoverEntry]) -> None:
        """Write the entries for the next driver; errors are ignored, and it then restarts its waits."""
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
    """Raises ValueError for damaged content."""
    require_schema(data, HANDOVER_SCHEMA)
    passed_s = now.since(decode(ClockReading, data.get("at")))
    attempts = decode_value(Mapping[str, HandoverEntry], data.get("attempts"), "attempts")
    return {key: attempt.aged_by(passed_s) for key, attempt in attempts.items()}
