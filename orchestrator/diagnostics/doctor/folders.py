"""Checks of the work directory: writable, visible to the nodes, free space."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from orchestrator.diagnostics.doctor.finding import Finding, error, note, ok, warning
from trials.files.path_owners import untrusted_writers
from trials.ledger.location import NETWORK_FILE_SYSTEMS, file_system

PROBE_BYTES = 2**20
MIN_FREE_GIB = 1.0
MIN_FREE_FILES = 10_000
CLOCK_SLACK_S = 5.0

_OTHER_FOLDER = "use another folder: work_dir in the search file, or --work-dir"


def check_folder(path: Path, runs_on_nodes: bool, is_sandbox: bool) -> Iterator[Finding]:
    """Check a work directory that orchestrator/diagnostics/preflight/work_dir.py accepts; it need not exist.

    `runs_on_nodes`: jobs on other machines write to it. The write test uses a folder of its own, which is removed.
    """
    nearest = next(folder for folder in (path, *path.parents) if folder.exists())
    words = "exists" if nearest == path else f"will be created in {nearest}"
    yield ok("work_dir", f"{path} {words}")
    yield folder_sharing_finding(path, file_system(nearest.resolve()), runs_on_nodes, is_sandbox)
    yield from write_access_findings(path)
    yield from writing_findings(nearest)
    yield from room_findings(nearest)


def folder_sharing_finding(path: Path, kind: str | None, runs_on_nodes: bool, is_sandbox: bool) -> Finding:
    """Finding about the file system, whose type is `kind`; only a job on another node can prove that nodes share it."""
    named = f"{path} is on {kind or 'a file system of unknown type'}"
    if not runs_on_nodes:
        return ok("file_system", f"{named}; all ranks run on this machine")
    if is_sandbox:
        return ok("file_system", f"{named}; the sandbox's nodes are this machine")
    if kind in NETWORK_FILE_SYSTEMS:
        return ok("file_system", f"{named}, which nodes can share; --submit-test verifies it")
    fix = "use a folder that all nodes share, or verify with parlay doctor --submit-test that they share this one"
    return warning("file_system", f"{named}, which is usually local to this machine", fix)


def write_access_findings(path: Path) -> Iterator[Finding]:
    """Findings for the deepest folder on the path in which a group may rename files. Wider access is refused
    earlier."""
    for writer in [*untrusted_writers(path)][-1:]:
        words = f"{writer.name} can write to {writer.path} and could replace your folder with theirs"
        if writer.path.stat().st_uid == os.geteuid():
            yield warning("others_write", words, f"chmod g-w,o-w {writer.path}; or {_OTHER_FOLDER}")
        else:
            yield note("others_write", words, f"accept it if you trust them with your jobs; or {_OTHER_FOLDER}")


def writing_findings(nearest: Path) -> Iterator[Finding]:
    """Write, sync and rename a file, and compare the file system's clock with this machine's."""
    tried = nearest / f".parlay-doctor-{secrets.token_hex(4)}"
    try:
        tried.mkdir(mode=0o700)
        began = time.time()
        _write(tried / "part")
        (tried / "part").rename(tried / "whole")
        stamped, ended = (tried / "whole").stat().st_mtime, time.time()
    except OSError as failed:
        yield error(
            "writable",
            f"no file of {PROBE_BYTES // 2**20} MiB could be written to {nearest}: {failed.strerror}",
            _OTHER_FOLDER,
        )
        return
    finally:
        shutil.rmtree(tried, ignore_errors=True)
    yield ok("writable", f"{PROBE_BYTES // 2**20} MiB were written, synced and renamed in {ended - began:.2f} s")
    yield folder_clock_finding(began - stamped if stamped < began else max(0.0, stamped - ended))


def folder_clock_finding(apart_s: float) -> Finding:
    """Finding for a clock difference of at least `apart_s`."""
    if apart_s <= CLOCK_SLACK_S:
        return ok("clock", "this machine's clock agrees with the file system's")
    words = f"this machine's clock and the file system's are {apart_s:.0f} s apart"
    return warning("clock", words, "report it to the site: heartbeats, leases and munge depend on clocks")


def room_findings(nearest: Path) -> Iterator[Finding]:
    """Free space and free inodes of the file system; a quota may be lower."""
    found = os.statvfs(nearest)
    free_gib = found.f_bavail * found.f_frsize / 2**30
    if free_gib < MIN_FREE_GIB:
        yield warning("space", f"{free_gib:.2f} GiB are free at {nearest}", f"make room, or {_OTHER_FOLDER}")
    else:
        yield ok("space", f"{free_gib:.0f} GiB are free")
    if found.f_files and found.f_favail < MIN_FREE_FILES:
        words = f"{found.f_favail} inodes are free at {nearest}; a trial needs some tens"
        yield note("files", words, f"make room, or {_OTHER_FOLDER}")


def _write(path: Path) -> None:
    with path.open("xb") as stream:
        stream.write(secrets.token_bytes(PROBE_BYTES))
        stream.flush()
        os.fsync(stream.fileno())
