"""Who may drive a search: one lease, kept as lease.json in its folder, where every machine can see it.

The race for a free lease is decided by creating `.lease/<fencing number>.json` with a hard link, which has one winner
on every file system, also between machines (NFS included); file locks do not: on Lustre and BeeGFS they may only hold
within one node. Each acquisition has a higher number, so whatever an old holder still writes can be told from the new
one's: the journal and the ledger refuse it (`FencedError`).
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any

from orchestrator.common.process_identity import boot_id, start_ticks
from search_spaces.errors import ExternalError, format_value
from trials.files.folders import SearchFolder, read_json, sync_folder, write_json
from trials.trial import require_schema, utc_seconds, utc_text

LEASE_SCHEMA = "parlay.lease/1"

LEASE_DURATION_S = 120.0
"""How long a lease lasts without a heartbeat: well above the skew between a cluster's clocks."""

HEARTBEAT_S = LEASE_DURATION_S / 4

HELD_FIX = "wait for it, or cancel the search"
"""What to do about a search that somebody else drives."""


class LeaseDamaged(ExternalError):
    """A file of the lease holds something else; the text names it."""

    def __init__(self, path: Path, why: str):
        fix = f"a driver that is alive writes it anew within {HEARTBEAT_S:.0f} s; where none is, remove {path}"
        super().__init__(f"{path} is no lease: {why}", fix)


class LeaseLost(Exception):
    """Another driver took this one's lease over: it stops and writes nothing more."""


@dataclass(frozen=True)
class Lease:
    """A driver's hold on a search. Times are UTC seconds since the epoch.

    `pid_started` is the process's start time in clock ticks since boot, so that a reused pid is not the old process.
    `pid_scope` names the boot and the pid namespace within which the two mean anything. Both are None where there is
    no /proc. A released lease expires with its last heartbeat.
    """

    search_id: str
    fencing: int
    host: str
    pid: int
    pid_started: int | None
    pid_scope: str | None
    heartbeat_at: float
    expires: float

    @property
    def key(self) -> tuple[str, int]:
        return self.search_id, self.fencing

    def is_held(self, now: float) -> bool:
        """Whether the holder may still be at work, or go back to it.

        A process of this machine holds its lease as long as it lives: one that was stopped, or whose machine slept,
        goes on where it was. Of any other only the heartbeat tells.
        """
        if self.expires <= self.heartbeat_at or self.key in _unreleased:
            return False
        lives = self._is_running()
        return self.is_fresh(now) if lives is None else lives

    def is_fresh(self, now: float) -> bool:
        """Whether the last heartbeat is no older than the lease lasts."""
        return now < self.expires

    def _is_running(self) -> bool | None:
        """Whether the holder's process is there; None where that cannot be told from here."""
        if self.pid_scope is None or self.pid_scope != _pid_scope():
            return None
        return start_ticks(self.pid) == self.pid_started

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": LEASE_SCHEMA,
            "search_id": self.search_id,
            "fencing": self.fencing,
            "host": self.host,
            "pid": self.pid,
            "pid_started": self.pid_started,
            "pid_scope": self.pid_scope,
            "heartbeat_at": utc_text(self.heartbeat_at),
            "expires": utc_text(self.expires),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Lease:
        """The inverse of `to_json`; ValueError or TypeError for what it is not."""
        require_schema(data, LEASE_SCHEMA)
        for name, kinds in _TYPES.items():
            if type(data.get(name)) not in kinds:
                raise ValueError(f"its {name} is {format_value(data.get(name)):.80}")
        values = {name: value for name, value in data.items() if name != "schema"}
        times = {name: utc_seconds(data[name]) for name in ("heartbeat_at", "expires")}
        return cls(**values | times)


_TYPES: Mapping[str, tuple[type, ...]] = {
    "search_id": (str,),
    "fencing": (int,),
    "host": (str,),
    "pid": (int,),
    "pid_started": (int, NoneType),
    "pid_scope": (str, NoneType),
    "heartbeat_at": (str,),
    "expires": (str,),
}

_unreleased: dict[tuple[str, int], tuple[SearchFolder, Lease]] = {}
"""Leases that this process has given up and could not write as free, on a full disk: nobody holds them."""


class LeaseHeld(Exception):
    """Another driver holds the search; `lease` is its lease, `now` when it was looked at (UTC seconds)."""

    def __init__(self, lease: Lease, now: float):
        words = (
            f"search {lease.search_id} is driven by process {lease.pid} on {lease.host}, "
            f"last heard of at {utc_text(lease.heartbeat_at)}"
        )
        if not lease.is_fresh(now):
            words += (
                f"; it lives but does not answer: if it was stopped, `kill -CONT {lease.pid}` lets it go on, "
                f"`kill -KILL {lease.pid}` ends it and frees the search"
            )
        super().__init__(words)
        self.lease = lease


def acquire_lease(folder: SearchFolder, now: float, duration_s: float = LEASE_DURATION_S) -> Lease:
    """Take the lease of the search, with a new and higher fencing number.

    A lease is free when there was none, when it was released, when its holder has died on this machine, or when the
    heartbeat of a holder on another one is older than it lasts. Raises LeaseHeld otherwise. `now` is UTC seconds since
    the epoch.
    """
    newest = current_lease(folder)
    if newest is not None and newest.is_held(now):
        raise LeaseHeld(newest, now)
    lease = _new_lease(folder, 1 if newest is None else newest.fencing + 1, now, duration_s)
    if not _claim(folder, lease):
        raise LeaseHeld(_read_claim(folder, lease.fencing), now)
    _unreleased.pop(lease.key, None)  # of another folder of that name
    try:
        write_json(folder.lease, lease.to_json())
    except OSError:
        _unreleased[lease.key] = folder, lease
        raise
    return lease


def renew_lease(folder: SearchFolder, lease: Lease, now: float, duration_s: float = LEASE_DURATION_S) -> Lease:
    """The same lease with a new heartbeat; LeaseLost when another driver took over.

    One that ran out is renewed if nobody came: a driver held up by a hanging file system goes on afterwards.
    """
    _require_newest(folder, lease)
    renewed = replace(lease, heartbeat_at=now, expires=now + duration_s)
    write_json(folder.lease, renewed.to_json())
    return renewed


def release_lease(folder: SearchFolder, lease: Lease, now: float) -> None:
    """Free the lease for the next driver at once. LeaseLost when another one already has it.

    Where that cannot be written, on a full disk, it is free for this process all the same; for others it is once
    `retry_releases` has written it, or this process has ended.
    """
    try:
        _free(folder, lease, now)
    except OSError:
        _unreleased[lease.key] = folder, lease


def retry_releases(now: float) -> None:
    """Free what `release` could not, as far as it can be now: for a process that goes on after its drivers."""
    for key, (folder, lease) in list(_unreleased.items()):
        try:
            _free(folder, lease, now)
        except (
            OSError,
            ExternalError,
        ):  # also where another's damaged lease lies: it keeps no other from being freed
            continue
        except LeaseLost:
            pass
        _unreleased.pop(key, None)


def _free(folder: SearchFolder, lease: Lease, now: float) -> None:
    _require_newest(folder, lease)
    write_json(folder.lease, replace(lease, heartbeat_at=now, expires=now).to_json())


def current_lease(folder: SearchFolder) -> Lease | None:
    """The newest lease of the search, held or not; None where it never had one. Raises LeaseDamaged.

    A claim without its lease.json is a driver about to write it, or one that died there.
    """
    written = _read(folder.lease)
    newest = max(_claims(folder), default=0)
    if newest > (0 if written is None else written.fencing):
        return _read_claim(folder, newest)
    return written


def lease_holder(folder: SearchFolder, now: float) -> Lease | None:
    """The lease of whoever drives the search, or may go back to it; None where nobody does."""
    newest = current_lease(folder)
    return newest if newest is not None and newest.is_held(now) else None


def require_no_holder(folder: SearchFolder, now: float) -> None:
    """Raises LeaseHeld where somebody drives the search."""
    if (lease := lease_holder(folder, now)) is not None:
        raise LeaseHeld(lease, now)


def _new_lease(folder: SearchFolder, fencing: int, now: float, duration_s: float) -> Lease:
    pid, scope = os.getpid(), _pid_scope()
    return Lease(
        search_id=folder.search_id,
        fencing=fencing,
        host=socket.gethostname(),
        pid=pid,
        pid_started=start_ticks(pid) if scope else None,
        pid_scope=scope,
        heartbeat_at=now,
        expires=now + duration_s,
    )


def _claim(folder: SearchFolder, lease: Lease) -> bool:
    """Whether this process is the one that got the lease's number."""
    claim = _claim_file(folder, lease.fencing)
    claim.parent.mkdir(mode=0o700, exist_ok=True)
    mine = claim.with_name(f"{secrets.token_hex(8)}.part")
    write_json(mine, lease.to_json())
    try:
        os.link(mine, claim)
        sync_folder(claim.parent)
        return True
    except FileExistsError:
        # NFS may repeat a link that succeeded and then say that it exists: two names tell that it is ours.
        return mine.stat().st_nlink == 2
    finally:
        mine.unlink()


def _require_newest(folder: SearchFolder, lease: Lease) -> None:
    """LeaseLost where a later number is claimed; whatever lies in lease.json, its holder writes it anew."""
    if (number := max(_claims(folder), default=0)) > lease.fencing:
        newest = _read_claim(folder, number)
        raise LeaseLost(f"search {lease.search_id} was taken over by process {newest.pid} on {newest.host}")


def _claims(folder: SearchFolder) -> list[int]:
    return [int(path.stem) for path in (folder.path / ".lease").glob("*.json") if path.stem.isdecimal()]


def _claim_file(folder: SearchFolder, fencing: int) -> Path:
    return folder.path / ".lease" / f"{fencing:06d}.json"


def _read_claim(folder: SearchFolder, fencing: int) -> Lease:
    path = _claim_file(folder, fencing)
    lease = _read(path)
    if lease is None:
        raise LeaseDamaged(path, "it is gone")
    return lease


def _read(path: Path) -> Lease | None:
    """What this file says; None where there is none."""
    try:
        data = read_json(path)
        return None if data is None else Lease.from_json(data)
    except (ValueError, TypeError) as error:
        raise LeaseDamaged(path, str(error)) from error


def _pid_scope() -> str | None:
    """The boot and the pid namespace this process lives in."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None
