"""docs/api.md: its examples run, and it names everything in the API."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator import api
from orchestrator.replay import run
from tests.orchestrator.cli.simulated import write_simulated_search
from tests.orchestrator.scripted import in_turn

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"


@pytest.mark.timeout(120)
def test_its_examples_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    of_the_replay = SimpleNamespace(make_launcher=lambda *_, **__: (in_turn(3.5), None))
    monkeypatch.setattr(run, "factory", of_the_replay)  # searches have the real ones, whoever is imported first
    write_simulated_search(tmp_path, *({"step_time_s": seconds} for seconds in ("4.5", "3.5", "5.5")))
    names: dict[str, object] = {}
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    assert len(examples) == 5
    out = capsys.readouterr().out
    assert "t0002" in out
    assert "slower" in out
    assert "did you mean max_trials?" in out
    assert {"for-others.html", "progress.html"} <= {path.name for path in tmp_path.iterdir()}


def test_every_name_of_the_api_stands_there():
    text = PAGE.read_text()
    functions = {name for name in api.__all__ if name[0].islower()}
    assert {name for name in functions if f"`{name}(" not in text} == set()
    members = {name for name in vars(api.Search) if not name.startswith("_")}
    assert {name for name in members if not re.search(rf"[`( ]{name}[`( ]", text)} == set()
