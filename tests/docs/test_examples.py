"""Examples of the pages, run as they stand there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.replay import run as replay_run
from slurm.sandbox.sandbox import SlurmSandbox
from tests.docs.console import (
    ROOT,
    Command,
    assert_as_shown,
    commands_of,
    environment_of_a_user,
    is_as_shown,
    pages,
    run,
)
from tests.orchestrator.cli.parlay import parlay
from tests.orchestrator.cli.simulated import write_simulated_search
from tests.orchestrator.scripted import in_turn
from tests.slurm.sandboxes import require_slurm, short_folder

ON_SLURM, API = ROOT / "docs" / "quickstart_slurm.md", ROOT / "docs" / "api.md"
PAGES = [str(page.relative_to(ROOT)) for page in pages() if commands_of(page.read_text()) and page != ON_SLURM]


@pytest.mark.slow
@pytest.mark.timeout(120)  # a handful of command lines each
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_do_what_it_shows(page, tmp_path):
    commands = commands_of((ROOT / page).read_text())
    assert_as_shown(commands, run(commands, tmp_path, environment_of_a_user(), timeout_s=110))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_examples_of_the_api_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    of_the_replay = SimpleNamespace(make_launcher=lambda *_, **__: (in_turn(3.5), None))
    monkeypatch.setattr(replay_run, "factory", of_the_replay)  # searches have the real ones, whoever is imported first
    write_simulated_search(tmp_path, *({"step_time_s": seconds} for seconds in ("4.5", "3.5", "5.5")))
    names: dict[str, object] = {}
    examples = re.findall(r"```python\n(.*?)```", API.read_text(), re.DOTALL)
    for example in examples:
        exec(compile(example, str(API), "exec"), names)
    assert len(examples) == 5
    assert {"for-others.html", "progress.html"} <= {path.name for path in tmp_path.iterdir()}
    assert "t0002" in capsys.readouterr().out


@pytest.fixture
def home(monkeypatch) -> Iterator[Path]:
    """A home short enough for the sandbox that lies in it; nothing that a page left half done outlives the test."""
    require_slurm(accounting=False)
    monkeypatch.delenv("SLURM_CONF", raising=False)
    with short_folder() as folder:
        folder.chmod(0o700)
        monkeypatch.setenv("PARLAY_HOME", str(folder))
        yield folder
        sandbox = SlurmSandbox.found_in(folder / "slurm-sandbox")
        if sandbox is not None and sandbox.running():
            monkeypatch.setenv("SLURM_CONF", sandbox.environment["SLURM_CONF"])
            parlay("cancel", cwd=folder)  # a driver would wait for what is stopped
        if sandbox is not None:
            sandbox.stop()


@pytest.mark.processes
@pytest.mark.walks
@pytest.mark.minutes
@pytest.mark.timeout(1500)
def test_every_command_of_the_slurm_quick_start_does_what_it_shows(home, tmp_path):
    commands = commands_of(ON_SLURM.read_text())
    assert [command.typed for command in commands_of(ON_SLURM.read_text(), marked=False)] == [
        command.typed for command in commands
    ]
    assert_as_shown(commands, run(commands, tmp_path, environment_of_a_user(), timeout_s=1400))
    assert not SlurmSandbox.found_in(home / "slurm-sandbox").running()


def test_a_command_that_leaves_with_another_code_or_prints_something_else_is_noticed(tmp_path):
    commands = [Command("(exit 8)", codes=(8, 9)), Command("false | cat"), Command("echo never")]
    with pytest.raises(AssertionError, match="left with 1"):
        assert_as_shown(commands, run(commands, tmp_path, os.environ, timeout_s=8))
    assert is_as_shown(("a", "...", "t0002  3,488 ± 638 tokens/s"), "a\nb\nt0017 12 ± 1.5 tokens/s\n")
    for shown, printed in ((("a", "b"), "a\n"), (("a ... c",), "a b\n"), (("33 layouts",), "21 layouts\n")):
        assert not is_as_shown(shown, printed)
