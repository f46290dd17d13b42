"""Whether a search that goes on is the one that was begun: its folder's owner, its code and its file."""

from __future__ import annotations

import hashlib
from pathlib import Path

from orchestrator.code_snapshot import code_hash, remove_caches
from search_spaces.errors import InputError
from search_spaces.plain_file import read_plain
from trials.folder import SearchFolder
from trials.ledger.events import SearchRecord
from trials.path_owners import TakenFolder, require_own_way, us_in

YAML_SHA256 = "yaml_sha256"
"""Where the search's row has the SHA-256 of search.yaml."""


def yaml_sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def require_own_files(folder: SearchFolder, search: SearchRecord) -> None:
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
    begun_with = search.spec.get(YAML_SHA256)  # searches of older versions have none
    if begun_with is not None and (now := _sha256_of_yaml(folder)) != begun_with:
        raise InputError.of(
            "search_changed",
            f"{folder.yaml} is not as it was when this search began",
            file=str(folder.yaml),
            key="search",
            value=now,
            rule="a search goes on with the space, objective and world that its trials were measured for",
            fix=f"put it back, or begin a new search, which learns from these trials: parlay run {folder.yaml}",
        )


def require_own_folder(folder: SearchFolder) -> TakenFolder:
    """The folder as it is now. InputError for one of somebody else, in which nothing of ours may be left (its owner
    could not read it), and for one that others could put another in the place of.

    Whoever may rename in the folder of searches can put one of theirs in this one's place, hashes and all, whose code
    our jobs would run. Who we are is told by a file of ours, for a file system may call us otherwise than the kernel.
    """
    taken = TakenFolder.at(folder.path)
    owner, us = _owner(folder.path), us_in(folder.path)
    if owner != us:
        raise InputError.of(
            "folder_of_another",
            f"{folder.path} belongs to user {owner}, not to {us}",
            key="folder",
            value=str(folder.path),
            rule="a search's jobs run the code in its folder, so that is the user's own",
            fix="let its owner go on with it; or if somebody has put it there in the place of yours, tell the site",
        )
    require_own_way(folder.path, "folder_of_another", "folder")
    return taken


def _owner(path: Path) -> int:
    return path.stat().st_uid


def _sha256_of_yaml(folder: SearchFolder) -> str | None:
    try:
        return hashlib.sha256(read_plain(folder.yaml)).hexdigest()
    except (OSError, ValueError):
        return None
