"""Whether a search that goes on is the one that was begun: its folder's owner, its code and its file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from orchestrator.common.code_snapshot import code_hash, remove_caches
from search_spaces.errors import ExternalError, InputError
from search_spaces.plain_file import read_plain
from trials.files.folders import SearchFolder
from trials.files.path_owners import FolderIdentity, require_trusted_path, uid_as_seen_by
from trials.ledger.events import SearchRecord

_MOST_NAMED = 5
YAML_SHA256 = "yaml_sha256"
"""Where the search's row has the SHA-256 of search.yaml."""


def yaml_sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def require_unchanged_files(folder: SearchFolder, search: SearchRecord) -> None:
    """InputError for other code, and for another search.yaml, than the search was begun with. For whoever holds the
    search: what Python has compiled of the code is removed."""
    found = code_hash(folder.code)
    if found != search.code_hash:
        raise InputError.of(
            "code_changed",
            f"{folder.code} is not the code this search began with (SHA-256 {found[:12]}, not {search.code_hash[:12]})",
            key="code",
            value=found,
            rule="all trials of a search run the same code, else their numbers cannot be compared",
            fix="put the code back, or begin a new search",
        )
    remove_caches(folder.code)
    if (now := _sha256_of_yaml(folder)) != search.spec.get(YAML_SHA256):
        raise InputError.of(
            "search_changed",
            f"{folder.yaml} is not as it was when this search began",
            file=str(folder.yaml),
            key="search",
            value=now,
            rule="a search goes on with the space, objective and world that its trials were measured for",
            fix=f"put it back, or begin a new search, which learns from these trials: parlay run {folder.yaml}",
        )


def require_current_journal(folder: SearchFolder, search: SearchRecord) -> None:
    """ExternalError where attempts have folders and the journal does not know them: an older one was put back, and
    whoever goes on by it gives their names again."""
    if unknown := list(_unknown_attempts(folder, search)):
        names = ", ".join(unknown[:_MOST_NAMED]) + (" and more" if len(unknown) > _MOST_NAMED else "")
        raise ExternalError(
            f"{folder.journal} is older than the search: it does not know {names}, whose jobs may still run",
            f"put the newest journal.jsonl back; or begin a new search: parlay run {folder.yaml}",
        )


def _unknown_attempts(folder: SearchFolder, search: SearchRecord) -> Iterator[str]:
    known = {trial.trial: trial for trial in search.trials}
    for place in sorted((folder.path / "trials").glob("t[0-9]*")):
        trial = known.get(place.name)
        if trial is None or not trial.state.is_ended:  # one that has ended is frozen
            attempts = {attempt.attempt for attempt in trial.attempts} if trial else set()
            found = sorted(path.name for path in place.glob("a[0-9]*"))
            yield from (f"{place.name}.{name}" for name in found if name not in attempts)


def require_owned_folder(folder: SearchFolder) -> FolderIdentity:
    """The folder as it is now. InputError for one of somebody else, in which nothing of ours may be left (its owner
    could not read it), and for one that others could put another in the place of.

    Whoever may rename in the folder of searches can put one of theirs in this one's place, hashes and all, whose code
    our jobs would run. Who we are is told by a file of ours, for a file system may call us otherwise than the kernel.
    """
    taken = FolderIdentity.at(folder.path)
    owner, us = _owner(folder.path), uid_as_seen_by(folder.path)
    if owner != us:
        raise InputError.of(
            "folder_of_another",
            f"{folder.path} belongs to user {owner}, not to {us}",
            key="folder",
            value=str(folder.path),
            rule="a search's jobs run the code in its folder, so that is the user's own",
            fix="let its owner go on with it; or if somebody has put it there in the place of yours, tell the site",
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
