"""parlay selftest as a user runs it: real ranks, plain processes and jobs of a real Slurm."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from search_spaces.engines import ENGINES
from tests.orchestrator.cli.parlay import (
    TINY_SEARCH,
    Answer,
    parlay,
    parlay_here,
    python_that_begins_with,
    write_search,
)
from tests.orchestrator.slurm_searches import ids_of_jobs
from tests.trials.train.parity import needs_megatron, needs_torchtitan

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

PLAIN = ("--case", "clipping-zero0-pipeline", "--case", "tied-zero3")


def results_of(answer: Answer) -> dict[str, bool]:
    return {result["name"]: result["passed"] for result in answer.json["results"]}


@pytest.mark.parametrize(
    ("engines", "cases", "packages"),
    [
        ("torch", (PLAIN[1],), ("deepspeed",)),
        pytest.param(
            "[torch, megatron-core, torchtitan]",
            (PLAIN[1], "aux-loss-pipeline-megatron-core", "torchtitan-tied-zero3"),
            ("megatron_core", "torchtitan"),
            marks=[needs_megatron, needs_torchtitan, pytest.mark.walks],
        ),
    ],
    ids=["torch", "several"],
)
def test_a_machine_that_trains_a_layout_as_one_process_does_passes(tmp_path, engines, cases, packages):
    path = write_search(tmp_path, TINY_SEARCH.replace("space:\n", f"space:\n  engine: {engines}\n"))
    words = [word for case in cases for word in ("--case", case)]
    answer = parlay("selftest", path, *words, "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert results_of(answer) == dict.fromkeys(cases, True)
    assert all(answer.json["fingerprint"][package] for package in packages)
    assert max(result["difference"] for result in answer.json["results"]) <= 1e-5


@pytest.mark.walks
def test_layouts_of_both_engines_agree_and_a_hang_and_too_little_memory_are_reported(tmp_path):
    path = write_search(tmp_path, TINY_SEARCH)
    answer = parlay(
        "selftest", path, *PLAIN, "--case", "gpu_oom", "--case", "hang", "--json", cwd=tmp_path, timeout_s=230.0
    )
    assert answer.code == 0, answer.err
    assert results_of(answer) == dict.fromkeys(("clipping-zero0-pipeline", "tied-zero3", "gpu_oom", "hang"), True)
    assert max(r["difference"] for r in answer.json["results"][:2]) <= 1e-5
    assert answer.json["fingerprint"]["torch"]
    assert answer.json["detail"] is None


def test_a_library_that_sums_nothing_is_found_out(tmp_path):
    """Every rank's Python has a torch that sums nothing, as a cluster's broken network library might."""
    path = write_search(tmp_path, TINY_SEARCH)
    python = python_that_begins_with(BROKEN_SUM, tmp_path)
    answer = parlay(
        *("selftest", path, *PLAIN, "--set", f"trainer.python={python}", "--json"), cwd=tmp_path, timeout_s=200.0
    )
    assert answer.code == 3, answer.err
    assert not any(results_of(answer).values())
    assert "differs by" in answer.json["results"][0]["message"]
    assert "FAILED" in answer.err


BROKEN_SUM = """
import sys


class Done:
    def wait(self):
        pass


class Breaking:
    def find_spec(self, name, path=None, target=None):
        if name == "trials.train.parallel.collectives":
            sys.meta_path.remove(self)
            import torch.distributed

            torch.distributed.all_reduce = lambda *arguments, **options: Done()


sys.meta_path.insert(0, Breaking())
"""


def test_its_cases_are_listed(tmp_path):
    path = write_search(tmp_path, TINY_SEARCH)
    listed = parlay_here("selftest", path, "--list", "--json", cwd=tmp_path).json["cases"]
    assert {"name": "hang", "ranks": 2} in listed
    assert {case["ranks"] for case in listed} == {1, 2}
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_each_engine_of_a_search_is_tested_on_a_cpu_too_where_their_speeds_are_not_compared(tmp_path):
    path = write_search(tmp_path, TINY_SEARCH.replace("space:\n", "space:\n  engine: [torch, megatron-core]\n"))
    listed = parlay_here("selftest", path, "--list", "--json", cwd=tmp_path)
    names = [case["name"] for case in listed.json["cases"]]
    assert {"torch", "megatron-core"} <= {engine for engine in ENGINES for name in names if name.startswith(engine)}
    assert parlay_here("plan", path, "--json", cwd=tmp_path).json["error"]["key"] == "space.engine"


@pytest.mark.parametrize(
    ("verb", "changes", "key"),
    [
        ("selftest", ["--case", "nosuch"], "--case"),
        ("selftest", ["--set", "trainer.kind=megatron-lm", "--set", "trainer.script=train.py"], "trainer.kind"),
        ("selftest", ["--work-dir", "train.py/runs"], "work_dir"),
        ("calibrate", ["--launcher", "slurm", "--set", "work_dir=%j"], "work_dir"),
        (
            "calibrate",
            ["--set", "launcher={kind: slurm, slurm: {setup_file: /no/such.sh}}"],
            "launcher.slurm.setup_file",
        ),
    ],
)
def test_what_cannot_be_tested_is_refused_before_anything_is_written(tmp_path, verb, changes, key):
    path = write_search(tmp_path, TINY_SEARCH)
    (tmp_path / "train.py").touch()
    answer = parlay_here(verb, path, *changes, "--json", cwd=tmp_path)
    assert answer.code == 2
    assert answer.json["error"]["key"] == key
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("verb", ["selftest", "calibrate"])
def test_the_job_has_the_account_and_the_like_that_the_shell_sets_as_a_searchs_have(tmp_path, monkeypatch, verb):
    path = write_search(tmp_path, TINY_SEARCH)
    monkeypatch.setenv("SBATCH_ACCOUNT", "a b")
    answer = parlay_here(verb, path, "--launcher", "slurm", "--json", cwd=tmp_path)
    assert answer.code == 2, answer.err
    assert (answer.json["error"]["file"], answer.json["error"]["key"]) == ("SBATCH_ACCOUNT", "launcher.slurm.account")


@pytest.mark.walks
def test_a_selftest_is_one_job_on_two_nodes_of_a_real_slurm_and_only_a_whole_one_is_kept(tmp_path, slurm_sandbox):
    path = write_search(
        tmp_path, TINY_SEARCH.replace("gpus_per_node: 2, num_nodes: 1", "gpus_per_node: 1, num_nodes: 2")
    )
    before = ids_of_jobs(slurm_sandbox)
    words = ("selftest", path, "--launcher", "slurm", *PLAIN)
    answer = parlay(*words, cwd=tmp_path, timeout_s=230.0, variables=slurm_sandbox.environment)
    assert answer.code == 0, answer.err
    assert "2 of 2 cases passed" in answer.out
    [report] = tmp_path.glob("runs/selftest-*/selftest.json")
    found = json.loads(report.read_text())
    assert [result["passed"] for result in found["results"]] == [True, True]
    assert ids_of_jobs(slurm_sandbox) - before == {found["fingerprint"]["job_id"]}
    assert not Path(os.environ["PARLAY_HOME"], "selftest.json").exists()
