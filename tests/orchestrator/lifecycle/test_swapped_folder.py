"""A search's folder replaced while its driver runs: nothing is launched from the other folder, nothing is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.lifecycle.create import create_search, validate_space
from orchestrator.lifecycle.drive import SearchCallbacks, drive
from search_spaces.errors import InputError
from tests.orchestrator.cli.simulated import OK, write_simulated_search
from trials.files.folders import SearchFolder
from trials.ledger.events import EventKind, SearchState
from trials.ledger.location import ledger_url

pytestmark = [pytest.mark.slow, pytest.mark.security("paths")]


def swapped(path: Path) -> Path:
    """Replace this folder by a copy; returns the new path of the original."""
    aside = path.rename(path.with_name("aside"))
    shutil.copytree(aside, path)
    return aside


def test_a_search_launches_nothing_there_and_goes_on_when_its_own_is_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = load_search_file(write_simulated_search(tmp_path, OK, OK, OK))
    folder, launched = create_search(spec, ledger_url()), []

    def swaps(search, event) -> None:
        if event.kind is EventKind.ATTEMPT_LAUNCHED:
            launched.append(event.data["trial"])
        if event.kind is EventKind.TRIAL_ENDED:
            swapped(folder.path)

    with pytest.raises(InputError) as caught:
        drive(folder, spec, validate_space(spec).layouts, None, ledger_url(), SearchCallbacks(on_event=swaps))
    [problem] = caught.value.problems
    assert (problem.code, problem.value) == ("folder_swapped", str(folder.path))
    assert launched == ["t0001"]
    assert not (folder.path / "trials" / "t0002").exists()
    aside = SearchFolder(folder.path.with_name("aside"))
    folder.lease.replace(aside.lease)  # given back there; the process that had it would be gone
    shutil.rmtree(folder.path)
    aside.path.rename(folder.path)
    record = drive(SearchFolder(folder.path), spec, validate_space(spec).layouts, None, ledger_url(), SearchCallbacks())
    assert (record.state, record.num_layouts) == (SearchState.COMPLETED, 3)
