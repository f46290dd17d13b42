"""Shared by the tests of the launchers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.orchestrator.launchers.pilot_bench import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A launcher with pilots of two nodes, on a simulated cluster of four."""
    return Rig(tmp_path)
