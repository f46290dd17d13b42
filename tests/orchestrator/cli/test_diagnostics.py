"""`calibrate`, `selftest`, `doctor` and the fabric check as a user runs them, with real ranks, also on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slurm.sandbox.sandbox import SlurmSandbox
from tests.kit import ABSENT, TINY_SEARCH, search_file
from tests.orchestrator.cli.parlay import (
    Answer,
    parlay,
    parlay_here,
    python_that_begins_with,
)
from tests.slurm.sandboxes import sandbox
from tests.trials.train.parity import needs_megatron, needs_torchtitan
from trials.diagnostics.named_parity_cases import QUICK
from trials.ledger.journal import Journal

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def test_what_two_processes_reach_becomes_a_cluster_file_by_which_plan_knows_seconds(tmp_path):
    search = search_file(tmp_path, TINY_SEARCH)
    before = parlay_here("plan", search, "--json", cwd=tmp_path).json
    assert before["layouts"][0]["step_time_s"] is None
    answer = parlay("calibrate", search, "--out", "mine.yaml", "--json", cwd=tmp_path, timeout_s=150.0)
    assert answer.code == 0, answer.err
    found, cluster = answer.json["measurements"], answer.json["cluster"]
    assert cluster["measured"]["matmul_tflops"].keys() == {"fp32"}
    assert cluster["measured"]["memory_gb_per_s"] > 0.1
    assert [domain["num_ranks"] for domain in cluster["links"]["domains"]] == [2]
    assert {group["kind"] for group in found["groups"]} == {"all_reduce", "all_gather"}
    assert found["fingerprint"]["torch"]
    plan = parlay_here("plan", search, "--set", "cluster=mine.yaml", "--json", cwd=tmp_path).json
    assert 0 < plan["layouts"][0]["step_time_s"] < 10
    assert plan["expected_node_hours"]["guided"] > 0
    again = parlay_here("calibrate", search, "--out", "search.yaml", "--json", cwd=tmp_path)
    assert (again.code, again.json["error"]["key"]) == (2, "--out")


@pytest.mark.walks
def test_it_is_one_job_on_two_nodes_of_a_real_slurm_and_tells_what_joins_them(tmp_path, slurm_sandbox):
    search = search_file(tmp_path, TINY_SEARCH, cluster={"gpus_per_node": 1, "num_nodes": 2})
    words = ("calibrate", search, "--launcher", "slurm", "--json")
    answer = parlay(*words, cwd=tmp_path, timeout_s=170.0, variables=slurm_sandbox.environment)
    assert answer.code == 0, answer.err
    fabric = answer.json["cluster"]["links"]["fabric"]
    assert fabric["by_nodes"][0]["num_nodes"] == 2
    assert fabric["nic_gb_per_s"] > 0
    assert fabric["p2p_gb_per_s"] > 0
    changes = ("--set", "cluster=tiny-cluster.yaml", "--set", "space.allow_tensor_parallel_across_nodes=true")
    plan = parlay_here("plan", search, *changes, "--json", cwd=tmp_path)
    assert plan.json["layouts"][0]["step_time_s"] is not None


PLAIN = ("clipping-zero0-pipeline", "tied-zero3")
SEVERAL = ("tied-zero3", "aux-loss-pipeline-megatron-core", "torchtitan-tied-zero3")


def asking_for(cases: tuple[str, ...]) -> list[str]:
    return [word for case in cases for word in ("--case", case)]


def results_of(answer: Answer) -> dict[str, bool]:
    return {result["name"]: result["passed"] for result in answer.json["results"]}


@pytest.mark.parametrize(
    ("engines", "words", "cases"),
    [
        ("torch", ["--quick"], QUICK),
        pytest.param(
            ["torch", "megatron-core", "torchtitan"],
            asking_for(SEVERAL),
            SEVERAL,
            marks=[needs_megatron, needs_torchtitan, pytest.mark.walks],
        ),
    ],
    ids=["quick", "several"],
)
def test_a_machine_that_trains_a_layout_as_one_process_does_passes(tmp_path, engines, words, cases):
    path = search_file(tmp_path, TINY_SEARCH, space={"engine": engines})
    answer = parlay("selftest", path, *words, "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert results_of(answer) == dict.fromkeys(cases, True)
    assert answer.json["fingerprint"]["torch"]
    assert all(0 < result["difference"] <= result["tolerance"] for result in answer.json["results"])


@pytest.mark.walks
def test_a_library_that_sums_nothing_is_found_out(tmp_path):
    """Every rank's Python has a torch that sums nothing, as a cluster's broken network library might."""
    path = search_file(tmp_path, TINY_SEARCH)
    python = python_that_begins_with(BROKEN_SUM, tmp_path)
    words = (*asking_for(PLAIN), "--set", f"trainer.python={python}", "--json")
    answer = parlay("selftest", path, *words, cwd=tmp_path)
    assert answer.code == 3, answer.err
    assert not any(results_of(answer).values())


BROKEN_SUM = """
import torch.distributed


class Done:
    def wait(self):
        pass


torch.distributed.all_reduce = lambda *arguments, **options: Done()
"""


@pytest.mark.walks
def test_a_case_that_ends_a_rank_is_the_one_that_fails_and_those_after_it_run(tmp_path):
    """Rank 1 fails as soon as it may begin the case, while rank 0 writes what it found before."""
    python = python_that_begins_with(BROKEN_CASE, tmp_path)
    path = search_file(tmp_path, TINY_SEARCH)
    answer = parlay("selftest", path, "--quick", "--set", f"trainer.python={python}", "--json", cwd=tmp_path)
    assert answer.code == 3, answer.err
    assert results_of(answer) == {name: name != "qkv-bias-sequence" for name in QUICK}


BROKEN_CASE = """
import os

if os.environ.get("RANK") == "1":
    from trials.ranks.report import Report

    def enter(report, phase, enter=Report.enter):
        enter(report, phase)
        if phase == "qkv-bias-sequence":
            raise ValueError("broken")

    Report.enter = enter
"""


ON_TWO_NODES = {"baseline": ABSENT, "cluster": {"gpus_per_node": 1, "num_nodes": 2}, "launcher": {"kind": "slurm"}}
HOUR = ("PartitionName=hour Nodes=ALL MaxTime=60 State=UP",)


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmSandbox]:
    """Two nodes and a partition whose limit of an hour is not enforced, as sites have them."""
    with sandbox(accounting=False, nodes=2, extra=HOUR) as started:
        yield started


def test_a_healthy_sandbox_has_no_error_and_nothing_is_left(tmp_path, slurm):
    path = search_file(tmp_path, TINY_SEARCH, **ON_TWO_NODES)
    answer = parlay_here("doctor", path, "--json", cwd=tmp_path, variables=slurm.environment)
    assert answer.code == 0, answer.err
    assert (answer.json["schema"], answer.json["errors"]) == ("parlay.doctor/1", 0)
    wanted = {"controller", "partition", "nodes_up", "sbatch", "writable", "ledger", "mlflow"}
    assert wanted <= {finding["name"] for finding in answer.json["findings"] if finding["level"] == "ok"}
    assert all(f["fix"] for f in answer.json["findings"] if f["level"] != "ok")
    assert [entry.name for entry in tmp_path.iterdir()] == ["search.yaml"]
    assert slurm.ask("squeue", "--noheader", "--states=all").stdout == ""


def test_a_job_on_two_nodes_tells_what_its_ranks_see(tmp_path, slurm):
    path = search_file(tmp_path, TINY_SEARCH, **ON_TWO_NODES)
    answer = parlay("doctor", path, "--submit-test", "--json", cwd=tmp_path, variables=slurm.environment)
    assert answer.code == 0, answer.err + answer.out
    job = {f["name"]: f for f in answer.json["findings"] if f["area"] == "a job that ran"}
    assert set(job) == {"job", "ranks_python", "shared", "clocks", "cores", "transport", "bandwidth", "selftest"}
    assert job["job"]["message"].startswith("2 ranks on n1, n2 responded")
    assert "gloo" in job["transport"]["message"]
    assert "torch" in job["ranks_python"]["message"]
    assert {f["level"] for f in job.values()} <= {"ok", "note"}
    assert len(slurm.ask("squeue", "--noheader", "--states=all").stdout.splitlines()) == 1


def test_a_search_begins_with_the_check_and_takes_its_links(tmp_path):
    checked = ("--set", "launcher.fabric_check=true", "--set", "search.max_trials=1", "--json")
    answer = parlay("run", search_file(tmp_path, TINY_SEARCH), *checked, cwd=tmp_path)
    assert answer.code == 0, answer.err
    check = answer.json["fabric_check"]
    assert (check["state"], check["reason"], check["slow_nodes"]) == ("measured", None, [])
    assert [domain["num_ranks"] for domain in check["links"]["domains"]] == [2]
    [journal] = tmp_path.rglob("journal.jsonl")
    kinds = [event.kind for event in Journal(journal).read() if event.kind in ("fabric_check", "trial_proposed")]
    assert kinds == ["trial_proposed", "fabric_check", "trial_proposed"]
