"""Handover file: how long jobs have been unconfirmed or absent, left by one driver for the next.

A driver that runs for one iteration (`parlay advance`) would otherwise restart every wait, and never finish one. The
next driver removes the file when it reads it, since its content holds only while no other driver polls. A killed driver
leaves none, so its successor restarts the waits, which is always safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from orchestrator.launchers.process_identity import boot_id
from search_spaces.decoding import decode, decode_value, encode, require_schema
from trials.files.folders import read_json, write_json

HANDOVER_SCHEMA = "parlay.launcher/1"


_MOMENTS = ("submitted_at", "unconfirmed_since", "absent_since")


@dataclass(kw_only=True)
class HandoverState:
    """State of an attempt's job that outlives its driver. Times are `Slurm.monotonic`'s, but `started_at`, which is
    Slurm's own.

    `unconfirmed_since` is set while it is unknown whether the job was submitted; `is_described` once the controller was
    queried for requeues before this driver came. `duplicates` are other jobs of its name, with the node-seconds they
    held.
    """

    submitted_at: float | None = None
    unconfirmed_since: float | None = None
    absent_since: float | None = None
    cancelled: bool = False
    is_described: bool = True
    restart: int = 0
    started_at: float | None = None
    duplicates: dict[str, float] = field(default_factory=dict)

    def on_clock(self, ahead_s: float) -> HandoverState:
        """Return the state by a monotonic clock that is so much ahead of that of its driver."""
        known = {name: at for name in _MOMENTS if (at := getattr(self, name)) is not None}
        return replace(self, **{name: at + ahead_s for name, at in known.items()})


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

    def load(self) -> dict[str, HandoverState]:
        """Read and remove the last driver's states, by attempt key; {} for a missing or damaged file."""
        if self._path is None:
            return {}
        try:
            data = read_json(self._path)
            self._path.unlink(missing_ok=True)
            return {} if data is None else _states(data, self._now())
        except (OSError, ValueError):
            return {}

    def save(self, attempts: Mapping[str, HandoverState]) -> None:
        """Write the states for the next driver; errors are ignored, and it then restarts its waits."""
        if self._path is None or not attempts:
            return
        names = [field.name for field in fields(HandoverState)]
        known = {key: encode(attempt, *names) for key, attempt in attempts.items()}
        with suppress(OSError):
            write_json(self._path, {"schema": HANDOVER_SCHEMA, "at": asdict(self._now()), "attempts": known})

    def _now(self) -> ClockReading:
        try:
            boot = boot_id()
        except OSError:
            boot = ""
        return ClockReading(boot, self._monotonic(), self._utc())


def _states(data: Mapping[str, Any], now: ClockReading) -> dict[str, HandoverState]:
    """Raises ValueError for damaged content."""
    require_schema(data, HANDOVER_SCHEMA)
    then = decode(ClockReading, data.get("at"))
    ahead_s = now.monotonic_s - now.since(then) - then.monotonic_s
    attempts = decode_value(Mapping[str, HandoverState], data.get("attempts"), "attempts")
    return {key: attempt.on_clock(ahead_s) for key, attempt in attempts.items()}
