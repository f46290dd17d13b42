"""Fixtures of the search loop's tests."""

from __future__ import annotations

import pytest

from orchestrator.search import stopping
from tests.rig import Rig


@pytest.fixture
def constant_limits(monkeypatch):
    """Keep every attempt at the search file's time limit, so that reservations are constant."""
    monkeypatch.setattr(stopping, "MIN_TRIALS_FOR_LIMIT", 10**9)


@pytest.fixture
def rig(tmp_path) -> Rig:
    """A search on a simulated clock, with a launcher whose attempts follow scripts."""
    return Rig("scripted", tmp_path)
