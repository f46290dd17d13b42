"""Fixtures: commands run one after another in this process, and a search that has ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.main import main as run
from tests.orchestrator.cli.simulated import OUT_OF_MEMORY, write_simulated_search
from trials.files.folders import SearchFolder

Answered = tuple[int, dict[str, Any], str]


@pytest.fixture
def parlay(tmp_path, monkeypatch, capfd) -> Callable[..., Answered]:
    """Run a command in `tmp_path` and return its exit code, its object and its remarks."""
    monkeypatch.chdir(tmp_path)

    def answered(*words: str | Path) -> Answered:
        code = run([*map(str, words), "--json"])
        out, err = capfd.readouterr()
        return code, json.loads(out), err

    return answered


@pytest.fixture
def url(own_home) -> str:
    """URL of the default ledger."""
    return f"sqlite:///{own_home}/ledger.db"


@pytest.fixture
def ended(tmp_path, parlay) -> SearchFolder:
    """A search that has ended: of its three layouts the second is the fastest, and the third does not fit."""
    rows = ({"step_time_s": "4.5"}, {"step_time_s": "3.5"}, OUT_OF_MEMORY)
    code, answer, err = parlay("run", write_simulated_search(tmp_path, *rows))
    assert code == 0, err
    return SearchFolder(tmp_path / "runs" / answer["search_id"])
