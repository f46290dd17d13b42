"""Lookup of searches and recipes by what a person names."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from orchestrator.config.spec import SearchSpec
from orchestrator.records.integrity import require_owned_folder
from search_spaces.errors import InputError
from trials.files.folders import SearchFolder
from trials.ledger.database import LedgerDamaged
from trials.ledger.events import SearchRecord
from trials.ledger.journal import Journal, JournalDamaged, search_of
from trials.ledger.location import ledger_to_read, ledger_url
from trials.ledger.reader import LedgerReader, folder_of
from trials.trial import Attempt, Trial


@dataclass(frozen=True)
class LocatedSearch:
    """A recorded search with its folder and its ledger. It may be another user's, so it is for reading.

    InputError for a record whose spec is not one: views read its keys.
    """

    record: SearchRecord
    folder: SearchFolder
    ledger_url: str

    def __post_init__(self) -> None:
        _ = self.spec

    @cached_property
    def spec(self) -> SearchSpec:
        """The search's spec as created, with the folder's present place and the links that the search measured. Later
        changes of its files do not matter."""
        spec = replace(SearchSpec.from_json(self.record.spec), work_dir=self.folder.path.parent)
        return spec.with_measured_links(self.record.fabric_check)


@dataclass(frozen=True)
class OwnSearch(LocatedSearch):
    """A search as the journal in our own folder records it: its programs, commands and addresses may be used."""


def find_search(given: str | None, ledger: str | None) -> LocatedSearch:
    """Find a search, to read it, by id, shortened id or folder; the newest of the ledger if `given` is None.

    InputError unknown_id or ambiguous_id, or for a missing ledger.
    """
    if given is not None and (folder := _folder_named(given)) is not None:
        return LocatedSearch(*_from_folder(folder, ledger))
    url = ledger_to_read(ledger)
    with closing(LedgerReader(url)) as reader:
        record = reader.search(reader.resolve(given) if given is not None else _newest(reader))
    return recorded_search(record, url)


def recorded_search(record: SearchRecord, url: str) -> LocatedSearch:
    """The search of these rows of a ledger, in the folder that they name; LedgerDamaged where they name none."""
    folder = folder_of(record.search_id, record.spec)
    if folder is None:
        raise LedgerDamaged(f"it has no folder of search {record.search_id}")
    return LocatedSearch(record, SearchFolder(Path(folder)), url)


def find_own_search(given: str | None, ledger: str | None) -> OwnSearch:
    """Find a search, to drive or end it, as `find_search`. InputError also as `own_search`."""
    if given is not None and (folder := _folder_named(given)) is not None:
        return own_search(folder, ledger)
    found = find_search(given, ledger)
    return own_search(found.folder, found.ledger_url)


def own_search(folder: SearchFolder, ledger: str | None) -> OwnSearch:
    """The search in this folder of ours. Its journal alone is believed: others may write to a shared ledger.

    InputError where the folder is another user's, could be replaced by one, or holds no search.
    """
    try:
        require_owned_folder(folder)
    except FileNotFoundError as error:
        raise not_a_search(str(folder.path), "it has no journal.jsonl", _MOVED_FIX) from error
    return OwnSearch(*_from_folder(folder, ledger))


def find_recipe(given: str | None, ledger: str | None) -> Path:
    """Find a recipe by its folder or file, by a search's folder, or by a search's id; the newest search's if `given` is
    None.

    InputError for a search without a recipe.
    """
    if given is not None and is_path_without_search(given):
        return Path(given)
    found = find_search(given, ledger)
    if not found.folder.recipe.exists():
        message, fix = f"search {found.record.search_id} has no recipe", missing_recipe_reason(found)
        raise InputError.of("recipe", message, fix=fix)
    return found.folder.recipe


def missing_recipe_reason(found: LocatedSearch) -> str:
    """Reason why a search has no recipe, with the way to one: a driver writes it at the end of the search."""
    if not found.record.state.is_ended:
        return "not written yet: it is written when the search has ended"
    if found.record.best_trial is None:
        return "none: the search has no best layout"
    return f"missing from the search's folder; parlay resume {found.folder.cli_name} writes it"


def find_attempt(search: SearchRecord, name: str) -> tuple[Trial, Attempt]:
    """Find the attempt named `t0001` (the last one) or `t0001.a2`; InputError without one."""
    trial_name, _, attempt_name = name.partition(".")
    checks = () if search.fabric_check is None else (search.fabric_check.trial,)
    for trial in (*checks, *search.trials):
        for attempt in reversed(trial.attempts):
            if trial.trial == trial_name and attempt_name in ("", attempt.attempt):
                return trial, attempt
    known = ", ".join(t.trial for t in search.trials if t.attempts) or "none yet"
    raise InputError.of(
        "unknown_id",
        f"{search.search_id} has no attempt {name!r}",
        key="trial",
        value=name,
        rule="t0001 (its last attempt) or t0001.a2",
        fix=f"one of: {known}",
    )


def not_a_search(given: str, why: str, fix: str = "parlay status --all lists them") -> InputError:
    """The error for a path that is not a search's folder, with the reason."""
    return InputError.of(
        "unknown_id",
        f"{given} is not the folder of a search: {why}",
        key="search",
        value=given,
        rule="the id of a search, the beginning of one, or its folder",
        fix=fix,
    )


_MOVED_FIX = "give the folder's present path; parlay ledger rebuild FOLDER updates the ledger"
"""Fix for a search that is not where the ledger says."""


def is_path_without_search(given: str) -> bool:
    """True if `given` is a path without a search."""
    return ("/" in given or os.path.exists(given)) and not SearchFolder(Path(given)).exists


def _folder_named(given: str) -> SearchFolder | None:
    """The search's folder if `given` is a path and not an id."""
    try:
        path = Path(os.path.realpath(given))
        if path.is_file():
            raise _file_error(given)
        folder = SearchFolder(path, named=given)
        return folder if "/" in given or folder.exists else None
    except OSError as error:
        raise not_a_search(given, error.strerror or str(error)) from error


def _from_folder(folder: SearchFolder, ledger: str | None) -> tuple[SearchRecord, SearchFolder, str]:
    """The search in this folder, with its folder and ledger. Its journal names its ledger, which need not know it."""
    try:
        record = search_of(folder.journal, folder.search_id, Journal(folder.journal).read())
        url = ledger or (None if record is None else record.spec["ledger"].get("url"))
    except OSError as error:
        raise not_a_search(str(folder.path), error.strerror or str(error)) from error
    except (KeyError, AttributeError) as error:
        raise JournalDamaged(f"{folder.journal} has content that Parlay does not write: {error}") from error
    if record is None:
        raise not_a_search(str(folder.path), "it has no journal.jsonl")
    return record, folder, ledger_url(url)


def _file_error(given: str) -> InputError:
    return InputError.of(
        "unknown_id",
        f"{given} is a file, not a search",
        key="search",
        value=given,
        rule="a search continues with its original file, and is given by its id or folder",
        fix=f"parlay status --all lists searches; parlay run {given} starts a new one that learns from them",
    )


def _newest(reader: LedgerReader) -> str:
    searches = reader.searches()
    if not searches:
        raise InputError.of(
            "unknown_id",
            "this ledger has no search yet",
            fix="start one with parlay run search.yaml; for an existing one give its folder, or add it with parlay"
            " ledger rebuild FOLDER",
        )
    return searches[0].search_id
