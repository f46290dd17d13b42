from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.cli.main import main as run
from tests.bad_inputs.cli import Cli
from tests.orchestrator.cli.simulated import OK, OUT_OF_MEMORY, write_simulated_search


@pytest.fixture
def cli(tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path, own_home, capsys)


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
def ended(cli: Cli, searched: Path) -> Path:
    """A copy of that search's folder in the working directory. Refer to it by path: its journal names the original."""
    shutil.copytree(searched, cli.folder, dirs_exist_ok=True)
    [journal] = cli.folder.glob("runs/*/journal.jsonl")
    cli.capsys.readouterr()
    return journal.parent
