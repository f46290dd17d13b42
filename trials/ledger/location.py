"""Location of the ledger: the default on local disk, and the checks on a user's own choice."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_spaces.errors import InputError, did_you_mean
from trials.files.path_owners import require_trusted_path
from trials.schema.ledger_section import DRIVERS

if TYPE_CHECKING:
    from sqlalchemy import URL

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "afs",
        "beegfs",
        "beegfs_nodev",
        "ceph",
        "cifs",
        "coda",
        "dvs",
        "fhgfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "juicefs",
        "lustre",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "pvfs2",
        "quobyte",
        "s3fs",
        "smb3",
        "smbfs",
        "sshfs",
        "wekafs",
    }
)
"""File system types in /proc/mounts (after `fuse.`) where SQLite's locks and shared memory fail between machines."""

_OCTAL = re.compile(r"\\([0-7]{3})")


def ledger_url(given: str | None = None) -> str:
    """The database URL to use: the one given, checked and made absolute, or the default on local disk.

    The default's folder is created, 0700. Raises InputError for an unknown driver, a password in the URL, and SQLite in
    memory or on a network file system.
    """
    if given is None:
        return _sqlite_url(home_folder() / "ledger.db")
    mounts = _mounts()
    return checked_url(given, default_folder(os.environ, Path.home(), os.getuid(), mounts), mounts)


def ledger_to_read(given: str | None = None) -> str:
    """The URL of a ledger to read; InputError where a named file does not exist. The default is empty until a search
    begins."""
    if given is not None and existing_ledger_url(given) is None:
        from sqlalchemy import make_url

        path = Path(make_url(ledger_url(given)).database or "")
        meant = did_you_mean(path.name, (there.name for there in path.parent.glob("*.db")))
        others = "leave it out for the default ledger; parlay ledger rebuild FOLDER makes one from search folders"
        raise _refused(
            f"there is no database {path}",
            value=given,
            rule="a ledger that is named for reading must exist",
            fix=f"{meant} Else {others}" if meant else others,
        )
    return ledger_url(given)


def existing_ledger_url(given: str | None = None) -> str | None:
    """The URL of a ledger, None where its file does not exist. No folder is created."""
    mounts = _mounts()
    local = default_folder(os.environ, Path.home(), os.getuid(), mounts)
    if given is None:
        return ledger_url() if os.path.lexists(local / "ledger.db") else None
    from sqlalchemy import make_url

    target = make_url(checked_url(given, local, mounts))
    is_file = target.get_backend_name() == "sqlite"
    return None if is_file and not os.path.lexists(target.database or "") else ledger_url(given)


def home_folder() -> Path:
    """Parlay's folder for user data that belongs to no search: on local disk, created if missing, 0700."""
    folder = default_folder(os.environ, Path.home(), os.getuid(), _mounts())
    named = _named_folder(os.environ, Path.home())
    _make_private(folder, by=named if named.resolve() == folder else folder)
    return folder


def configured_home() -> Path:
    """PARLAY_HOME, else XDG_STATE_HOME/parlay, else ~/.local/state/parlay, on whatever file system."""
    return _named_folder(os.environ, Path.home()).resolve()


def default_folder(environ: Mapping[str, str], home: Path, uid: int, mounts: str) -> Path:
    """PARLAY_HOME, else XDG_STATE_HOME/parlay, else ~/.local/state/parlay; a folder of /var/tmp if that is remote."""
    wanted = _named_folder(environ, home).resolve()
    return wanted if network_file_system(wanted, mounts) is None else Path(f"/var/tmp/parlay-{uid}")


def _named_folder(environ: Mapping[str, str], home: Path) -> Path:
    """The same path as given, with links unresolved, on whatever file system."""
    state = Path(environ.get("XDG_STATE_HOME") or "")
    usual = state / "parlay" if state.is_absolute() else home / ".local" / "state" / "parlay"
    return (Path(environ["PARLAY_HOME"]) if environ.get("PARLAY_HOME") else usual).expanduser()


def network_file_system(path: Path, mounts: str) -> str | None:
    """Type of the network file system that the resolved `path` lies on, by the text of /proc/mounts; else None."""
    kind = file_system(path, mounts)
    return kind if kind in NETWORK_FILE_SYSTEMS else None


def file_system(path: Path, mounts: str | None = None) -> str | None:
    """Type of the file system that the resolved `path` lies on, by the text of /proc/mounts (read where not given);
    None where unknown."""
    return _mount_of(path, _mounts() if mounts is None else mounts)[0]


def flock_description(path: Path) -> str:
    """The network file system that the resolved `path` lies on, and the guarantee of flock there.

    Sources: flock(2), nfs(5), mount.lustre(8).
    """
    kind, options = _mount_of(path, _mounts())
    if kind in ("nfs", "nfs4"):
        if {"nolock", "local_lock=all", "local_lock=flock"} & options:
            return f"{kind}, mounted with flock local to this machine"
        return f"{kind}, where flock is a lock on the server, lost when client or server is down for long"
    if kind == "lustre":
        if "localflock" in options:
            return "lustre, mounted with flock local to this machine"
        return "lustre, with flock across machines" if "flock" in options else "lustre, mounted without flock"
    return f"{kind}, where flock may be local to this machine"


def _mount_of(path: Path, mounts: str) -> tuple[str | None, set[str]]:
    """Type and mount options of the file system that holds the path."""
    kind, options, depth = None, "", -1
    for line in mounts.splitlines():
        _, point, name, flags = line.split()[:4]
        mount_point = Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), point))
        # The deepest mount point counts; of several mounts on it, the last.
        if len(mount_point.parts) >= depth and path.is_relative_to(mount_point):
            kind, options, depth = name.removeprefix("fuse."), flags, len(mount_point.parts)
    return kind, set(options.split(","))


def checked_url(given: str, local: Path, mounts: str) -> str:
    """The user's URL in the form that is opened; `local` is the folder offered where it cannot be used.

    The file must not be replaceable by others: it tells commands which folders hold the user's searches.
    """
    url = _parsed(given)
    if url.password is not None or any("password" in name.lower() for name in url.query):
        raise _refused(
            "the URL holds a password",
            rule="secrets are not allowed in files and on command lines",
            fix="leave it out and use PGPASSWORD or ~/.pgpass",
        )
    if url.get_backend_name() != "sqlite":
        return url.set(drivername="postgresql+psycopg").render_as_string()
    return _checked_sqlite(given, url, local, mounts)


def _parsed(given: str) -> URL:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(given)
    except (ArgumentError, ValueError):
        # The URL is not shown: it may hold a password even if it cannot be parsed.
        raise _refused("not a database URL", fix="write sqlite:////absolute/path/ledger.db") from None
    if url.drivername not in DRIVERS:
        raise _refused(f"unknown driver {url.drivername!r}", rule="known drivers: " + ", ".join(DRIVERS))
    return url


def _checked_sqlite(given: str, url: URL, local: Path, mounts: str) -> str:
    if not url.database or url.database == ":memory:" or url.database.startswith("file:") or url.query:
        rule = "a ledger is a plain file that outlives the process"
        raise _refused("not the path of a file", value=given, rule=rule, fix=f"use {_sqlite_url(local / 'ledger.db')}")
    path = Path(url.database).expanduser().resolve()
    kind = network_file_system(path, mounts)
    if kind is not None:
        raise _refused(
            f"{path} is on a network file system ({kind})",
            value=given,
            rule="SQLite's locks do not hold there; the journal in the search's folder is shared anyway",
            fix=f"use {_sqlite_url(local / 'ledger.db')}",
        )
    try:
        require_trusted_path(Path(url.database).expanduser(), "ledger_url", "ledger.url")
    except OSError as error:
        raise _refused(f"{path} cannot be accessed: {error.strerror}", value=given) from error
    return _sqlite_url(path)


def _sqlite_url(path: Path) -> str:
    from sqlalchemy import URL

    return URL.create("sqlite", database=str(path)).render_as_string()


def _make_private(folder: Path, by: Path) -> None:
    """Create the folder, and refuse one in /var/tmp that another user prepared. `by` is its path as named."""
    try:
        require_trusted_path(by, "ledger_url", "ledger.url")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_trusted_path(by, "ledger_url", "ledger.url")  # again, since another user may have created it first
    except OSError as error:
        raise _refused(
            f"{folder} cannot be created: {error.strerror}", fix="set PARLAY_HOME to a folder of yours on local disk"
        ) from error
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise _refused(
            f"{folder} is writable by others",
            rule="the ledger's folder belongs to you alone",
            fix=f"chmod 700 {folder}, or set PARLAY_HOME to a folder on local disk",
        )


def _mounts() -> str:
    try:
        return Path("/proc/mounts").read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return ""


def _refused(message: str, **details: Any) -> InputError:
    return InputError.of("ledger_url", message, key="ledger.url", **details)
