"""`parlay export`, and searches over an exported table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli.main import run
from orchestrator.cli.output import write_new
from orchestrator.config.loader import load_search_file
from orchestrator.lifecycle.create import create_search, validate_space
from orchestrator.lifecycle.drive import SearchCallbacks, drive
from orchestrator.records.observations import write_measured_table
from orchestrator.samplers.factory import SAMPLERS
from search_spaces.errors import InputError
from search_spaces.tables.measured_table import parse_table, read_table
from tests.orchestrator.cli.simulated import OUT_OF_MEMORY, TABLE_SEARCH, write_simulated_search
from trials.files.folders import SearchFolder
from trials.ledger.events import Event, EventKind, SearchRecord
from trials.ledger.location import ledger_url

pytestmark = pytest.mark.slow

ROWS = ({"step_time_s": "4.5"}, {"step_time_s": "3.5"}, OUT_OF_MEMORY)


@pytest.fixture
def ended(tmp_path, monkeypatch, capsys) -> SearchFolder:
    """A search of three layouts that has ended."""
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert run(["run", str(write_simulated_search(tmp_path, *ROWS)), "--json"]) == 0
    return SearchFolder(tmp_path / "runs" / json.loads(capsys.readouterr().out)["search_id"])


def test_a_search_that_has_ended_left_its_table_beside_the_recipe(ended):
    rows = read_table(ended.measured).require_valid().observations
    assert [(row.outcome, row.step_time_s) for row in rows] == [("ok", 4.5), ("ok", 3.5), ("oom", None)]
    assert {row.search_id for row in rows} == {ended.search_id}
    assert ended.measured.stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("silent")
def test_what_was_exported_while_it_ran_is_written_over_at_its_end(tmp_path, monkeypatch):
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    spec = load_search_file(write_simulated_search(tmp_path, *ROWS), [f"work_dir={tmp_path}"])
    folder = create_search(spec, ledger_url())

    def export(search: SearchRecord, event: Event) -> None:
        if event.kind is EventKind.TRIAL_ENDED and len(search.trials) == 1:
            write_measured_table(folder, spec, search)

    drive(folder, spec, validate_space(spec).layouts, None, ledger_url(), SearchCallbacks(on_event=export))
    assert len(read_table(folder.measured).require_valid().observations) == 3


def test_the_table_is_written_again_where_it_lies(ended, capsys):
    before = ended.measured.read_text()
    ended.measured.unlink()
    assert run(["export", ended.search_id[:7], "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {
        "schema": "parlay.export/1",
        "search_id": ended.search_id,
        "format": "measured",
        "file": str(ended.measured),
        "rows": 3,
        "left_out": {},
    }
    assert ended.measured.read_text() == before


def test_out_names_a_new_file_or_stdout(ended, tmp_path, capsys):
    assert run(["export", "--out", "mine.csv"]) == 0
    assert capsys.readouterr().out == "mine.csv: 3 rows\n"
    assert (tmp_path / "mine.csv").read_text() == ended.measured.read_text()
    assert run(["export", "--out", "mine.csv"]) == 2
    assert "use a new file" in capsys.readouterr().err
    assert run(["export", "--out", "-"]) == 0
    assert parse_table(capsys.readouterr().out, "-").require_valid() == read_table(ended.measured)


def test_the_measured_table_is_what_is_meant_where_nothing_is_said(ended, capsys):
    before = ended.measured.read_text()
    ended.measured.unlink()
    assert run(["export"]) == 0
    assert capsys.readouterr().out == f"{ended.measured}: 3 rows\n"
    assert ended.measured.read_text() == before


@pytest.mark.parametrize(
    ("form", "name"), [("deephyper", "results.csv"), ("csv", "trials.csv"), ("parquet", "trials.parquet")]
)
def test_other_forms_lie_beside_it_and_are_written_anew(ended, capsys, form, name):
    for _ in range(2):
        assert run(["export", ended.search_id, "--format", form, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["format"], answer["file"], answer["rows"]) == (form, str(ended.path / name), 3)
    assert (ended.path / name).stat().st_mode & 0o777 == 0o600
    assert not [path for path in ended.path.iterdir() if path.name.endswith(".part")]


class Unwritable:
    """A file that can be created, but not written to."""

    def __init__(self, path: Path, mode: str, why: BaseException):
        assert mode == "xb"
        path.touch(exist_ok=False)
        self._why = why

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def write(self, content: bytes) -> None:
        raise self._why


@pytest.mark.parametrize(
    ("why", "told"),
    [(OSError(28, "No space left on device"), InputError), (KeyboardInterrupt(), KeyboardInterrupt)],
    ids=["full", "interrupted"],
)
def test_a_file_that_could_not_be_written_whole_is_not_there(tmp_path, monkeypatch, why, told):
    monkeypatch.setattr(Path, "open", lambda path, mode: Unwritable(path, mode, why))
    with pytest.raises(told, match="No space left" if told is InputError else None):
        write_new(tmp_path / "mine.csv", "a,b\n", "--out")
    assert not (tmp_path / "mine.csv").exists()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["export", "--format", "parquet", "--out", "-"], 2, "use a new file"),
        (["export", "--format", "excel"], 2, "'excel' is not one of"),
        (["export", "--out", "-", "--json"], 2, "both write to stdout"),
        (["export", "nobody"], 4, "there is no search"),
        (["export", "--out", "no-such-folder/x.csv"], 2, "No such file"),
    ],
)
def test_what_cannot_be_exported_is_refused(ended, capsys, words, code, told):
    assert run(words) == code
    captured = capsys.readouterr()
    assert told in captured.out + captured.err


def test_a_search_that_saw_nothing_has_nothing_to_export(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    lost = OUT_OF_MEMORY | {"outcome": "failed", "failure_reason": "launch_failure"}
    assert run(["run", str(write_simulated_search(tmp_path, lost))]) == 3
    capsys.readouterr()
    assert run(["export"]) == 3
    refused = capsys.readouterr().err
    assert "has no measured trial yet (1 launch_failure)" in refused
    shows = refused.split("fix: parlay ")[1].split(" shows")[0].split()
    assert run(shows) == 0
    assert "launch failure" in capsys.readouterr().out
    assert not list(Path("runs").glob("*/measured.csv"))


def test_a_search_that_the_ledger_does_not_know_is_named_again_by_its_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    lost = OUT_OF_MEMORY | {"outcome": "failed", "failure_reason": "launch_failure"}
    assert run(["run", str(write_simulated_search(tmp_path, lost)), "--json"]) == 3
    folder = f"runs/{json.loads(capsys.readouterr().out)['search_id']}"
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "another"))
    for verb, code in (("best", 3), ("export", 3), ("sync", 2)):
        assert run([verb, folder]) == code
        shows = capsys.readouterr().err.split("fix: parlay ")[1].split(" shows")[0].split()
        assert shows[1:] == [folder]
        assert run(shows) == 0


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_what_if_another_sampler_had_searched(ended, tmp_path, capsys, sampler):
    measured = tmp_path / "past.csv"
    measured.write_text(ended.measured.read_text())
    (tmp_path / "again.yaml").write_text(TABLE_SEARCH.replace("table.csv", "past.csv"))
    assert run(["run", "again.yaml", "--sampler", sampler, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["trials"] == {"measured": 2, "stopped_early": 0, "failed": 1, "cancelled": 0, "in_flight": 0}
    assert answer["best"]["layout"]["tensor_parallel"] == 4
    assert answer["reasons"] == {"gpu_oom": 1}
