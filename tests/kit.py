"""The kit of all tests: a model, a layout, a trial with its outcome, a search file, and what is refused of one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.create import ValidatedSearch, create_search
from orchestrator.planning.candidates import candidates_of
from search_spaces.errors import InputError, Problem
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.files.folders import SearchFolder
from trials.measure_rules import MeasureRules
from trials.outcome_types import MeasuredMetrics
from trials.trial import Outcome, OutcomeStatus, Trial, TrialKind, TrialSpec

T = TypeVar("T")

TINY = ModelShape(
    num_layers=4,
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=4,
    ffn_hidden_size=256,
    gated_mlp=False,
    vocab_size=512,
    seq_length=32,
    tied_embeddings=True,
    position_embedding="learned",
    norm="layernorm",
)
LLAMA = {"gated_mlp": True, "position_embedding": "rotary", "norm": "rmsnorm"}
"""Fields in which a Llama differs from a GPT."""
LAYOUT = Layout(
    tensor_parallel=2, data_parallel=2, micro_batch_size=2, grad_accum_steps=3, zero_stage=1, engine="deepspeed"
)
SPEC = TrialSpec(
    search_id="tiny-aaaaaa",
    trial="t0001",
    attempt="a1",
    nonce="0123456789abcdef" * 2,
    kind=TrialKind.SEARCH,
    layout=LAYOUT,
    model=TINY,
    global_batch_size=12,
    num_gpus=4,
    gpus_per_node=4,
    accelerator="cpu",
    measure=MeasureRules(min_steps=8),
)
MEASURED = {
    "warmup_steps": 3,
    "measured_steps": 8,
    "step_time_s": 0.5,
    "step_time_low_s": 0.48,
    "step_time_high_s": 0.52,
    "tokens_per_sec": 768.0,
    "tokens_per_sec_low": 738.5,
    "tokens_per_sec_high": 800.0,
    "tokens_per_sec_per_gpu": 192.0,
    "samples_per_sec": 24.0,
    "peak_memory_gib": 0.4,
    "startup_parts_s": {"import": 2.5},
}
SLOWEST = {
    "rank": 3,
    "host": "n2",
    "compute_s": 0.42,
    "compute_p95_s": 0.45,
    "peers_compute_s": 0.3,
    "slowdown": 1.4,
    "steps": 20,
    "stragglers": [3],
    "straggler_hosts": ["n2"],
}
FULLEST = {
    "rank": 3,
    "host": "n2",
    "device_gib": 80.0,
    "used_gib": 66.0,
    "free_gib": 14.0,
    "allocated_gib": 45.0,
    "cached_gib": 16.0,
    "outside_gib": 5.0,
    "inactive_split_gib": 3.0,
    "alloc_retries": 0,
}
"""A rank on a GPU."""
PROOF = {
    "world_size": 4,
    "tensor_parallel": 2,
    "pipeline_parallel": 1,
    "data_parallel": 2,
    "parameters": TINY.parameters,
    "local_parameters_sum": TINY.parameters,
    "optimizer_parameters_sum": TINY.parameters,
    "micro_batches_per_step": 3,
    "samples_per_data_rank": [66, 66],
}
OUTCOME = Outcome(
    search_id=SPEC.search_id,
    trial=SPEC.trial,
    attempt=SPEC.attempt,
    nonce=SPEC.nonce,
    status=OutcomeStatus.MEASURED,
    measured=MeasuredMetrics(**MEASURED),
    proof=PROOF,
    fingerprint={"torch": "2.13.0"},
    step_times_s=(0.5, 0.51),
    started_at="2026-05-28T20:00:00.000000Z",
    ended_at="2026-05-28T20:01:00.000000Z",
)

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

TINY_SEARCH = """\
schema: parlay.search/1
name: tiny
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 2, vocab_size: 64, seq_length: 16}
cluster: {accelerator: cpu, gpus_per_node: 2, num_nodes: 1}
global_batch_size: 8
baseline: {tensor_parallel: 2, micro_batch_size: 1}
space:
  tensor_parallel: [1, 2]
  pipeline_parallel: [1, 2]
  micro_batch_size: [1, 2, 4]
search: {sampler: random, max_trials: 3, finalists: 0}
measure: {min_steps: 5, max_steps: 6, max_warmup_steps: 3, ci_relative_width: 1.0}
launcher: {kind: local}
"""
"""A search of two ranks that trains for a few milliseconds a step."""

ABSENT = object()
"""Value of `search_text` that leaves a key out."""


def model(**changes: Any) -> ModelShape:
    """TINY with these fields changed."""
    return replace(TINY, **changes)


def gpt(num_layers: int, hidden_size: int, heads: int, **changes: Any) -> ModelShape:
    """GPT of this depth and width with 2048 positions and separate embedding tables, with these fields changed."""
    sizes = {"num_layers": num_layers, "hidden_size": hidden_size, "ffn_hidden_size": 4 * hidden_size}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": 51200, "seq_length": 2048}
    return replace(TINY, **sizes | {"tied_embeddings": False} | changes)


def layout(**changes: Any) -> Layout:
    """Layout with these fields, of one rank where they say no more."""
    return Layout(**changes)


def trial(**changes: Any) -> TrialSpec:
    """SPEC with these fields changed."""
    return replace(SPEC, **changes)


def trial_of(layout: Layout, **changes: Any) -> TrialSpec:
    """A trial of this layout on one node, with these fields changed."""
    place = {"num_gpus": layout.num_gpus, "gpus_per_node": layout.num_gpus}
    return trial(**place | {"layout": layout, "global_batch_size": layout.global_batch_size} | changes)


def search_file(folder: Path, base: str = MINIMAL, /, **changes: Any) -> Path:
    """Write `search_text` to the folder's search.yaml."""
    path = folder / "search.yaml"
    path.write_text(search_text(base, **changes))
    return path


def search_text(base: str = MINIMAL, /, **changes: Any) -> str:
    """`base` with these keys changed, mappings key by key."""
    return yaml.safe_dump(_merged(yaml.safe_load(base), changes), sort_keys=False) if changes else base


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        known = merged.get(key)
        merged[key] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return {key: value for key, value in merged.items() if value is not ABSENT}


def loaded(folder: Path, base: str = MINIMAL, /, *overrides: str, **changes: Any) -> SearchSpec:
    """Search that the loader makes of `search_file`, with these `--set` overrides."""
    return load_search_file(search_file(folder, base, **changes), overrides)


def created(spec: SearchSpec, url: str) -> SearchFolder:
    """A new search that nobody drives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orchestrator.lifecycle.create.open_tracking", lambda spec: None)
        with create_search(ValidatedSearch(spec, candidates_of(spec), url)) as started:
            return started.folder


def refusals(folder: Path, base: str = MINIMAL, /, *overrides: str, **changes: Any) -> tuple[Problem, ...]:
    """Problems for which the loader refuses `search_file`."""
    with pytest.raises(InputError) as caught:
        loaded(folder, base, *overrides, **changes)
    return caught.value.problems


def refusal(folder: Path, base: str = MINIMAL, /, *overrides: str, **changes: Any) -> Problem:
    """The only problem for which the loader refuses `search_file`."""
    (problem,) = refusals(folder, base, *overrides, **changes)
    return problem


def metrics(tokens_per_sec: float, step_time_s: float = 1.0, **fields: Any) -> MeasuredMetrics:
    """Metrics of this speed, and these others."""
    rates = {"tokens_per_sec_per_gpu": tokens_per_sec, "samples_per_sec": 1 / step_time_s}
    known = {"measured_steps": 8, "step_time_s": step_time_s, "tokens_per_sec": tokens_per_sec, **rates}
    return MeasuredMetrics(**known | fields)


def with_metrics(trial: Trial, **fields: Any) -> Trial:
    """The measured trial with these metrics changed."""
    last = trial.attempts[-1]
    outcome = replace(last.outcome, measured=replace(last.outcome.metrics, **fields))
    return trial.with_attempt(replace(last, outcome=outcome))


def until(look: Callable[[], T], wanted: Callable[[T], object] = bool, timeout_s: float = 120.0) -> T:
    """Look until the result is `wanted` and return it; AssertionError with the last result after the limit."""
    deadline = time.monotonic() + timeout_s
    while not wanted(found := look()):
        assert time.monotonic() < deadline, f"still {found!r} after {timeout_s} s"
        time.sleep(0.05)
    return found
