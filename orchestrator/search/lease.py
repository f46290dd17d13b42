"""Lease of a search: the right to drive it, kept as lease.json in its folder, visible to every machine.

The race for a free lease is decided by a hard link `.lease/<fencing number>.json`, which has exactly one winner on
every file system and between machines (NFS included). File locks are not enough: on Lustre and BeeGFS they may hold
within one node only. Every acquisition has a higher number, and the journal and the ledger refuse writes under an older
one (`FencedError`).
"""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.launchers.process_identity import boot_id, start_ticks
from search_spaces.decoding import JsonObject
from search_spaces.errors import ExternalError
from trials.files.folders import DamagedFile, SearchFolder, read_json, sync_folder, write_json
from trials.trial import UtcSeconds, utc_text

LEASE_DURATION_S = 120.0
"""Seconds that a lease lasts without a heartbeat: well above the clock skew of a cluster."""

HEARTBEAT_S = LEASE_DURATION_S / 4

HELD_FIX = "wait for it, or cancel the search"
"""Fix for a search that another driver holds."""


class LeaseDamaged(ExternalError):
    """A lease file with other content; the message names it."""

    def __init__(self, path: Path, why: str):
        fix = f"a live driver rewrites it within {HEARTBEAT_S:.0f} s; if there is none, remove {path}"
        super().__init__(f"{path} is not a valid lease: {why}", fix)


class LeaseLost(Exception):
    """Another driver took the lease over: this one stops and writes nothing more."""


@dataclass(frozen=True)
class Lease(JsonObject):
    """A driver's lease of a search. Times are UTC seconds since the epoch.

    `pid_started` is the process's start time in clock ticks since boot, so that a reused pid is not mistaken for it.
    `pid_scope` names the boot and the pid namespace in which both are valid. Both are None without /proc. A released
    lease expires at its last heartbeat.
    """

    SCHEMA = "parlay.lease/1"

    search_id: str
    fencing: int
    host: str
    pid: int
    pid_started: int | None
    pid_scope: str | None
    heartbeat_at: UtcSeconds
    expires: UtcSeconds

    @property
    def key(self) -> tuple[str, int]:
        return self.search_id, self.fencing

    def is_held(self, now: float) -> bool:
        """True if the holder may still be working, or may continue.

        A process on this machine holds its lease as long as it lives: after a stop signal or a suspended machine it
        continues. A process elsewhere is judged by its heartbeat alone.
        """
        if self.expires <= self.heartbeat_at or self.key in _unreleased:
            return False
        lives = self._is_running()
        return self.is_fresh(now) if lives is None else lives

    def is_fresh(self, now: float) -> bool:
        """True if the last heartbeat is not older than the lease's duration."""
        return now < self.expires

    def _is_running(self) -> bool | None:
        """True if the holder's process exists; None where that is unknown here."""
        if self.pid_scope is None or self.pid_scope != _pid_scope():
            return None
        return start_ticks(self.pid) == self.pid_started


_unreleased: dict[tuple[str, int], tuple[SearchFolder, Lease]] = {}
"""Leases that this process has released but could not write, because of a full disk. They count as free."""


class LeaseHeld(Exception):
    """Another driver holds the search: `lease` is its lease, `now` the time of the check (UTC seconds)."""

    def __init__(self, lease: Lease, now: float):
        words = (
            f"search {lease.search_id} is driven by process {lease.pid} on {lease.host}, "
            f"last heartbeat {utc_text(lease.heartbeat_at)}"
        )
        if not lease.is_fresh(now):
            words += (
                f"; the process exists but does not respond: `kill -CONT {lease.pid}` resumes it if it was stopped, "
                f"`kill -KILL {lease.pid}` ends it and frees the search"
            )
        super().__init__(words)
        self.lease = lease


def acquire_lease(folder: SearchFolder, now: float, duration_s: float = LEASE_DURATION_S) -> Lease:
    """Take the lease with a new, higher fencing number; LeaseHeld if it is not free. `now` is UTC seconds.

    It is free if there was none, if it was released, if its holder on this machine is dead, or if the heartbeat of a
    holder elsewhere is older than the lease's duration.
    """
    newest = current_lease(folder)
    if newest is not None and newest.is_held(now):
        raise LeaseHeld(newest, now)
    lease = _new_lease(folder, 1 if newest is None else newest.fencing + 1, now, duration_s)
    if not _claim(folder, lease):
        raise LeaseHeld(_read_claim(folder, lease.fencing), now)
    _unreleased.pop(lease.key, None)  # left by another folder of the same name
    try:
        write_json(folder.lease, lease.to_json())
    except OSError:
        _unreleased[lease.key] = folder, lease
        raise
    return lease


def renew_lease(folder: SearchFolder, lease: Lease, now: float, duration_s: float = LEASE_DURATION_S) -> Lease:
    """Renew the heartbeat; LeaseLost if another driver took over.

    An expired lease that no one took is renewed too: a driver delayed by a hanging file system continues.
    """
    _require_newest(folder, lease)
    renewed = replace(lease, heartbeat_at=now, expires=now + duration_s)
    write_json(folder.lease, renewed.to_json())
    return renewed


def release_lease(folder: SearchFolder, lease: Lease, now: float) -> None:
    """Free the lease for the next driver at once; LeaseLost if another one has it.

    If a full disk prevents the write, it is free for this process only; for others once `retry_releases` has written
    it, or this process has ended.
    """
    try:
        _free(folder, lease, now)
    except OSError:
        _unreleased[lease.key] = folder, lease


def retry_releases(now: float) -> None:
    """Retry the releases that could not be written: for a process that outlives its drivers."""
    for key, (folder, lease) in list(_unreleased.items()):
        try:
            _free(folder, lease, now)
        except (
            OSError,
            ExternalError,
        ):  # one damaged lease must not keep the others from being released
            continue
        except LeaseLost:
            pass
        _unreleased.pop(key, None)


def _free(folder: SearchFolder, lease: Lease, now: float) -> None:
    _require_newest(folder, lease)
    write_json(folder.lease, replace(lease, heartbeat_at=now, expires=now).to_json())


def current_lease(folder: SearchFolder) -> Lease | None:
    """The newest lease of the search, held or not; None if there was none. Raises LeaseDamaged.

    A claim without its lease.json belongs to a driver that is about to write it, or that died before.
    """
    written = _read(folder.lease)
    newest = max(_claims(folder), default=0)
    if newest > (0 if written is None else written.fencing):
        return _read_claim(folder, newest)
    return written


def lease_holder(folder: SearchFolder, now: float) -> Lease | None:
    """The lease of the current driver, None without one."""
    newest = current_lease(folder)
    return newest if newest is not None and newest.is_held(now) else None


def require_no_holder(folder: SearchFolder, now: float) -> None:
    """Raise LeaseHeld if the search has a driver."""
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
    """Claim the lease's fencing number. True if this process got it."""
    claim = _claim_file(folder, lease.fencing)
    claim.parent.mkdir(mode=0o700, exist_ok=True)
    mine = claim.with_name(f"{secrets.token_hex(8)}.part")
    write_json(mine, lease.to_json())
    try:
        os.link(mine, claim)
        sync_folder(claim.parent)
        return True
    except FileExistsError:
        # NFS may repeat a link that succeeded and report that it exists: a second name proves that it is ours.
        return mine.stat().st_nlink == 2
    finally:
        mine.unlink()


def _require_newest(folder: SearchFolder, lease: Lease) -> None:
    """LeaseLost if a higher number is claimed. The content of lease.json does not count: its holder rewrites it."""
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
        raise LeaseDamaged(path, "the file is missing")
    return lease


def _read(path: Path) -> Lease | None:
    """The lease in this file, None without a file."""
    try:
        data = read_json(path)
        return None if data is None else Lease.from_json(data)
    except ValueError as error:
        raise LeaseDamaged(path, error.why if isinstance(error, DamagedFile) else str(error)) from error


def _pid_scope() -> str | None:
    """Boot id and pid namespace of this process."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None
