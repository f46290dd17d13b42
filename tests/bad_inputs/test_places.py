"""Lines 31 to 36, 45 and 50: names of searches, folders for them, ids, and their display."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.cli.main import run
from tests.bad_inputs.cli import Cli
from tests.strangers import STRANGER, needs_a_stranger
from trials.ledger import location


def in_the_way(folder: Path) -> None:
    (folder / "everybodys").mkdir()
    (folder / "everybodys").chmod(0o777)
    (folder / "file").write_text("")
    (folder / "search").mkdir()
    (folder / "search" / "journal.jsonl").write_text("{}\n")
    (folder / "nowhere").symlink_to(folder / "gone" / "for" / "good")


CANNOT_HOLD_SEARCHES = {
    "everybodys": "is world-writable",
    "file": "is not a folder",
    "search": "is inside the search",
    "x" * 300: "File name too long",
    "/" + "x/" * 1950: "at most 3800 fit",
    "nowhere": "",
}
VERBS = ("run", "submit", "selftest", "calibrate")


@pytest.mark.slow
@pytest.mark.bad_input(32)
def test_a_work_directory_that_cannot_hold_searches_is_refused(cli: Cli):
    in_the_way(cli.folder)
    cli.write()
    for verb in VERBS:
        for work_dir, words in CANNOT_HOLD_SEARCHES.items():
            problem = cli.refused(verb, "search.yaml", "--work-dir", work_dir).about("work_dir")
            assert words in problem["message"], verb
            assert problem["value"].startswith("/")


@pytest.mark.bad_input(32)
@pytest.mark.security("paths")
@needs_a_stranger
def test_a_work_directory_behind_a_folder_of_somebody_else_is_refused(cli: Cli):
    theirs = cli.folder / "theirs"
    (theirs / "runs").mkdir(parents=True)
    os.chown(theirs, STRANGER, -1)
    cli.write()
    for mode in (0o755, 0o1777):
        theirs.chmod(mode)
        for verb in VERBS:
            problem = cli.refused(verb, "search.yaml", "--work-dir", "theirs/runs").about("work_dir")
            assert f"{theirs}, which belongs to user {STRANGER}" in problem["message"], (verb, oct(mode))


@pytest.mark.bad_input(32)
@pytest.mark.security("paths")
@needs_a_stranger
def test_a_home_behind_a_folder_of_somebody_else_is_refused(cli: Cli, monkeypatch):
    theirs = cli.folder / "theirs"
    (theirs / "parlay").mkdir(parents=True, mode=0o700)
    os.chown(theirs, STRANGER, -1)
    (cli.folder / "link").symlink_to(theirs / "parlay")
    cli.write()
    for named in (theirs / "parlay", cli.folder / "link"):
        monkeypatch.setenv("PARLAY_HOME", str(named))
        problem = cli.refused("run", "search.yaml").about("ledger.url")
        assert f"{theirs}, which belongs to user {STRANGER}" in problem["message"]


@pytest.mark.bad_input(33)
def test_a_ledger_in_sqlite_on_a_shared_file_system_is_refused_with_a_local_path(cli: Cli, monkeypatch):
    mounts = f"/dev/sda1 / ext4 rw 0 0\nserver:/x {cli.folder}/far fuse.sshfs rw 0 0\n"
    monkeypatch.setattr(location, "_mounts", lambda: mounts)
    cli.write()
    url = f"sqlite:///{cli.folder}/far/ledger.db"
    problem = cli.refused("run", "search.yaml", "--ledger", url).about("ledger.url")
    assert (problem["value"], problem["fix"]) == (url, f"use sqlite:///{cli.home}/ledger.db")
    assert "(sshfs)" in problem["message"]


@pytest.mark.bad_input(45)
def test_an_unknown_id_is_told_what_an_id_is(cli: Cli):
    for verb in ("status", "best", "resume", "cancel", "sync", "export", "logs t0001 --search"):
        for given in ("nosuch-aaaaaa", "../..", "/etc/passwd", "x" * 300, "\x1b]0;t\x07"):
            problem = cli.refused(*verb.split(), given, code=4).about("search")
            assert problem["code"] == "unknown_id", (verb, given)
            assert "\x1b" not in problem["message"]


@pytest.mark.bad_input(50)
@pytest.mark.parametrize("words", [("run", "\x1b[31mx.yaml"), ("plan", "x", "--\x1b[31m"), ("\x1b[31m",)])
def test_what_was_typed_steers_no_terminal(cli: Cli, words):
    assert run(list(words)) == 2
    said = cli.capsys.readouterr()
    assert "\x1b" not in said.out + said.err
