"""`parlay import` of another program's results, and a search that learns from them."""

from __future__ import annotations

import json
import os

import pytest

from orchestrator.cli.main import run
from search_spaces.tables.measured_table import parse_table, read_table, render_table
from tests.orchestrator.past_searches import SEARCH
from tests.search_spaces.example_tables import only

BASELINE = "baseline: {tensor_parallel: 2, pipeline_parallel: 1, micro_batch_size: 1}\n"
RESULTS = "p:tp,objective,job_status\n1,256,DONE\n2,F_oom,DONE\n1,F,CANCELLED\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "search.yaml").write_text(SEARCH + BASELINE)
    (tmp_path / "results.csv").write_text(RESULTS)
    return tmp_path


def words(*more: str, source: str = "results.csv", out: str = "past.csv") -> list[str]:
    return ["import", source, "search.yaml", "--out", out, *more]


def test_results_become_a_table_that_a_search_learns_from(here, capsys):
    assert run(words("--objective", "tokens_per_sec", "--json")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {
        "schema": "parlay.import/1",
        "source": "results.csv",
        "kind": "deephyper",
        "file": "past.csv",
        "rows": 2,
        "left_out": {"cancelled": 1},
        "notes": [],
    }
    assert [row.outcome for row in read_table(here / "past.csv").require_valid().observations] == ["ok", "oom"]
    (here / "next.yaml").write_text(SEARCH + BASELINE + "search: {warm_start: past.csv}\n")
    assert run(["plan", "next.yaml", "--json"]) == 0
    assert "2 trials of a table: deephyper" in " ".join(json.loads(capsys.readouterr().out)["notes"])


def test_the_table_may_go_to_stdout(here, capsys):
    assert run(words("--objective", "tokens_per_sec", out="-")) == 0
    shown = capsys.readouterr()
    assert len(parse_table(shown.out, "-").require_valid().observations) == 2
    assert shown.err == "2 rows; left out: 1 cancelled\n"
    assert run(words("--objective", "tokens_per_sec", "--json", out="-")) == 2
    assert "both write to stdout" in capsys.readouterr().out
    assert not (here / "-").exists()


def test_a_measured_table_is_checked_and_its_other_machines_left_out(here, capsys):
    (here / "table.csv").write_text(render_table(only({}, {"micro_batch_size": "8", "grad_accum_steps": "16"})))
    assert run(words(source="table.csv")) == 2
    assert "the table has no row of cpu with 2 GPUs a node" in capsys.readouterr().err
    assert not (here / "past.csv").exists()


@pytest.mark.bad_input(43)
@pytest.mark.parametrize(
    ("given", "code", "told"),
    [
        (words(), 2, "--objective samples_per_sec or"),
        (words("--objective", "tokens_per_sec", "--name", "tp"), 2, "--name TP=tensor_parallel"),
        (words(source="nobody.csv"), 2, "cannot be read"),
        (words(source="search.yaml"), 2, "has no known format of results"),
        (words("--objective", "tokens_per_sec", out="results.csv"), 2, "use a new file"),
        (["import", "results.csv", "search.yaml"], 2, "--out"),
    ],
    ids=["objective", "name", "missing", "unknown", "exists", "no-out"],
)
def test_what_cannot_be_imported_is_refused_and_nothing_written(here, capsys, given, code, told):
    assert run(given) == code
    assert told in capsys.readouterr().err
    assert not (here / "past.csv").exists()
    assert (here / "results.csv").read_text() == RESULTS


@pytest.mark.bad_input(43)
def test_what_is_no_plain_file_or_no_text_is_not_waited_for(here, capsys):
    os.mkfifo(here / "pipe.csv")
    (here / "model.pkl").write_bytes(b"\x80\x04\x95")
    for source, told in (("pipe.csv", "not a regular file"), ("model.pkl", "not UTF-8")):
        assert run(words(source=source)) == 2
        assert told in capsys.readouterr().err


def test_results_that_say_nothing_leave_with_no_measurement(here, capsys):
    (here / "results.csv").write_text("p:tp,objective,job_status\n1,F,CANCELLED\n")
    assert run(words("--objective", "tokens_per_sec")) == 3
    refused = capsys.readouterr().err
    assert "has no result with a layout; left out: 1 cancelled" in refused
    assert "fix: use finished results" in refused
    assert not (here / "past.csv").exists()
