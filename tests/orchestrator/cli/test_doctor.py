"""`parlay doctor` on a real Slurm, on one with planted faults, and without Slurm."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm.sandbox.sandbox import SlurmSandbox
from tests.orchestrator.cli.delayed_ranks import delayed_python
from tests.orchestrator.cli.parlay import (
    TINY_SEARCH,
    Answer,
    parlay,
    parlay_here,
    write_search,
)
from tests.slurm.sandboxes import resume, sandbox

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

SEARCH = (
    TINY_SEARCH.replace("gpus_per_node: 2, num_nodes: 1", "gpus_per_node: 1, num_nodes: 2")
    .replace("baseline: {tensor_parallel: 2, micro_batch_size: 1}\n", "")
    .replace("launcher: {kind: local}", "launcher: {kind: slurm}")
)
HOUR = ("PartitionName=hour Nodes=ALL MaxTime=60 State=UP",)


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmSandbox]:
    """Two nodes and a partition whose limit of an hour is not enforced, as sites have them."""
    with sandbox(accounting=False, nodes=2, extra=HOUR) as started:
        yield started


def examined(folder: Path, slurm: SlurmSandbox, *words: str | Path) -> Answer:
    return parlay_here("doctor", *words, cwd=folder, variables=slurm.environment)


def of_level(found: dict[str, Any], *levels: str) -> dict[str, dict[str, Any]]:
    return {finding["name"]: finding for finding in found["findings"] if finding["level"] in levels}


def test_a_healthy_sandbox_has_no_error_and_nothing_is_left(tmp_path, slurm):
    path = write_search(tmp_path, SEARCH)
    answer = examined(tmp_path, slurm, path, "--json")
    assert answer.code == 0, answer.err
    assert (answer.json["schema"], answer.json["errors"]) == ("parlay.doctor/1", 0)
    assert {"controller", "partition", "nodes_up", "sbatch", "writable", "ledger", "mlflow"} <= set(
        of_level(answer.json, "ok")
    )
    assert all(f["fix"] for f in answer.json["findings"] if f["level"] != "ok")
    assert [entry.name for entry in tmp_path.iterdir()] == ["search.yaml"]
    assert slurm.ask("squeue", "--noheader", "--states=all").stdout == ""


def test_three_planted_faults_are_found_each_with_what_to_do(tmp_path, slurm):
    """A job of two hours for a partition of one, too few nodes up, a ledger in nobody's folder."""
    path = write_search(tmp_path, SEARCH)
    slurm.ask("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    changes = ("launcher.slurm.partition=hour", "measure.time_limit=2h", f"ledger.url=sqlite:///{tmp_path}/no/l.db")
    words = [word for change in changes for word in ("--set", change)]
    try:
        answer = examined(tmp_path, slurm, path, "--json", *words)
        told = examined(tmp_path, slurm, path, *words)
    finally:
        resume(slurm, "n2")
    assert answer.code == told.code == 8, answer.err
    errors = of_level(answer.json, "error")
    assert set(errors) == {"time_limit", "nodes_up", "ledger"}
    assert "partition hour allows at most 60 minutes" in errors["time_limit"]["message"]
    assert "n2 of the 2 nodes that could run it: drained" in errors["nodes_up"]["message"]
    assert answer.json["errors"] == 3
    assert told.out.count("  ERROR    ") == 3
    assert told.out.count("-> ") == sum(f["level"] != "ok" for f in answer.json["findings"])
    assert "3 errors" in told.out.splitlines()[-1]


def test_a_job_on_two_nodes_tells_what_its_ranks_see(tmp_path, slurm):
    path = write_search(tmp_path, SEARCH)
    answer = parlay("doctor", path, "--submit-test", "--json", cwd=tmp_path, variables=slurm.environment)
    assert answer.code == 0, answer.err + answer.out
    job = {f["name"]: f for f in answer.json["findings"] if f["area"] == "a job that ran"}
    assert set(job) == {"job", "ranks_python", "shared", "clocks", "cores", "transport", "bandwidth", "selftest"}
    assert job["job"]["message"].startswith("2 ranks on n1, n2 responded")
    assert "gloo" in job["transport"]["message"]
    assert "torch" in job["ranks_python"]["message"]
    assert {f["level"] for f in job.values()} <= {"ok", "note"}
    assert len(slurm.ask("squeue", "--noheader", "--states=all").stdout.splitlines()) == 1


def test_a_machine_without_slurm_says_so_and_still_looks_at_the_rest(tmp_path, monkeypatch):
    path = write_search(tmp_path, SEARCH)
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = parlay_here("doctor", path, "--json", cwd=tmp_path)
    assert answer.code == 8
    errors = of_level(answer.json, "error")
    assert set(errors) == {"commands"}
    assert "parlay slurm-sandbox start" in errors["commands"]["fix"]
    assert {"search_file", "python", "writable", "ledger", "mlflow"} <= set(of_level(answer.json, "ok"))
    assert parlay_here("doctor", "--json", cwd=tmp_path).code == 0  # nobody said that there should be one


def test_a_bad_search_file_is_an_error_among_others(tmp_path):
    path = write_search(tmp_path, TINY_SEARCH.replace("global_batch_size: 8", "global_batch_size: none"))
    answer = parlay_here("doctor", path, "--launcher", "local", "--json", cwd=tmp_path)
    assert answer.code == 8
    [error] = of_level(answer.json, "error").values()
    assert error["area"] == "search file"
    assert "global_batch_size" in error["message"]
    assert "ledger" in of_level(answer.json, "ok")


@pytest.mark.parametrize("option", ["--submit-test", "--fabric"])
def test_a_job_needs_a_search_file(tmp_path, option):
    answer = parlay_here("doctor", option, "--json", cwd=tmp_path)
    assert (answer.code, json.loads(answer.out)["error"]["key"]) == (2, option)
    assert os.listdir(tmp_path) == []


@pytest.mark.walks
def test_a_rank_whose_collectives_are_delayed_is_found_by_the_fabric_check(tmp_path):
    search = write_search(tmp_path, TINY_SEARCH.replace("gpus_per_node: 2", "gpus_per_node: 4"))
    python = delayed_python(tmp_path, "RANK", "3")
    words = ("--fabric", "--set", f"trainer.python={python}", "--json")
    answer = parlay("doctor", search, *words, cwd=tmp_path)
    assert answer.code == 0, answer.err + answer.out
    found = [f for f in answer.json["findings"] if f["area"] == "fabric"]
    assert {f["name"] for f in found} == {"fabric", "slow_nodes", "group_bandwidth"}
    assert found[1]["level"] == "warning"
    assert found[1]["message"].startswith("rank 3 is slow: it explains ")
