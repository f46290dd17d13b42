"""Private folders (0700) with an owner file, so that folders of killed processes can be found and removed.

They are folders below the temporary directory, and folders of searches that are being created.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.launchers.process_identity import boot_id, start_ticks

_PREFIX = "parlay-"
_OWNER = "owner.json"
_OLD_S = 24 * 3600.0
_LONGEST_PARENT = 24  # bytes: keeps the paths of Ray's sockets within the kernel's limit of 107


def make_private_folder() -> Path:
    """Create a folder (0700) owned by this process. Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_parent()))
    write_owner(folder)
    return folder


def write_owner(folder: Path) -> None:
    """Record this process as the folder's owner. Raises OSError."""
    (folder / _OWNER).write_text(json.dumps(_this_process()))


def remove_owner(folder: Path) -> None:
    """Remove the record of the folder's owner. Raises OSError."""
    (folder / _OWNER).unlink()


def remove_abandoned() -> None:
    """Remove this user's folders whose owner has certainly ended. Raises OSError when the parent cannot be read.

    Folders stay if their owner is unknown, on another machine, or in another PID namespace.
    """
    for folder in _parent().glob(f"{_PREFIX}*"):
        owner = _owner(folder)
        if owner is not None and _is_gone(owner):
            shutil.rmtree(folder, ignore_errors=True)  # follows no link


def remove_unfinished(parent: Path) -> None:
    """Remove this user's half-created folders of searches: those whose process has ended, and those a day old.

    Creating one takes seconds. Raises OSError as above.
    """
    for folder in parent.glob(".*-*.part"):
        owner = _owner(folder)
        if (owner is not None and _is_gone(owner)) or _is_old(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_old(folder: Path) -> bool:
    found = folder.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return is_ours and time.time() - found.st_mtime > _OLD_S


def _parent() -> Path:
    wanted = tempfile.gettempdir()
    return Path(wanted if len(os.fsencode(wanted)) <= _LONGEST_PARENT else "/tmp")


def _this_process() -> dict[str, Any]:
    pid = os.getpid()
    return {**_machine(), "pid": pid, "start_ticks": start_ticks(pid)}


def _machine() -> dict[str, str]:
    """Host, boot and PID namespace, within which a pid is unique: containers may share a directory but no pids."""
    return {"host": socket.gethostname(), "boot_id": boot_id(), "pid_namespace": os.readlink("/proc/self/ns/pid")}


def _owner(folder: Path) -> Mapping[str, Any] | None:
    """The folder's recorded owner; None unless this user owns folder and file, and neither is a symlink."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            file = os.open(_OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
            with open(file, encoding="utf-8") as stream:
                if not (_is_own(descriptor) and _is_own(file) and stat.S_ISREG(os.fstat(file).st_mode)):
                    return None
                owner = json.load(stream)
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return None
    return owner if isinstance(owner, dict) else None


def _is_own(descriptor: int) -> bool:
    return os.fstat(descriptor).st_uid == os.geteuid()


def _is_gone(owner: Mapping[str, Any]) -> bool:
    here = _machine()
    if owner.get("host") != here["host"] or not isinstance(owner.get("pid"), int):
        return False
    if owner.get("boot_id") != here["boot_id"]:
        return True
    return owner.get("pid_namespace") == here["pid_namespace"] and start_ticks(owner["pid"]) != owner.get("start_ticks")
