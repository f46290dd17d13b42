"""Integrity checks of a recorded search: the owner of its folder, its code, its file and its journal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from orchestrator.search.code_snapshot import code_hash, remove_caches
from search_spaces.errors import ExternalError, InputError
from search_spaces.plain_file import read_plain
from trials.files.folders import SearchFolder
from trials.files.path_owners import FolderIdentity, require_trusted_path, uid_as_seen_by
from trials.ledger.events import SearchRecord
from trials.trial import Trial

_MOST_NAMED = 5
YAML_SHA256 = "yaml_sha256"
"""Key in the search's row with the SHA-256 of search.yaml."""


def yaml_sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def require_unchanged_files(folder: SearchFolder, search: SearchRecord) -> None:
    """InputError if the code or search.yaml has changed since the search was created.

    Only for the holder of the search: it removes `__pycache__` folders from the code.
    """
    found = code_hash(folder.code)
    if found != search.code_hash:
        raise InputError.of(
            "code_changed",
            f"{folder.code} has changed since the search was created (SHA-256 {found[:12]}, not"
            f" {search.code_hash[:12]})",
            key="code",
            value=found,
            rule="all trials of a search run the same code, so that their results are comparable",
            fix="restore the code, or start a new search",
        )
    remove_caches(folder.code)
    if (now := _sha256_of_yaml(folder)) != search.spec.get(YAML_SHA256):
        raise InputError.of(
            "search_changed",
            f"{folder.yaml} has changed since the search was created",
            file=str(folder.yaml),
            key="search",
            value=now,
            rule="a search goes on with the space, objective and cluster that its trials were measured with",
            fix=f"restore it, or start a new search, which uses these trials: parlay run {folder.yaml}",
        )


def require_current_journal(folder: SearchFolder, search: SearchRecord) -> None:
    """ExternalError if attempts have folders but are not in the journal: an older journal was restored.

    A driver with that journal would use the names of these attempts again.
    """
    if unknown := list(_unknown_attempts(folder, search)):
        names = ", ".join(unknown[:_MOST_NAMED]) + (" and more" if len(unknown) > _MOST_NAMED else "")
        raise ExternalError(
            f"{folder.journal} is older than the search: it lacks {names}, whose jobs may still run",
            f"restore the newest journal.jsonl, or start a new search: parlay run {folder.yaml}",
        )


def _unknown_attempts(folder: SearchFolder, search: SearchRecord) -> Iterator[str]:
    checks = () if search.fabric_check is None else (search.fabric_check.trial,)
    known = {trial.trial: _known_attempts(trial) for trial in (*checks, *search.trials)}
    for place in sorted((folder.path / "trials").glob("t[0-9]*")):
        attempts = known.get(place.name, set())
        if attempts is not None:
            found = sorted(path.name for path in place.glob("a[0-9]*"))
            yield from (f"{place.name}.{name}" for name in found if name not in attempts)


def _known_attempts(trial: Trial) -> set[str] | None:
    """Attempts of a trial in the journal; None for an ended one, which gets no more."""
    return None if trial.state.is_ended else {attempt.attempt for attempt in trial.attempts}


def require_owned_folder(folder: SearchFolder) -> FolderIdentity:
    """Return the identity of the folder. InputError if another user owns it, or could replace it.

    A user who can rename in the folder of searches could replace this one, hashes included, and our jobs would run its
    code. Our own uid is read from a new file, since a file system may map uids (NFS, user namespaces).
    """
    taken = FolderIdentity.at(folder.path)
    owner, us = _owner(folder.path), uid_as_seen_by(folder.path)
    if owner != us:
        raise InputError.of(
            "folder_of_another",
            f"{folder.path} belongs to user {owner}, not to {us}",
            key="folder",
            value=str(folder.path),
            rule="a search's jobs run the code in its folder, so its user has to own the folder",
            fix="its owner can resume it; if it replaced a folder of yours, report it to the cluster's administrators",
        )
    require_trusted_path(folder.path, "folder_of_another", "folder")
    return taken


def _owner(path: Path) -> int:
    return path.stat().st_uid


def _sha256_of_yaml(folder: SearchFolder) -> str | None:
    try:
        return hashlib.sha256(read_plain(folder.yaml)).hexdigest()
    except (OSError, ValueError):
        return None
