"""Shared by the tests of the search's rooms."""

from __future__ import annotations

import pytest

from orchestrator.search import time_limits


@pytest.fixture
def constant_limits(monkeypatch):
    """Every attempt has the search file's time limit, so that what is reserved for it is one number."""
    monkeypatch.setattr(time_limits, "TRIALS_THAT_TELL", 10**9)
