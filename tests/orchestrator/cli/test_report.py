"""`parlay report`: the search as a page, in its folder or where it is wanted."""

from __future__ import annotations

import json

import pytest

from orchestrator.cli.main import run
from tests.orchestrator.cli.simulated import OUT_OF_MEMORY, write_simulated_search
from trials.files.folders import SearchFolder

pytestmark = pytest.mark.slow


@pytest.fixture
def ended(tmp_path, monkeypatch, capsys) -> SearchFolder:
    """A search of three layouts that has ended."""
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    rows = ({"step_time_s": "4.5"}, {"step_time_s": "3.5"}, OUT_OF_MEMORY)
    assert run(["run", str(write_simulated_search(tmp_path, *rows)), "--json"]) == 0
    return SearchFolder(tmp_path / "runs" / json.loads(capsys.readouterr().out)["search_id"])


def test_a_search_that_has_ended_left_its_report_and_the_verb_writes_it_anew(ended, capsys):
    left = ended.report.read_text()
    assert f"<code>{ended.search_id}</code>" in left
    assert ended.report.stat().st_mode & 0o777 == 0o600
    ended.report.write_text("an old one")
    assert run(["report", ended.search_id, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"schema": "parlay.report/1", "search_id": ended.search_id, "file": str(ended.report)}
    assert f"<code>{ended.search_id}</code>" in ended.report.read_text()


def test_it_goes_where_it_is_wanted_and_over_nothing(ended, tmp_path, capsys):
    wanted = tmp_path / "for-the-boss.html"
    assert run(["report", str(ended.path), "--output", str(wanted)]) == 0
    before = wanted.read_text()
    assert run(["report", str(ended.path), "--output", str(wanted)]) == 2
    assert "use a new file" in capsys.readouterr().err
    assert wanted.read_text() == before
