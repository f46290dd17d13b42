"""The same search files through the service: refused with the same messages, without side effects."""

from __future__ import annotations

import json

import pytest

from tests.bad_inputs.cli import SEARCH, Cli
from tests.orchestrator.service.asking import Served, served


@pytest.fixture
def service(cli: Cli):
    with served(cli.home, cli.folder) as found:
        yield found


def refused(service: Served, text: str, *sets: str) -> dict:
    """Error object of the answer to a search file with this text."""
    body = {"yaml": text, "directory": str(service.folder), "set": list(sets)}
    answer = service.client.post("/v1/searches", json=body)
    assert answer.status_code == 400, answer.text
    assert not (service.folder / "runs").exists()
    assert service.client.get("/v1/searches").json()["searches"] == []
    return answer.json()["error"]


def with_changes(old: str, new: str) -> str:
    assert old in SEARCH
    return SEARCH.replace(old, new, 1)


@pytest.mark.slow
@pytest.mark.bad_input(1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 16, 17, 18, 19, 20, 23, 24, 26, 29, 31, 34, 35, 46, 50)
def test_whatever_the_command_refuses_the_service_refuses_in_the_same_words(service: Served, cli: Cli):
    files = [
        with_changes("launcher:", "lancher:"),
        SEARCH + "name: other\n",
        with_changes("name: tiny", "name: !!python/name:os.system"),
        with_changes("name: tiny", "name: &a tiny"),
        with_changes("  tensor", "\ttensor"),
        with_changes("{enabled: false}", "{enabled: no}"),
        SEARCH + "baseline: {tensor_parallel: 3}\n",
        with_changes("batch_size: 8", "batch_size: 0"),
        with_changes("batch_size: 8", "batch_size: 1000000000000"),
        with_changes("  tensor_parallel: [1, 2]", "  tensor_parallel: 7"),
        with_changes("[1, 2, 4]", "[1, 2, 1]"),
        SEARCH + "objective: speed\n",
        SEARCH + "search: {max_trials: 0}\n",
        SEARCH + "measure: {min_steps: 3}\n",
        SEARCH + "measure: {time_limit: soon}\n",
        with_changes("{kind: local}", "{kind: slurm, slurm: {account: a b}}"),
        with_changes("{kind: local}", "{kind: slurm, slurm: {directives: [--uid=0, --output=x]}}"),
        with_changes("{kind: local}", "{kind: slurm, slurm: {env: {RANK: '0'}}}"),
        with_changes("{kind: local}", "{kind: slurm, slurm: {nodelist: ['n[1-']}}"),
        with_changes("name: tiny", "name: ../x"),
        SEARCH + "ledger: {url: 'mysql://db/l'}\n",
        with_changes("{enabled: false}", "{mlflow_uri: './mlruns'}"),
        with_changes("name: tiny", r'name: "a\e[31m"'),
    ]
    for text in files:
        found = refused(service, text)
        cli.write_bytes(text)
        said = cli.refused_run().error
        assert found | {"file": None} == said | {"file": None}
        assert found["rule"]
        assert found["fix"]


@pytest.mark.bad_input(27, 46)
@pytest.mark.security("secrets", "service")
@pytest.mark.parametrize(
    "line", ["ledger: {url: 'postgresql://me:hunter2@db/l'}", "token: hunter2", "x: {password: hunter2}"]
)
def test_a_secret_in_a_body_is_refused_and_neither_answered_nor_logged(service: Served, line):
    error = refused(service, SEARCH + line + "\n")
    assert error["code"] == "secret"
    assert "hunter2" not in json.dumps(error) + "".join(service.log)


@pytest.mark.bad_input(49)
@pytest.mark.parametrize("change", ["x", "search.max_trails=3", "search=["])
def test_a_change_in_a_wrong_form_is_refused(service: Served, change):
    error = refused(service, SEARCH, change)
    assert error["rule"]
    assert error["fix"]
