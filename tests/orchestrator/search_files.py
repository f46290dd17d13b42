"""Search files for tests: the shortest, one with every key, one over a measured table; read, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from search_spaces.errors import InputError, Problem

MINIMAL = """\
name: small
model: gpt2-tiny
cluster: this-machine
global_batch_size: 16
space:
  tensor_parallel: [1, 2]
"""

EVERYTHING = """\
schema: parlay.search/1
name: every-key
model:
  num_layers: 4
  hidden_size: 128
  num_attention_heads: 8
  vocab_size: 512
  seq_length: 64
cluster: {accelerator: a100-80gb, gpus_per_node: 4, num_nodes: 2}
global_batch_size: 64
baseline: {tensor_parallel: 2, micro_batch_size: 4, precision: fp32}
space:
  num_nodes: [1, 2]
  tensor_parallel: {min: 1, max: 4, factor: 2}
  micro_batch_size: {min: 2, max: 8, step: 2}
  bucket_mib: [null, 25]
  engine: [torch, deepspeed]
  allow_tensor_parallel_across_nodes: true
objective: node_hours_per_billion_tokens
constraints: {max_nodes: 2, min_free_memory_gib: 0.5}
search: {sampler: grid, max_trials: 5, budget_node_hours: 1.5, max_wall_time: 1-12, seed: 7, sample_space: true,
  finalists: 4, finalist_repeats: 3, finals: fixed}
measure: {min_steps: 5, max_steps: 10, max_warmup_steps: 3, time_limit: 90s, memory_limit_gib: 1.5}
trainer: {kind: parlay, python: /opt/python}
launcher: {kind: ray, address: "10.0.0.1:6379"}
tracking: {enabled: false, mlflow_uri: "http://127.0.0.1:5000", experiment: ours}
ledger: {url: "postgresql://parlay@db/ledger"}
work_dir: /scratch/runs
"""

TABLE_SEARCH = """\
name: from-a-table
model:
  num_layers: 16
  hidden_size: 2048
  num_attention_heads: 32
  ffn_hidden_size: 8192
  gated_mlp: true
  vocab_size: 131072
  seq_length: 4096
cluster: dgx-h100
global_batch_size: 256
space: {candidates: table.csv}
launcher: {kind: simulated, table: table.csv}
"""


def write(folder: Path, text: str = MINIMAL) -> Path:
    path = folder / "search.yaml"
    path.write_text(text)
    return path


def loaded(folder: Path, text: str = MINIMAL, *overrides: str) -> SearchSpec:
    return load_search_file(write(folder, text), overrides)


def problems(folder: Path, text: str = MINIMAL, *overrides: str) -> tuple[Problem, ...]:
    with pytest.raises(InputError) as caught:
        loaded(folder, text, *overrides)
    return caught.value.problems


def the_problem(folder: Path, text: str = MINIMAL, *overrides: str) -> Problem:
    (problem,) = problems(folder, text, *overrides)
    return problem
