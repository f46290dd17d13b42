"""Fixture for tests of the command line: commands run one after another in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.main import run

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
