"""parlay calibrate as a user runs it: real ranks, plain processes and a job of a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.orchestrator.cli.parlay import TINY_SEARCH, parlay, parlay_here, python_that_begins_with, write_search

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def test_what_two_processes_reach_becomes_a_cluster_file_by_which_plan_knows_seconds(tmp_path):
    search = write_search(tmp_path, TINY_SEARCH)
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
def test_a_rank_that_dies_leaves_no_file_and_its_log_is_named(tmp_path):
    search = write_search(tmp_path, TINY_SEARCH)
    python = python_that_begins_with(DYING_RANK, tmp_path)
    answer = parlay(
        *("calibrate", search, "--set", f"trainer.python={python}", "--json"), cwd=tmp_path, timeout_s=150.0
    )
    assert answer.code == 3, answer.err
    assert "rank 1: script_error: RuntimeError: the clock stands still" in answer.json["error"]["message"]
    log = Path(answer.json["error"]["fix"].removeprefix("see "))
    assert "the clock stands still" in log.read_text()
    assert not (tmp_path / "tiny-cluster.yaml").exists()


DYING_RANK = """
import os
import sys


class Breaking:
    def find_spec(self, name, path=None, target=None):
        if name == "trials.train.calibrate.stopwatch" and os.environ.get("RANK") == "1":
            raise RuntimeError("the clock stands still")


sys.meta_path.insert(0, Breaking())
"""


@pytest.mark.walks
def test_it_is_one_job_on_two_nodes_of_a_real_slurm_and_tells_what_joins_them(tmp_path, slurm_sandbox):
    two_nodes = TINY_SEARCH.replace("gpus_per_node: 2, num_nodes: 1", "gpus_per_node: 1, num_nodes: 2")
    search = write_search(tmp_path, two_nodes)
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
