from __future__ import annotations

from pathlib import Path

import pytest

from tests.bad_inputs.desk import Desk


@pytest.fixture
def desk(tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    """A desk of its own, in whose folder commands are typed."""
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path, own_home, capsys)
