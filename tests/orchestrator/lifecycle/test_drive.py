"""A search's folder and its driver: half-made, swapped under it, with callbacks that fail."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.preflight.search import validate_space
from orchestrator.lifecycle import create
from orchestrator.lifecycle.drive import RunnableSearch, driving
from orchestrator.search.context import NO_CALLBACKS, DriverCallbacks
from search_spaces.errors import InputError
from tests.kit import created
from tests.orchestrator.cli.simulated import OK, write_simulated_search
from tests.orchestrator.launchers.test_private_tmp import unfinished
from trials.files.folders import SearchFolder
from trials.ledger.commands import request_cancel
from trials.ledger.events import EventKind, SearchRecord, SearchState
from trials.ledger.location import ledger_url
from trials.ledger.reader import LedgerReader


def runnable(folder: SearchFolder, spec: SearchSpec) -> RunnableSearch:
    return RunnableSearch(folder, spec, validate_space(spec).layouts, None, ledger_url())


def driven(started: RunnableSearch, callbacks: DriverCallbacks = NO_CALLBACKS) -> SearchRecord:
    with driving(started, callbacks) as driver:
        return driver.run()


@pytest.mark.slow
def test_a_command_that_a_driver_killed_at_the_very_end_left_pending_is_settled_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    spec = load_search_file(write_simulated_search(tmp_path, OK))
    folder = created(spec, ledger_url())
    request_cancel(ledger_url(), folder.search_id, 1000.0)
    with monkeypatch.context() as killed:
        killed.setattr("trials.ledger.writer.LedgerWriter.settle_commands", lambda *_: None)
        assert driven(runnable(folder, spec)).state.is_ended
    with closing(LedgerReader(ledger_url())) as reader:
        assert len(reader.pending_commands(folder.search_id)) == 1
        driven(RunnableSearch(folder, spec, (), None, ledger_url()))
        assert reader.pending_commands(folder.search_id) == []


@pytest.mark.slow
def test_a_callback_that_fails_ends_neither_the_search_nor_its_other_callbacks(tmp_path, monkeypatch):
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    spec = load_search_file(write_simulated_search(tmp_path, OK, OK))
    folder, seen, kept = created(spec, ledger_url()), [], []

    def breaks(search, event) -> None:
        seen.append(event.kind)
        raise OSError("the terminal is gone")

    callbacks = DriverCallbacks(on_event=breaks, heartbeat=lambda: kept.append(len(seen)))
    record = driven(runnable(folder, spec), callbacks)
    assert record.state is SearchState.COMPLETED
    assert len(seen) == 1
    assert kept.count(1) >= 2, "in every turn, also after the view's last word"


def swapped(path: Path) -> Path:
    """Replace this folder by a copy; returns the new path of the original."""
    aside = path.rename(path.with_name("aside"))
    shutil.copytree(aside, path)
    return aside


@pytest.mark.slow
@pytest.mark.security("paths")
def test_a_search_launches_nothing_there_and_goes_on_when_its_own_is_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = load_search_file(write_simulated_search(tmp_path, OK, OK, OK))
    folder, launched = created(spec, ledger_url()), []

    def swaps(search, event) -> None:
        if event.kind is EventKind.ATTEMPT_LAUNCHED:
            launched.append(event.data["trial"])
        if event.kind is EventKind.TRIAL_ENDED:
            swapped(folder.path)

    with pytest.raises(InputError) as caught:
        driven(runnable(folder, spec), DriverCallbacks(on_event=swaps))
    [problem] = caught.value.problems
    assert (problem.code, problem.value) == ("folder_swapped", str(folder.path))
    assert launched == ["t0001"]
    assert not (folder.path / "trials" / "t0002").exists()
    aside = SearchFolder(folder.path.with_name("aside"))
    folder.lease.replace(aside.lease)  # given back there; the process that had it would be gone
    shutil.rmtree(folder.path)
    aside.path.rename(folder.path)
    record = driven(runnable(SearchFolder(folder.path), spec))
    assert (record.state, record.num_layouts) == (SearchState.COMPLETED, 3)


def test_a_folder_names_its_maker_until_it_is_a_search_and_what_a_killed_maker_left_is_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = load_search_file(write_simulated_search(tmp_path, OK))
    unfinished(spec.work_dir, start_ticks=1)
    named, snapshot_code = [], create.snapshot_code

    def look(folder: Path) -> str:
        named.append((folder.parent / "owner.json").exists())
        return snapshot_code(folder)

    monkeypatch.setattr(create, "snapshot_code", look)
    folder = created(spec, ledger_url())
    assert named == [True]
    assert list(spec.work_dir.iterdir()) == [folder.path]
    assert not (folder.path / "owner.json").exists()
