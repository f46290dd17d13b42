"""Bad input as the command and the service report it. What is refused of a search file:
tests/orchestrator/config/test_refusals.py."""

from __future__ import annotations

import json
import os

import pytest

from orchestrator.cli.main import main as run
from orchestrator.config.schema.launcher import LauncherSection
from orchestrator.launchers import factory
from slurm.interface import SlurmSettings
from tests.bad_inputs.cli import SEARCH, Cli
from tests.orchestrator.service.asking import Served, served
from tests.strangers import STRANGER, needs_a_stranger
from trials.ledger import location


@pytest.mark.bad_input(1)
def test_whatever_reads_a_search_file_refuses_it_alike_and_writes_nothing(cli: Cli):
    cli.write(more="serch: 1\n")
    line = SEARCH.count("\n") + 1
    for verb in (["plan"], ["run"], ["run", "--dry-run"], ["submit"], ["selftest"], ["calibrate"]):
        problem = cli.refused(*verb, "search.yaml").about("serch")
        assert (problem["file"], problem["line"], problem["fix"]) == ("search.yaml", line, "did you mean search?"), verb


@pytest.mark.bad_input(4, 23, 49, 54)
@pytest.mark.security("directive_values")
@pytest.mark.parametrize(
    ("changes", "key", "told"),
    [
        (["a\x1b[31m=1"], "--set", r"\x1b"),
        (["space.tensor_parallel=7"], "space", "world rejected 6"),
        (["launcher={kind: slurm, slurm: {setup_file: gone.sh}}"], "launcher.slurm.setup_file", "is not a file"),
        (['launcher={kind: slurm, slurm: {account: "a\\n#SBATCH --uid=0"}}'], "launcher.slurm.account", r"a\n#SBATCH"),
        (["trainer={kind: megatron-lm, script: gone.py}"], "trainer.script", "is not a file"),
    ],
)
def test_a_refusal_of_any_step_of_a_run_is_reported_alike(cli: Cli, changes, key, told):
    refusal = cli.refused_run(*changes)
    problem = refusal.about(key)
    assert told in json.dumps(problem).replace("\\\\", "\\")
    assert "\x1b" not in problem["message"] + refusal.words


@pytest.mark.slow
@pytest.mark.bad_input(54)
def test_a_megatron_core_of_another_version_is_refused(cli: Cli):
    """tests/orchestrator/diagnostics/preflight/test_engine_packages.py has the other cases."""
    python = cli.folder / "python"
    python.write_text('#!/bin/sh\necho \'{"torch module": "found", "megatron-core": "0.15.3"}\'\n')
    python.chmod(0o755)
    cli.write()
    alone = ("cluster.gpus_per_node=1", "baseline={}", "space={engine: megatron-core}", f"trainer.python={python}")
    for verb in ("run", "selftest", "calibrate"):
        problem = cli.refused(verb, "search.yaml", *(word for text in alone for word in ("--set", text)))
        assert "megatron-core 0.15.3 is installed" in problem.about("trainer.python")["message"]


@pytest.mark.bad_input(49)
@pytest.mark.parametrize(("words", "key"), [(["run", "--sett", "a=1"], "--sett"), (["plan", "--top", "x"], "--top")])
def test_an_option_nobody_knows_or_of_a_wrong_type_is_reported_with_the_usage(cli: Cli, words, key):
    cli.write()
    assert cli.refused(*words, "search.yaml").about(key)["rule"].startswith(f"Usage: parlay {words[0]} [OPTIONS] ")


@pytest.mark.walks
@pytest.mark.slow
@pytest.mark.bad_input(52)
@pytest.mark.timeout(120)
def test_a_plan_with_sizes_at_the_ends_of_their_ranges_comes_to_an_end(cli: Cli):
    cli.write()
    sizes = ["model.num_layers=10000", "model.hidden_size=100000000", "model.num_attention_heads=100000000"]
    sizes += ["model.vocab_size=1000000000", "model.seq_length=1000000000", "global_batch_size=1000000000"]
    sizes += ["cluster.gpus_per_node=100000", "cluster.num_nodes=10", "space.pipeline_parallel=[1, 5000, 10000]"]
    words = [word for size in [*sizes, "space.tensor_parallel=[1, 100]"] for word in ("--set", size)]
    assert run(["plan", "search.yaml", *words]) == 0
    assert "on 1000000 ranks" in cli.capsys.readouterr().out


@pytest.mark.bad_input(48)
def test_a_poll_interval_below_the_floor_is_raised_and_that_is_said():
    section = LauncherSection.model_validate({"kind": "slurm", "slurm": {"poll_interval": "0.2s"}})
    floor_s, remark = factory.poll_interval_s(section.slurm.poll_interval_s, SlurmSettings())
    assert (floor_s, remark) == (1.0, "launcher.slurm.poll_interval 0.2 s is raised to 1 s")


@pytest.fixture
def service(cli: Cli):
    with served(cli.home, cli.folder) as found:
        yield found


def refused(service: Served, text: str, *sets: str) -> dict:
    """Error object of the answer to a search file with this text, after which no search is there."""
    body = {"yaml": text, "directory": str(service.folder), "set": list(sets)}
    answer = service.client.post("/v1/searches", json=body)
    assert answer.status_code == 400, answer.text
    assert not (service.folder / "runs").exists()
    assert service.client.get("/v1/searches").json()["searches"] == []
    return answer.json()["error"]


@pytest.mark.bad_input(1, 3, 12, 46)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("launcher:", "lancher:"),
        ("name: tiny", "name: !!python/name:os.system"),
        ("name: tiny", r'name: "a\e[31m"'),
    ],
)
def test_whatever_the_command_refuses_the_service_refuses_in_the_same_words(service: Served, cli: Cli, old, new):
    found = refused(service, SEARCH.replace(old, new))
    cli.write(old, new)
    assert found | {"file": None} == cli.refused_run().error | {"file": None}


@pytest.mark.bad_input(27, 46)
@pytest.mark.security("secrets", "service")
@pytest.mark.parametrize(
    "line",
    [
        "ledger: {url: 'postgresql://me:hunter2@db/l'}",
        "x: {password: hunter2}",
        "env:\n  A: 1\n  HF_TOKEN hunter2\n  B: 1",
    ],
)
def test_a_secret_in_a_body_is_refused_and_neither_answered_nor_logged(service: Served, line: str):
    error = refused(service, f"{SEARCH}{line}\n")
    assert error["code"] == "secret"
    assert "hunter2" not in json.dumps(error) + "".join(service.log)


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
    (cli.folder / "everybodys").mkdir()
    (cli.folder / "everybodys").chmod(0o777)
    (cli.folder / "file").write_text("")
    (cli.folder / "search").mkdir()
    (cli.folder / "search" / "journal.jsonl").write_text("{}\n")
    (cli.folder / "nowhere").symlink_to(cli.folder / "gone" / "for" / "good")
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
    for verb in ("status", "best", "resume", "cancel", "sync", "export", "logs t0001"):
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
