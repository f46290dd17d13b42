"""Slurm quick start: every command, on a Slurm that it starts and stops itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm.sandbox.sandbox import SlurmSandbox
from tests.docs.console import ROOT, assert_as_shown, commands_of, environment_of_a_user, run
from tests.orchestrator.cli.parlay import parlay
from tests.slurm.sandboxes import require_slurm, short_folder

PAGE = ROOT / "docs" / "quickstart_slurm.md"


@pytest.fixture
def home(monkeypatch) -> Iterator[Path]:
    """A home short enough for the sandbox that lies in it; nothing that a page left half done outlives the test."""
    require_slurm(accounting=False)
    monkeypatch.delenv("SLURM_CONF", raising=False)
    with short_folder() as folder:
        folder.chmod(0o700)
        monkeypatch.setenv("PARLAY_HOME", str(folder))
        try:
            yield folder
        finally:
            end(SlurmSandbox.found_in(folder / "slurm-sandbox"), monkeypatch)


def end(sandbox: SlurmSandbox | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """First what is driven on it, which would wait for it."""
    if sandbox is None:
        return
    if sandbox.running():
        monkeypatch.setenv("SLURM_CONF", sandbox.environment["SLURM_CONF"])
        parlay("cancel", cwd=sandbox.paths.folder)
    sandbox.stop()


@pytest.mark.processes
@pytest.mark.walks
@pytest.mark.minutes
@pytest.mark.timeout(1500)
def test_every_command_of_the_page_does_what_it_shows(home, tmp_path):
    commands = commands_of(PAGE.read_text())
    assert len(commands) > 15
    assert_as_shown(commands, run(commands, tmp_path, environment_of_a_user(), timeout_s=1400))
    assert not SlurmSandbox.found_in(home / "slurm-sandbox").running()


def test_no_command_of_the_page_is_left_out():
    typed, ran = (
        [command.typed for command in commands_of(PAGE.read_text(), marked=marked)] for marked in (False, True)
    )
    assert typed == ran
