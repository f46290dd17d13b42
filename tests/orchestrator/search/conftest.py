"""Shared by the tests of the search's rooms."""

from __future__ import annotations

import pytest

from orchestrator.search import stopping
from tests.orchestrator.search.rig import Rig


@pytest.fixture
def constant_limits(monkeypatch):
    """Every attempt has the search file's time limit, so that what is reserved for it is one number."""
    monkeypatch.setattr(stopping, "MIN_TRIALS_FOR_LIMIT", 10**9)


@pytest.fixture
def rig(tmp_path) -> Rig:
    """A search on a simulated clock, with a launcher whose attempts end as scripts say."""
    return Rig(tmp_path)
