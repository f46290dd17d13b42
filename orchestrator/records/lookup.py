"""From what a person names to a search, its folder and its record; or to a recipe."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from orchestrator.config.spec import SearchSpec
from search_spaces.errors import InputError
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord
from trials.ledger.journal import Journal, JournalDamaged, search_of
from trials.ledger.location import ledger_to_read, ledger_url
from trials.ledger.reader import LedgerReader
from trials.trial import Attempt, Trial


@dataclass(frozen=True)
class LocatedSearch:
    """A search, where it lies, and the ledger it is written in."""

    record: SearchRecord
    folder: SearchFolder
    ledger_url: str

    @cached_property
    def spec(self) -> SearchSpec:
        """The search as it was when it was created, at the place where it lies now.

        What has become of its files changes nothing.
        """
        return replace(SearchSpec.from_json(self.record.spec), work_dir=self.folder.path.parent)


def find_search(given: str | None, ledger: str | None) -> LocatedSearch:
    """The search of this id, shortened id or folder; the newest of the ledger when nothing is given.

    InputError unknown_id or ambiguous_id, or for a ledger that is not there.
    """
    if given is not None and (folder := _folder_named(given)) is not None:
        return _from_folder(folder, ledger)
    url = ledger_to_read(ledger)
    with closing(LedgerReader(url)) as reader:
        record = reader.search(reader.resolve(given) if given is not None else _newest(reader))
    return LocatedSearch(record, SearchFolder(Path(record.spec["folder"])), url)


def find_recipe(given: str | None, ledger: str | None) -> Path:
    """The recipe that a person means: its folder or file, a search's folder, or a search's id; that of the newest
    search when nothing is given. InputError for a search that has none yet."""
    if given is not None and is_path_without_search(given):
        return Path(given)
    found = find_search(given, ledger)
    if not found.folder.recipe.exists():
        message, fix = f"search {found.record.search_id} has no recipe", missing_recipe_reason(found)
        raise InputError.of("recipe", message, fix=fix)
    return found.folder.recipe


def missing_recipe_reason(found: LocatedSearch) -> str:
    """Why there is no recipe of a search, and how there will be one: a driver writes it at the search's end."""
    if not found.record.state.is_ended:
        return "not written yet: one is written when the search has ended"
    if found.record.best_trial is None:
        return "none was written: no layout is the best"
    return f"not in its folder any more; parlay resume {found.folder.cli_name} writes it"


def find_attempt(search: SearchRecord, name: str) -> tuple[Trial, Attempt]:
    """The attempt that `t0001` (its last one) or `t0001.a2` names; InputError when there is none."""
    trial_name, _, attempt_name = name.partition(".")
    for trial in search.trials:
        for attempt in reversed(trial.attempts):
            if trial.trial == trial_name and attempt_name in ("", attempt.attempt):
                return trial, attempt
    known = ", ".join(t.trial for t in search.trials if t.attempts) or "none yet"
    raise InputError.of(
        "unknown_id",
        f"{search.search_id} has no attempt {name!r}",
        key="trial",
        value=name,
        rule="an attempt is named t0001 (its last one) or t0001.a2",
        fix=f"one of: {known}",
    )


def not_a_search(given: str, why: str, fix: str = "parlay status --all lists them") -> InputError:
    """That what is named is no search's folder, and why."""
    return InputError.of(
        "unknown_id",
        f"{given} is not the folder of a search: {why}",
        key="search",
        value=given,
        rule="a search is named by its id, by its beginning, or by its folder",
        fix=fix,
    )


MOVED_SEARCH_FIX = "name the folder where it lies now; parlay ledger rebuild FOLDER tells the ledger of it"
"""What to do about a search that is not where the ledger says."""


def is_path_without_search(given: str) -> bool:
    """Whether what a person names is a path at which no search lies."""
    return ("/" in given or os.path.exists(given)) and not SearchFolder(Path(given)).exists


def _folder_named(given: str) -> SearchFolder | None:
    """The search's folder, where what a person typed is a path and not an id."""
    try:
        path = Path(os.path.realpath(given))
        if path.is_file():
            raise _is_a_file(given)
        folder = SearchFolder(path, named=given)
        return folder if "/" in given or folder.exists else None
    except OSError as error:
        raise not_a_search(given, error.strerror or str(error)) from error


def _from_folder(folder: SearchFolder, ledger: str | None) -> LocatedSearch:
    """A search by its folder, which knows its ledger, and is enough where that has never heard of it."""
    try:
        record = search_of(folder.journal, folder.search_id, Journal(folder.journal).read())
        url = ledger or (None if record is None else record.spec["ledger"].get("url"))
    except OSError as error:
        raise not_a_search(str(folder.path), error.strerror or str(error)) from error
    except (KeyError, AttributeError) as error:
        raise JournalDamaged(f"{folder.journal} holds what no search of ours writes: {error}") from error
    if record is None:
        raise not_a_search(str(folder.path), "it holds no journal.jsonl")
    return LocatedSearch(record, folder, ledger_url(url))


def _is_a_file(given: str) -> InputError:
    return InputError.of(
        "unknown_id",
        f"{given} is a file, not a search",
        key="search",
        value=given,
        rule="a search goes on as it was begun, and is named by its id or its folder",
        fix=f"parlay status --all lists them; a new search learns from their trials: parlay run {given}",
    )


def _newest(reader: LedgerReader) -> str:
    searches = reader.searches()
    if not searches:
        raise InputError.of(
            "unknown_id",
            "there is no search in this ledger yet",
            fix="start one: parlay run search.yaml; one that is there is named by its folder, and parlay ledger rebuild"
            " FOLDER takes it into this ledger",
        )
    return searches[0].search_id
