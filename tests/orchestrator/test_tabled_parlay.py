"""The stand-in for searches in tests: a real driver, real jobs, and step times from a table."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from search_spaces.layouts.layout import Layout
from slurm.sandbox.sandbox import SlurmSandbox
from tests.orchestrator.cli.parlay import environment, write_search
from tests.orchestrator.tabled_parlay import COMMAND

SEARCH = """\
schema: parlay.search/1
name: tabled
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 2, vocab_size: 64, seq_length: 16}
cluster: {accelerator: cpu, gpus_per_node: 2, num_nodes: 2}
global_batch_size: 8
space: {tensor_parallel: [1, 2], pipeline_parallel: [1], micro_batch_size: [1, 2]}
search: {sampler: grid, max_trials: 4, parallel_trials: 2, finalists: 0}
measure: {time_limit: 1m}
tracking: {enabled: false}
launcher: {kind: slurm, slurm: {poll_interval: 1s}}
"""


@pytest.mark.processes
@pytest.mark.timeout(400)
def test_a_search_on_slurm_finds_what_the_table_says(tmp_path: Path, slurm_sandbox_accounting: SlurmSandbox) -> None:
    table = tmp_path / "table.json"
    env = environment() | slurm_sandbox_accounting.environment | {"PARLAY_TEST_TABLE": str(table)}

    def tabled(*words: str | Path) -> dict[str, Any]:
        command = [*COMMAND, *map(str, words), "--json"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    search = write_search(tmp_path, SEARCH)
    slow, fast, too_large, _ = (layout["layout_key"] for layout in tabled("plan", search)["layouts"])
    rows = {slow: {"step_time_s": 0.5}, fast: {"step_time_s": 0.25}, too_large: {"reason": "gpu_oom"}}
    table.write_text(json.dumps(rows))
    found = tabled("run", search)
    assert found["trials"] == {"measured": 3, "stopped_early": 0, "failed": 1, "cancelled": 0, "in_flight": 0}
    assert found["reasons"] == {"gpu_oom": 1}
    assert Layout.from_json(found["best"]["layout"]).key == fast
    assert found["best"]["tokens_per_sec"] == 8 * 16 / 0.25
