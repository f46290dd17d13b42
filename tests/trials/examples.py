"""A matching spec and outcome, for tests to modify."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.measure_rules import MeasureRules
from trials.outcome_types import MeasuredMetrics
from trials.trial import Outcome, OutcomeStatus, Trial, TrialKind, TrialSpec

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
