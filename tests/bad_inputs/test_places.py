"""Lines 31 to 36, 45 and 50: names of searches, places for them, ids, and what is shown of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.cli.main import run
from tests.bad_inputs.desk import Desk
from tests.strangers import STRANGER, needs_a_stranger
from trials.ledger import place


@pytest.mark.bad_input(31)
@pytest.mark.parametrize(
    "name", ["../x", "a/b", "..", ".x", "", "a" * 42, "\u0430lpha", "Big", "a b", "-x", "a\u200bb", "x$(id)", "x\n"]
)
def test_a_search_name_outside_its_pattern_is_refused(desk: Desk, name):
    desk.write("name: tiny", f"name: {json.dumps(name)}")
    assert desk.refused_run().about("name")["value"] in (name, ascii(name))


def in_the_way(folder: Path) -> None:
    (folder / "everybodys").mkdir()
    (folder / "everybodys").chmod(0o777)
    (folder / "file").write_text("")
    (folder / "search").mkdir()
    (folder / "search" / "journal.jsonl").write_text("{}\n")
    (folder / "nowhere").symlink_to(folder / "gone" / "for" / "good")


@pytest.mark.bad_input(32)
@pytest.mark.parametrize(
    ("work_dir", "words"),
    [
        ("everybodys", "can be written by everybody"),
        ("everybodys/deeper", "can be written by everybody"),
        ("file", "is not a folder"),
        ("file/below", "is not a folder"),
        ("search", "lies inside the search"),
        ("search/runs", "lies inside the search"),
        ("x" * 300, "File name too long"),
        ("/" + "x/" * 1950, "3800 are the most"),
    ],
)
@pytest.mark.parametrize("verb", ["run", "submit", "selftest", "calibrate"])
def test_a_work_directory_that_cannot_hold_searches_is_refused(desk: Desk, work_dir, words, verb):
    in_the_way(desk.folder)
    desk.write()
    problem = desk.refused(verb, "search.yaml", "--work-dir", work_dir).about("work_dir")
    assert words in problem["message"]
    assert problem["value"].startswith("/")


@pytest.mark.bad_input(32)
@pytest.mark.security("paths")
@needs_a_stranger
@pytest.mark.parametrize("verb", ["run", "submit", "selftest", "calibrate"])
@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_a_work_directory_behind_a_folder_of_somebody_else_is_refused(desk: Desk, mode, verb):
    theirs = desk.folder / "theirs"
    (theirs / "runs").mkdir(parents=True)
    os.chown(theirs, STRANGER, -1)
    theirs.chmod(mode)
    desk.write()
    problem = desk.refused(verb, "search.yaml", "--work-dir", "theirs/runs").about("work_dir")
    assert f"{theirs}, which belongs to user {STRANGER}" in problem["message"]


@pytest.mark.bad_input(32)
@pytest.mark.security("paths")
@needs_a_stranger
def test_a_home_behind_a_folder_of_somebody_else_is_refused(desk: Desk, monkeypatch):
    theirs = desk.folder / "theirs"
    (theirs / "parlay").mkdir(parents=True, mode=0o700)
    os.chown(theirs, STRANGER, -1)
    (desk.folder / "link").symlink_to(theirs / "parlay")
    desk.write()
    for named in (theirs / "parlay", desk.folder / "link"):
        monkeypatch.setenv("PARLAY_HOME", str(named))
        problem = desk.refused("run", "search.yaml").about("ledger.url")
        assert f"{theirs}, which belongs to user {STRANGER}" in problem["message"]


@pytest.mark.bad_input(32)
def test_a_work_directory_that_is_a_link_to_nowhere_is_refused(desk: Desk):
    in_the_way(desk.folder)
    desk.write()
    desk.refused("run", "search.yaml", "--work-dir", "nowhere").about("work_dir")


@pytest.mark.bad_input(33)
@pytest.mark.parametrize("kind", ["nfs4", "lustre", "gpfs", "fuse.sshfs"])
def test_a_ledger_in_sqlite_on_a_shared_file_system_is_refused_with_a_local_path(desk: Desk, monkeypatch, kind):
    monkeypatch.setattr(
        place, "_mounts", lambda: f"/dev/sda1 / ext4 rw 0 0\nserver:/x {desk.folder}/far {kind} rw 0 0\n"
    )
    desk.write()
    url = f"sqlite:///{desk.folder}/far/ledger.db"
    problem = desk.refused("run", "search.yaml", "--ledger", url).about("ledger.url")
    assert (problem["value"], problem["fix"]) == (url, f"use sqlite:///{desk.home}/ledger.db")
    assert kind.removeprefix("fuse.") in problem["message"]


@pytest.mark.bad_input(34)
@pytest.mark.parametrize("url", ["mysql://db/l", "ledger.db", "sqllite:///l.db", "sqlite:///:memory:", "sqlite://"])
def test_a_ledger_of_an_unknown_kind_is_refused(desk: Desk, url):
    desk.write()
    assert desk.refused("run", "search.yaml", "--ledger", url).about("ledger.url")["value"] == url


@pytest.mark.bad_input(27, 34, 35)
@pytest.mark.security("secrets")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ledger.url", "postgresql://me:hunter2@db/parlay"),
        ("ledger.url", "postgresql://db/parlay?password=hunter2"),
        ("tracking.mlflow_uri", "http://me:hunter2@mlflow.example"),
        ("tracking.mlflow_uri", "https://mlflow.example?password=hunter2"),
        ("trainer.arguments", "[--token, hf_hunter2aaaaaaaaaaaaaaaaaaaaaa]"),
        ("launcher.slurm.env", "{WANDB_API_KEY: hunter2}"),
    ],
)
@pytest.mark.parametrize("where", ["file", "set"])
def test_a_secret_is_refused_and_not_repeated(desk: Desk, key, value, where):
    if where == "set":
        refusal = desk.refused_run(f"{key}={value}")
    else:
        top, _, rest = key.partition(".")
        section = f"{top}: " + "".join(f"{{{part}: " for part in rest.split("."))
        line = section + (value if value[0] in "[{" else json.dumps(value)) + "}" * (rest.count(".") + 1)
        old = {"launcher": "launcher: {kind: local}\n", "tracking": "tracking: {enabled: false}\n"}.get(top, "")
        desk.write(old, "", line + "\n")
        refusal = desk.refused_run()
    secrets = [problem for problem in refusal.problems if problem["code"] in ("secret", "ledger_url")]
    assert secrets
    assert all(problem["rule"] and problem["fix"] and problem["key"].startswith(key) for problem in secrets)
    assert "hunter2" not in json.dumps(refusal.error) + refusal.words


@pytest.mark.bad_input(35)
@pytest.mark.parametrize(
    ("uri", "fix"),
    [
        ("file:///home/me/mlruns", "sqlite:///mlflow.db"),
        ("./mlruns", "sqlite:///mlflow.db"),
        ("htp://mlflow.example", "did you mean http?"),
        ("postgrsql://db/mlflow", "did you mean postgresql?"),
        ("http://", "for example http://127.0.0.1:5000"),
    ],
)
def test_a_store_that_mlflow_does_not_have_is_refused_with_the_fix(desk: Desk, uri, fix):
    problem = desk.refused_run(f"tracking={{mlflow_uri: '{uri}'}}").about("tracking.mlflow_uri")
    assert problem["value"] == uri
    assert fix in problem["fix"]


@pytest.mark.bad_input(45)
@pytest.mark.parametrize("verb", ["status", "best", "logs", "resume", "cancel", "export", "sync"])
@pytest.mark.parametrize("given", ["nosuch-aaaaaa", "../..", "/etc/passwd", "a/../../b", "x" * 300, "\x1b]0;t\x07"])
def test_an_unknown_id_is_told_what_an_id_is(desk: Desk, verb, given):
    words = {"export": ["export", given, "--measured"], "logs": ["logs", "t0001", "--search", given]}
    refusal = desk.refused(*words.get(verb, [verb, given]), code=4)
    problem = refusal.about("search")
    assert problem["code"] == "unknown_id"
    assert "\x1b" not in problem["message"]


@pytest.mark.bad_input(50)
@pytest.mark.parametrize("words", [("run", "\x1b[31mx.yaml"), ("plan", "x", "--\x1b[31m"), ("\x1b[31m",)])
def test_what_was_typed_steers_no_terminal(desk: Desk, words):
    assert run(list(words)) == 2
    said = desk.capsys.readouterr()
    assert "\x1b" not in said.out + said.err


@pytest.mark.bad_input(50)
@pytest.mark.parametrize("sign", ["\x1b[31m", "\x07", "\u202e", "\u200b", "\x9b31m", "\r"])
@pytest.mark.parametrize("key", ["tracking.experiment", "launcher.slurm.comment", "trainer.python"])
def test_a_sign_that_steers_a_terminal_is_refused_in_a_file(desk: Desk, key, sign):
    *above, last = key.split(".")
    inner = f"{{{last}: {json.dumps('a' + sign + 'b')}}}"
    for part in reversed(above[1:]):
        inner = f"{{{part}: {inner}}}"
    old = {"launcher": "launcher: {kind: local}\n", "tracking": "tracking: {enabled: false}\n"}.get(above[0], "")
    desk.write(old, "", f"{above[0]}: {inner}\n")
    refusal = desk.refused_run()
    assert [problem["code"] for problem in refusal.problems if problem["key"] == key] == ["control_character"]
    assert sign not in json.loads(json.dumps(refusal.error))["message"] + refusal.words
