"""Line 51: paths that are not regular files, given as files or in place of a journal."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli.main import main as run
from tests.bad_inputs.cli import READERS, Cli, endless, pipe

pytestmark = pytest.mark.slow


def itself(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.bad_input(51)
@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["plan", "it.yaml"], "it.yaml"),
        (["init", "--from", "it.sh"], "it.sh"),
        (["compare", "it.yaml", "it.yaml"], "it.yaml"),
        (["replay", "it.yaml"], "it.yaml"),
        (["replay", "."], "recipe.yaml"),
        (["plan", "search.yaml", "--set", "space={candidates: it.csv}"], "it.csv"),
        (["import", "it.csv", "search.yaml", "--out", "past.csv"], "it.csv"),
    ],
)
def test_what_is_no_plain_file_is_refused_where_a_file_is_due(cli: Cli, words, name):
    cli.write()
    for make in (pipe, endless):
        (cli.folder / name).unlink(missing_ok=True)
        make(cli.folder / name)
        error = cli.refused(*words).error
        assert "not a regular file" in error["message"], make
        assert error["fix"]


@pytest.mark.bad_input(51)
@pytest.mark.security("paths")
@pytest.mark.parametrize("make", [pipe, endless, itself])
def test_a_journal_that_is_no_plain_file_is_refused(cli: Cli, ended: Path, make: Callable[[Path], None]):
    (ended / "journal.jsonl").unlink()
    make(ended / "journal.jsonl")
    for verb in READERS:
        assert run([*verb.split(), str(ended)]) == 6, verb
        assert "journal.jsonl is not a regular file" in cli.capsys.readouterr().err


@pytest.mark.security("paths")
def test_no_log_is_shown_through_a_link(cli: Cli, ended: Path):
    secret = cli.folder / "secret"
    attempt = ended / "trials" / "t0001" / "a1"
    for folder in (secret, attempt):
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("rank-00000.log", "rank-00001.log"):
        (secret / name).write_text("hunter2\n")
        (attempt / name).unlink(missing_ok=True)
        (attempt / name).symlink_to(secret / name)
    logs = ["logs", str(ended), "t0001"]
    for words in (logs, [*logs, "--rank", "0"], [*logs, "--rank", "1"]):
        assert "not a regular file" in cli.refused(*words, code=6).error["message"]
    shutil.rmtree(attempt)
    attempt.symlink_to(secret)
    for words in (logs, [*logs, "--rank", "0"]):
        assert "out of the search's folder" in cli.refused(*words, code=6).error["message"]


@pytest.mark.bad_input(51)
def test_a_folder_that_is_a_link_to_itself_is_no_search(cli: Cli):
    itself(cli.folder / "loop")
    assert "not a regular file" in cli.refused("status", "./loop", code=6).error["message"]
    assert cli.refused("ledger", "rebuild", "loop", code=4).error["fix"]
