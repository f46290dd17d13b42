"""Attempts with folders that a restored journal lacks: those of the fabric check are no trial's."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.records.integrity import require_current_journal
from search_spaces.errors import ExternalError
from search_spaces.layouts.layout import Layout
from trials.files.folders import SearchFolder
from trials.ledger.events import FABRIC_CHECK, FabricCheck, SearchRecord
from trials.trial import Attempt, Trial, TrialKind, TrialState

SUBMITTED, MEASURED = TrialState.SUBMITTED, TrialState.MEASURED


def check_current(path: Path, folders: tuple[str, ...], known: str | None, state: TrialState = SUBMITTED) -> None:
    """`require_current_journal` of a search whose check has these folders, and this last attempt in the journal."""
    folder = SearchFolder(path)
    for name in folders:
        folder.attempt(FABRIC_CHECK, name).path.mkdir(parents=True)
    names = [f"a{number}" for number in range(1, 1 + int((known or "a0")[1:]))]
    attempts = tuple(Attempt(FABRIC_CHECK, name, "0" * 32, num_nodes=1, time_limit_s=630.0) for name in names)
    trial = Trial(FABRIC_CHECK, Layout(), TrialKind.CHECK, state, attempts=attempts)
    check = None if known is None else FabricCheck(trial)
    require_current_journal(folder, SearchRecord(path.name, {}, "", 0.0, fabric_check=check))


@pytest.mark.parametrize(
    ("folders", "known", "state"),
    [
        ((), None, SUBMITTED),
        ((), "a1", SUBMITTED),
        (("a1",), "a1", SUBMITTED),
        (("a1",), "a1", MEASURED),
        (("a1", "a2"), "a2", SUBMITTED),
    ],
)
def test_the_checks_of_the_journal_are_known(tmp_path, folders, known, state):
    check_current(tmp_path, folders, known, state)


@pytest.mark.parametrize(("folders", "known", "lacks"), [(("a1",), None, "a1"), (("a1", "a2"), "a1", "a2")])
def test_a_check_that_the_journal_lacks_may_still_run(tmp_path, folders, known, lacks):
    with pytest.raises(ExternalError, match=f"it lacks t0000.{lacks}, whose jobs may still run"):
        check_current(tmp_path, folders, known)
