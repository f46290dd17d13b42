"""`parlay forecast` of a search and of a table, and its errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.forecast import _remarks
from orchestrator.cli.main import run
from orchestrator.planning.forecast import Contender, Forecast, LayoutSpeed, Scaling
from search_spaces.layouts.layout import LAYOUT_FIELDS, Layout
from tests.orchestrator.cli.parlay import environment
from tests.orchestrator.cli.simulated import OUT_OF_MEMORY, write_simulated_search

pytestmark = pytest.mark.slow

ROWS = ({"step_time_s": "4.5"}, {"step_time_s": "3.5"}, {"step_time_s": "5.5"})
FIELDS = {
    *("scaling", "num_nodes", "global_batch_size", "layout", "layout_key", "step_time_s", "step_time_low_s"),
    *("step_time_high_s", "tokens_per_sec", "tokens_per_sec_per_gpu", "efficiency", "fits", "contenders"),
    "uncertain_terms",
}


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def search_id(place, capsys) -> str:
    """A search of three layouts on one node that has ended."""
    assert run(["run", str(write_simulated_search(place, *ROWS)), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["search_id"]


def asked(capsys, *words: str) -> dict:
    assert run(["forecast", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_search_is_forecast_at_twice_four_and_eight_times_its_nodes(search_id, capsys):
    answer = asked(capsys, search_id[:7])
    assert answer["schema"] == "parlay.forecast/1"
    assert (answer["search_id"], answer["table"], answer["trials"]) == (search_id, None, 3)
    assert (answer["base"]["num_nodes"], answer["base"]["step_time_s"]) == (1, 3.5)
    cells = [(f["scaling"], f["num_nodes"], f["global_batch_size"]) for f in answer["forecasts"]]
    assert cells == [
        *(("weak", nodes, 256 * nodes) for nodes in (2, 4, 8)),
        *(("strong", nodes, 256) for nodes in (2, 4, 8)),
    ]
    for found in answer["forecasts"]:
        assert set(found) == FIELDS
        assert set(found["layout"]) == set(LAYOUT_FIELDS)
        assert found["step_time_low_s"] < found["step_time_s"] < found["step_time_high_s"]


def test_the_newest_search_in_words_with_nodes_and_scaling_of_ones_own(search_id, capsys):
    assert run(["forecast", "--nodes", "3, 2,2", "--scaling", "weak", "--top", "1"]) == 0
    words = capsys.readouterr().out
    assert "from 3 measured layouts; the best on 1 node: 3.5 s" in words
    assert "weak scaling, the global batch grows with the nodes:" in words
    assert "strong scaling" not in words
    rows = [line.split()[:2] for line in words.splitlines() if line.startswith("     ") and line.split()[0].isdigit()]
    assert rows == [["2", "512"], ["3", "768"]]
    assert "mostly unknown: no trial measured" in words


def test_a_cluster_that_is_described_takes_the_place_of_the_searches_own(search_id, capsys):
    assert any("the links" in note for note in asked(capsys, search_id)["notes"]) is False
    notes = asked(capsys, search_id, "--cluster", "playbook-h100", "--nodes", "128")["notes"]
    assert any("measured up to 64 nodes" in note for note in notes)


def test_a_table_is_forecast_without_a_search(place, capsys):
    write_simulated_search(place, *ROWS)
    answer = asked(capsys, "table.csv", "--problem", "1B-8gpu", "--cluster", "playbook-h100", "--nodes", "128")
    assert (answer["search_id"], answer["table"], answer["problems"]) == (None, "table.csv", ["1B-8gpu"])
    assert any("measured up to 64 nodes" in note for note in answer["notes"])
    assert not any("the links" in note for note in answer["notes"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["table.csv", "--problem", "2B"], "no problem '2B'"),
        (["table.csv", "--cluster", "frontier"], "--cluster: has nodes of 8 mi250x-gcd-64gb"),
        (["table.csv", "--cluster", "nowhere"], "--cluster: no preset is called 'nowhere'"),
        (["table.csv", "--nodes", "2,x"], "--nodes: is '2,x'"),
        (["table.csv", "--nodes", "0"], "whole numbers from 1 to 100000"),
        (["table.csv", "--nodes", "9" * 5000], "whole numbers from 1 to 100000"),
        (["absent.csv"], "absent.csv: cannot be read"),
        (["--problem", "1B"], "--problem: is for a table"),
        (["--problem", "1B"], "fix: leave it out, or name a measured table"),
    ],
)
def test_what_cannot_be_forecast_is_refused(place, capsys, words, told):
    write_simulated_search(place, *ROWS)
    assert run(["forecast", *words]) == 2
    assert told in capsys.readouterr().err


def test_a_search_that_measured_too_little_is_refused(place, capsys):
    assert run(["run", str(write_simulated_search(place, *ROWS[:2], OUT_OF_MEMORY)), "--json"]) == 0
    capsys.readouterr()
    assert run(["forecast"]) == 2
    assert "has 2 measured layouts of 3 tried" in capsys.readouterr().err


@pytest.mark.processes
def test_it_is_reported_without_what_only_a_search_needs(place):
    write_simulated_search(place, *ROWS)
    program = (
        "import sys; from orchestrator.cli.main import run; run(['forecast', 'table.csv', '--json']);"
        "print([m for m in ('torch', 'ray', 'mlflow', 'deephyper', 'deepspeed') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=place, env=environment(), capture_output=True, text=True, timeout=50
    )
    assert done.stderr == "[]\n"
    assert json.loads(done.stdout)["trials"] == 3


@pytest.mark.parametrize(
    ("place_in_list", "words"),
    [
        (0, "the best is one of 3: a (50%); b (30%)"),
        (1, "the best is one of 3: a (50%); b (30%); the plan's first, shown above, is the best with probability 30%"),
        (2, "the best is one of 3: a (50%); b (30%); the plan's first, shown above, is the best with probability 20%"),
        (3, "the best is one of 3: a (50%); b (30%); the plan's first, shown above, is none of them"),
    ],
)
def test_a_row_says_how_likely_its_own_layout_is_where_another_is_likelier(place_in_list, words):
    layouts = [Layout(micro_batch_size=size) for size in (1, 2, 4, 8)]
    names = dict(zip((layout.key for layout in layouts), "abcd", strict=True))
    probabilities = zip(layouts[:3], (0.5, 0.3, 0.2), strict=True)
    contenders = tuple(Contender(layout, probability, 1.0, None) for layout, probability in probabilities)
    speed = LayoutSpeed(layouts[place_in_list], 1.0, 64)
    found = Forecast(Scaling.WEAK, speed, 0.5, 2.0, 1.0, None, contenders, ())
    assert list(_remarks(found, 2, names)) == [words]
