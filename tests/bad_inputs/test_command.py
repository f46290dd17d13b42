"""Bad input as the command and the service report it. What is refused of a search file:
tests/orchestrator/config/test_refusals.py."""

from __future__ import annotations

import json

import pytest

from orchestrator.cli.main import run
from orchestrator.launchers import factory
from orchestrator.schema.launcher import LauncherSection
from slurm.interface import SlurmSettings
from tests.bad_inputs.cli import SEARCH, Cli
from tests.orchestrator.service.asking import Served, served


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


@pytest.mark.bad_input(54)
def test_a_megatron_core_of_another_version_is_refused(cli: Cli):
    """tests/orchestrator/preflight/test_engine_packages.py has the other cases."""
    python = cli.folder / "python"
    python.write_text('#!/bin/sh\necho \'{"megatron-core": "0.15.3"}\'\ncase $2 in *find_spec*) echo torch;; esac\n')
    python.chmod(0o755)
    cli.write()
    for verb in ("run", "selftest", "calibrate"):
        sets = ("--set", "space.engine=megatron-core", "--set", f"trainer.python={python}")
        assert (
            "megatron-core 0.15.3 is installed"
            in cli.refused(verb, "search.yaml", *sets).about("trainer.python")["message"]
        )


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
@pytest.mark.parametrize("line", ["ledger: {url: 'postgresql://me:hunter2@db/l'}", "x: {password: hunter2}"])
def test_a_secret_in_a_body_is_refused_and_neither_answered_nor_logged(service: Served, line: str):
    error = refused(service, f"{SEARCH}{line}\n")
    assert error["code"] == "secret"
    assert "hunter2" not in json.dumps(error) + "".join(service.log)
