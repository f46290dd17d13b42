from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.cli.main import run
from tests.bad_inputs.desk import Desk
from tests.orchestrator.cli.simulated import OK, OUT_OF_MEMORY, write_simulated_search


@pytest.fixture
def desk(tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    """An empty desk to run commands in."""
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path, own_home, capsys)


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished search of three trials, with its recipe."""
    folder = tmp_path_factory.mktemp("searched")
    write_simulated_search(folder, OK, OUT_OF_MEMORY, OK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARLAY_HOME", str(tmp_path_factory.mktemp("home")))
        patch.chdir(folder)
        assert run(["run", "search.yaml", "--json"]) == 0
    return folder


@pytest.fixture
def ended(desk: Desk, searched: Path) -> Path:
    """A copy of that search's folder below the desk's. Refer to it by path: its journal names the original."""
    shutil.copytree(searched, desk.folder, dirs_exist_ok=True)
    [journal] = desk.folder.glob("runs/*/journal.jsonl")
    desk.capsys.readouterr()
    return journal.parent
