"""Results in and out: `parlay export`, `report` and `import`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from orchestrator.cli.main import main as run
from orchestrator.records.output_file import write_new
from search_spaces.tables.measured_table import parse_table, read_table
from tests.kit import search_file
from tests.orchestrator.cli.simulated import OUT_OF_MEMORY, write_simulated_search
from tests.orchestrator.past_searches import SEARCH


@pytest.mark.slow
def test_the_table_is_written_at_the_end_and_again_where_it_lies(ended, parlay):
    before = ended.measured.read_text()
    rows = read_table(ended.measured)
    assert [(row.outcome, row.step_time_s) for row in rows] == [("ok", 4.5), ("ok", 3.5), ("oom", None)]
    assert ended.measured.stat().st_mode & 0o777 == 0o600
    ended.measured.unlink()
    code, answer, _ = parlay("export", ended.search_id[:7])
    told = {"search_id": ended.search_id, "format": "measured", "file": str(ended.measured), "rows": 3, "left_out": {}}
    assert (code, answer) == (0, {"schema": "parlay.export/1", **told})
    assert ended.measured.read_text() == before


@pytest.mark.slow
def test_out_names_a_new_file_or_stdout(ended, tmp_path, capfd):
    assert run(["export", "--out", "mine.csv"]) == 0
    assert (tmp_path / "mine.csv").read_text() == ended.measured.read_text()
    assert run(["export", "--out", "mine.csv"]) == 2
    assert "use a new file" in capfd.readouterr().err
    assert run(["export", "--out", "-"]) == 0
    assert parse_table(capfd.readouterr().out, "-") == read_table(ended.measured)
    for words, told in (
        ("--format parquet --out -", "use a new file"),
        ("--out - --json", "both write to stdout"),
        ("--out no-such-folder/x.csv", "No such file"),
    ):
        assert run(["export", *words.split()]) == 2
        captured = capfd.readouterr()
        assert told in captured.out + captured.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "name"), [("deephyper", "results.csv"), ("csv", "trials.csv"), ("parquet", "trials.parquet")]
)
def test_other_forms_lie_beside_it_and_are_written_anew(ended, parlay, form, name):
    for _ in range(2):
        code, answer, _ = parlay("export", ended.search_id, "--format", form)
        assert (code, answer["format"], answer["file"], answer["rows"]) == (0, form, str(ended.path / name), 3)
    assert (ended.path / name).stat().st_mode & 0o777 == 0o600
    assert not [path for path in ended.path.iterdir() if path.name.endswith(".part")]


@pytest.mark.slow
def test_a_file_that_could_not_be_written_whole_is_not_there(tmp_path, monkeypatch):
    class Full(io.FileIO):
        def write(self, content):
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "open", lambda path, mode: Full(path, mode))
    with pytest.raises(KeyboardInterrupt):
        write_new(tmp_path / "mine.csv", "a,b\n", "--out")
    assert not (tmp_path / "mine.csv").exists()


@pytest.mark.slow
def test_a_search_that_saw_nothing_has_nothing_to_export(tmp_path, parlay, capfd, monkeypatch):
    """Named again as it was named: by its folder where the ledger does not know it."""
    lost = OUT_OF_MEMORY | {"outcome": "failed", "failure_reason": "launch_failure"}
    _, answer, _ = parlay("run", write_simulated_search(tmp_path, lost))
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "another"))
    folder = f"runs/{answer['search_id']}"
    for verb, code in (("best", 3), ("export", 3), ("sync", 2)):
        assert run([verb, folder]) == code
        shows = capfd.readouterr().err.split("fix: parlay ")[1].split(" shows")[0].split()
        assert shows[1:] == [folder]
        assert run(shows) == 0
    assert not list(Path("runs").glob("*/measured.csv"))


@pytest.mark.slow
def test_a_report_is_left_at_the_end_and_written_anew_there_or_over_nothing_elsewhere(ended, parlay, tmp_path):
    assert f"<code>{ended.search_id}</code>" in ended.report.read_text()
    assert ended.report.stat().st_mode & 0o777 == 0o600
    ended.report.write_text("an old one")
    told = {"schema": "parlay.report/1", "search_id": ended.search_id, "file": str(ended.report)}
    assert parlay("report", ended.search_id)[:2] == (0, told)
    assert f"<code>{ended.search_id}</code>" in ended.report.read_text()
    wanted = tmp_path / "for-the-boss.html"
    assert parlay("report", ended.path, "--output", wanted)[0] == 0
    before = wanted.read_text()
    code, answer, _ = parlay("report", ended.path, "--output", wanted)
    assert (code, wanted.read_text()) == (2, before)
    assert "use a new file" in answer["error"]["fix"]


BASELINE = {"tensor_parallel": 2, "pipeline_parallel": 1, "micro_batch_size": 1}
RESULTS = "p:tp,objective,job_status\n1,256,DONE\n2,F_oom,DONE\n1,F,CANCELLED\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    search_file(tmp_path, SEARCH, baseline=BASELINE)
    (tmp_path / "results.csv").write_text(RESULTS)
    return tmp_path


def words(*more: str, source: str = "results.csv", out: str = "past.csv") -> list[str]:
    return ["import", source, "search.yaml", "--out", out, *more]


def test_results_become_a_table_that_a_search_learns_from(here, capsys):
    assert run(words("--objective", "tokens_per_sec", "--json")) == 0
    answer = json.loads(capsys.readouterr().out)
    told = {"source": "results.csv", "kind": "deephyper", "file": "past.csv", "rows": 2, "left_out": {"cancelled": 1}}
    assert answer == {"schema": "parlay.import/1", "notes": [], **told}
    assert [row.outcome for row in read_table(here / "past.csv")] == ["ok", "oom"]
    search_file(here, SEARCH, baseline=BASELINE, search={"warm_start": "past.csv"})
    assert run(["plan", "search.yaml", "--json"]) == 0
    assert "2 trials of a table: deephyper" in " ".join(json.loads(capsys.readouterr().out)["notes"])


@pytest.mark.bad_input(43)
@pytest.mark.parametrize(
    ("given", "code", "told"),
    [
        (words(), 2, "--objective samples_per_sec or"),
        (words("--objective", "tokens_per_sec", "--name", "tp"), 2, "--name TP=tensor_parallel"),
        (words(source="search.yaml"), 2, "has no known format of results"),
        (words(source="model.pkl"), 2, "not UTF-8"),
        (words("--objective", "tokens_per_sec", out="results.csv"), 2, "use a new file"),
        (["import", "results.csv", "search.yaml"], 2, "--out"),
    ],
)
def test_what_cannot_be_imported_is_refused_and_nothing_written(here, capsys, given, code, told):
    (here / "model.pkl").write_bytes(b"\x80\x04\x95")
    assert run(given) == code
    assert told in capsys.readouterr().err
    assert not (here / "past.csv").exists()
    assert (here / "results.csv").read_text() == RESULTS


def test_results_that_say_nothing_leave_with_no_measurement(here, capsys):
    (here / "results.csv").write_text("p:tp,objective,job_status\n1,F,CANCELLED\n")
    assert run(words("--objective", "tokens_per_sec")) == 3
    assert "left out: 1 cancelled" in capsys.readouterr().err
    assert not (here / "past.csv").exists()
