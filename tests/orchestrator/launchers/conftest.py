"""Fixtures of the launchers' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rig import JobsBench, PilotBench


@pytest.fixture
def bench(tmp_path: Path) -> JobsBench:
    """A launcher with a job for each attempt, on a simulated cluster of four nodes."""
    return JobsBench(tmp_path)


@pytest.fixture
def rig(tmp_path: Path) -> PilotBench:
    """A launcher with pilots of two nodes, on a simulated cluster of four."""
    return PilotBench(tmp_path)
