"""`search.warm_start` from a user's view: reported at the start, saved in the folder, unchanged after a restart."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.cli.main import run
from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.create import create_search, validate_space
from orchestrator.lifecycle.drive import SearchCallbacks, drive
from orchestrator.planning.prior_trials import collect_prior_trials
from orchestrator.search.driver import Driver
from search_spaces.tables.measured_table import read_table, render_table
from tests.orchestrator.cli.simulated import OUT_OF_MEMORY, TABLE_SEARCH, write_simulated_search
from tests.orchestrator.past_searches import SEARCH, layouts, measured, past, spec_in, write_ledger
from tests.search_spaces.example_tables import only
from trials.files.folders import SearchFolder
from trials.ledger.events import Event, EventKind, SearchRecord
from trials.ledger.location import ledger_url
from trials.ledger.reader import LedgerReader

pytestmark = pytest.mark.slow

ROWS = ({"step_time_s": "4.5"}, {"step_time_s": "3.5"}, OUT_OF_MEMORY)
LEARNING = TABLE_SEARCH.replace("sampler: grid", "sampler: cost_model, warm_start: warm_start.csv")


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """Folder with a search file that learns from a table of four trials of another model."""
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    write_simulated_search(tmp_path, *ROWS, text=LEARNING)
    others = [{"num_layers": "32", "micro_batch_size": str(2**n), "grad_accum_steps": str(128 >> n)} for n in range(4)]
    (tmp_path / "warm_start.csv").write_text(render_table(only(*others)))
    return tmp_path


def started(capsys, *words: str) -> SearchFolder:
    """A search that has run to its end."""
    assert run(["run", "search.yaml", "--json", *words]) == 0
    captured = capsys.readouterr()
    folder = SearchFolder(Path("runs").absolute() / json.loads(captured.out)["search_id"])
    (folder.path / "told").write_text(captured.err)
    return folder


def trials_of(folder: SearchFolder) -> list[tuple[str, str]]:
    """Layout and predictor of each trial."""
    trials = LedgerReader(ledger_url()).search(folder.search_id).trials
    return [(trial.layout.key, (trial.prediction or {})["model_hash"]) for trial in trials]


def test_what_is_learnt_from_is_told_at_the_start_and_lies_in_the_folder(place, capsys):
    folder = started(capsys)
    assert "\nwarm start: 4 trials of a table: ultrascale-playbook\n" in "\n" + (folder.path / "told").read_text()
    assert len(read_table(folder.warm_start).require_valid().observations) == 4
    cold = started(capsys, "--set", "search.warm_start=none")
    assert "warm start" not in (cold.path / "told").read_text()
    assert not cold.warm_start.exists()
    assert {hash for _, hash in trials_of(folder)}.isdisjoint(hash for _, hash in trials_of(cold))


def test_a_resumed_search_learns_from_what_it_began_with(place, capsys):
    whole = started(capsys)
    folder = interrupted_search()
    (place / "warm_start.csv").unlink()
    assert run(["resume", folder.search_id, "--json"]) == 0
    assert "learnt" not in capsys.readouterr().err
    assert trials_of(folder) == trials_of(whole)
    assert len({hash for _, hash in trials_of(folder)}) == 1


def interrupted_search() -> SearchFolder:
    """A search whose driver was told to stop after its first trial."""
    spec = load_search_file(Path("search.yaml"))
    folder = create_search(spec, ledger_url(), collect_prior_trials(spec, ledger_url()))

    drivers: list[Driver] = []

    @contextmanager
    def driver_context(driver: Driver) -> Iterator[None]:
        drivers.append(driver)
        yield

    def after_one(search: SearchRecord, event: Event) -> None:
        if event.kind is EventKind.TRIAL_ENDED:
            drivers[0].interrupt()

    callbacks = SearchCallbacks(on_event=after_one, driver_context=driver_context)
    written = SearchSpec.from_json(json.loads(folder.json.read_text()))
    record = drive(folder, written, validate_space(spec).layouts, None, ledger_url(), callbacks)
    assert (len(record.trials), record.state.is_ended) == (1, False)
    return folder


def test_a_damaged_file_of_prior_trials_is_named_and_ends_nothing(place, capsys):
    folder = interrupted_search()
    good = folder.warm_start.read_text()
    folder.warm_start.write_text(good.replace(",ok,", ",good,", 1))
    assert run(["resume", folder.search_id, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["file"], error["line"], error["key"]) == (str(folder.warm_start), 3, "outcome")
    folder.warm_start.write_text(good)
    assert run(["resume", folder.search_id, "--json"]) == 0


def test_a_bad_table_is_refused_with_its_place_and_nothing_is_made(place, capsys):
    (place / "warm_start.csv").write_text(render_table(only({})).replace(",ok,", ",good,", 1))
    assert run(["run", "search.yaml", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["file"], error["line"], error["key"]) == (
        str(place / "warm_start.csv"),
        2,
        "outcome",
    )
    assert not (place / "runs").exists()


@pytest.fixture
def taught(tmp_path, monkeypatch) -> Path:
    """A home whose ledger has a search on a machine like this one."""
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir(mode=0o700)
    trials = [measured(f"t000{n}", layout, device=None) for n, layout in enumerate(layouts()[:3], 1)]
    write_ledger(f"sqlite:///{tmp_path}/home/ledger.db", past(spec_in(tmp_path), *trials))
    (tmp_path / "search.yaml").write_text(SEARCH)
    return tmp_path


def notes_of_plan(capsys, *words: str) -> str:
    assert run(["plan", "search.yaml", "--json", *words]) == 0
    return "\n".join(json.loads(capsys.readouterr().out)["notes"])


def test_a_plan_tells_whose_trials_it_learnt_from(taught, capsys):
    assert "calibrated on 3 trials of 1 earlier search: past-aaaaaa" in notes_of_plan(capsys)
    assert "uncalibrated" in notes_of_plan(capsys, "--set", "search.warm_start=none")


def test_a_plan_says_of_a_ledger_it_cannot_read_that_it_learnt_nothing(taught, capsys):
    with sqlite3.connect(taught / "home" / "ledger.db") as database:
        database.execute("UPDATE parlay_ledger_version SET version_num = '9999'")
    notes = notes_of_plan(capsys)
    assert "no warm start from the ledger: ledger.url: the ledger has schema 9999" in notes
    assert "uncalibrated" in notes


def test_a_plan_makes_no_home_and_no_ledger(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "search.yaml").write_text(SEARCH)
    assert "uncalibrated" in notes_of_plan(capsys)
    assert os.listdir(tmp_path) == ["search.yaml"]
