"""Half-created folders of killed processes are removed when the next search is created."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.lifecycle.create import create_search
from tests.orchestrator.cli.parlay import environment
from tests.orchestrator.cli.simulated import OK, write_simulated_search
from trials.ledger.location import ledger_url

KILLED = """
import os, signal, sys
from pathlib import Path
from orchestrator.lifecycle import create
from orchestrator.config.loader import load_search_file
from trials.ledger.location import ledger_url
create.snapshot_code = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
create.create_search(load_search_file(Path(sys.argv[1])), ledger_url())
"""


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_the_folder_of_a_search_whose_maker_was_killed_is_removed_by_the_next_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_simulated_search(tmp_path, OK)
    killed = subprocess.run([sys.executable, "-c", KILLED, path], env=environment(), timeout=100)
    assert killed.returncode == -signal.SIGKILL
    spec = load_search_file(path)
    [left] = spec.work_dir.iterdir()
    assert left.name.startswith(".table-")
    folder = create_search(spec, ledger_url())
    assert list(spec.work_dir.iterdir()) == [folder.path]
    assert not (folder.path / "owner.json").exists()
