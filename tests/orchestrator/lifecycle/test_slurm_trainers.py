"""Third-party trainers on a real Slurm: ranks of two nodes connect, and all end when one fails."""

from __future__ import annotations

import pytest

from tests.orchestrator.slurm_searches import Bench, until
from tests.trials.external.ranks import FAKE

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

SEARCH = f"""\
schema: parlay.search/1
name: theirs
model: {{num_layers: 2, hidden_size: 32, num_attention_heads: 2, vocab_size: 64, seq_length: 16}}
cluster: {{accelerator: cpu, gpus_per_node: 2, num_nodes: 2}}
global_batch_size: 8
space: {{tensor_parallel: 2, micro_batch_size: [1, 2]}}
search: {{sampler: grid, max_trials: 2, parallel_trials: 2, finalists: 0}}
measure: {{min_steps: 5, max_steps: 20, max_warmup_steps: 10, ci_relative_width: 0.5, early_stopping: false}}
launcher: {{kind: slurm, slurm: {{poll_interval: 1s}}}}
tracking: {{enabled: false}}
trainer: {{kind: megatron-lm, script: {FAKE}}}
"""


@pytest.fixture
def bench(tmp_path, slurm_sandbox) -> Bench:
    return Bench(tmp_path, slurm_sandbox)


def run(bench: Bench, text: str) -> dict:
    (bench.place / "search.yaml").write_text(text)
    process = bench.start("run", bench.place / "search.yaml")
    process.wait(300)
    answer = bench.parlay("status", bench.the_search().path.name, "--json")
    assert answer.code == 0, answer.err
    return answer.json


def test_ranks_of_two_nodes_are_measured_by_the_last_ones_log(bench):
    answer = run(bench, SEARCH)
    assert answer["trials"]["measured"] == 2, (bench.place / "driver.out").read_text()
    best = answer["best"]
    assert (best["layout"]["data_parallel"], best["layout"]["micro_batch_size"]) == (2, 1)
    assert best["tokens_per_sec"] == pytest.approx(8 * 16 / 0.101, rel=0.01)
    logs = sorted(bench.the_search().attempt("t0001", "a1").path.glob("rank-*.log"))
    told = {path.read_text().splitlines()[0].split(" at ")[1] for path in logs}
    assert (len(logs), len(told)) == (4, 1)


def test_out_of_memory_on_one_node_ends_the_ranks_of_all(bench):
    failing = SEARCH.replace(f"{FAKE}}}", f"{FAKE}, arguments: [--fault, oom]}}").replace(
        "max_trials: 2", "max_trials: 1"
    )
    answer = run(bench, failing)
    assert answer["reasons"] == {"gpu_oom": 1}, (bench.place / "driver.out").read_text()
    until(lambda: bench.jobs(answer["search_id"], "running", "pending", "completing"), lambda jobs: not jobs)
