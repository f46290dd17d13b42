"""Trial program that trains nothing and takes its step times from a table. Copied over `trials/train/__main__.py`.

`table.json` beside it maps layout keys to rows (tests/orchestrator/tabled_parlay.py). Without torch a rank takes a
tenth of a second.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from trials.attempt_result import expected_proof
from trials.files.folders import AttemptFolder, write_json
from trials.measurement.step_log import MetricsWriter, StepPhase, StepRecord
from trials.outcome_types import MeasuredMetrics
from trials.ranks.environment import RankEnvironment
from trials.trial import FailureReason, Outcome, OutcomeStatus, TrialSpec, utc_text

DEFAULT_ROW = {"step_time_s": 1.0}


def main(spec_path: Path) -> int:
    spec = TrialSpec.from_json(json.loads(spec_path.read_text()))
    table = json.loads(Path(__file__).with_name("table.json").read_text())
    row = DEFAULT_ROW | table.get(spec.layout.canonical().key, {})
    env = RankEnvironment.read(os.environ)
    folder, started_at = AttemptFolder(spec_path.parent), utc_text()
    if env.rank == 0:
        write_metrics(spec, folder.metrics(env.restart), row["step_time_s"])
    while "waits_for" in row and not Path(row["waits_for"]).exists():
        time.sleep(0.05)
    if env.rank != 0:
        return 0  # One that failed would have rank 0 killed before its outcome is written.
    time.sleep(row.get("takes_s", 0.0))
    outcome = outcome_of(spec, row, env.world_size)
    write_json(
        folder.outcome(env.restart),
        outcome.to_json() | {"restart": env.restart, "started_at": started_at, "ended_at": utc_text()},
    )
    return 1 if row.get("reason") else 0


def write_metrics(spec: TrialSpec, path: Path, step_time_s: float) -> None:
    writer = MetricsWriter(path)
    for step in range(1, spec.measure.min_steps + 1):
        times = {"step_time_s": step_time_s, "fastest_rank_step_time_s": step_time_s}
        rest = {"loss": 5.0 / step, "grad_norm": 1.0, "samples": spec.global_batch_size}
        writer.write(StepRecord(step, StepPhase.MEASURED, utc_text(), **times, **rest))
    writer.close()


def outcome_of(spec: TrialSpec, row: dict[str, Any], world_size: int) -> Outcome:
    if row.get("reason"):
        ids = (spec.search_id, spec.trial, spec.attempt, spec.nonce)
        reason, excerpt = FailureReason(row["reason"]), f"the table says {row['reason']}"
        return Outcome(*ids, OutcomeStatus.FAILED, reason=reason, phase="warmup", rank=0, excerpt=excerpt)
    step_time_s = row["step_time_s"]
    outcome = measured_outcome(spec, spec.global_batch_size * spec.model.seq_length / step_time_s)
    proof, times = {**outcome.proof, "world_size": world_size}, (step_time_s,) * spec.measure.min_steps
    return replace(outcome, proof=proof, step_times_s=times)


def measured_outcome(spec: TrialSpec, tokens_per_sec: float, **metrics: Any) -> Outcome:
    """A plausible outcome with a 1 % interval, and these other metrics."""
    layout = spec.layout
    measured = MeasuredMetrics(
        measured_steps=spec.measure.min_steps,
        step_time_s=spec.global_batch_size * spec.model.seq_length / tokens_per_sec,
        tokens_per_sec=tokens_per_sec,
        tokens_per_sec_low=tokens_per_sec * 0.995,
        tokens_per_sec_high=tokens_per_sec * 1.005,
        tokens_per_sec_per_gpu=tokens_per_sec / spec.num_gpus,
        samples_per_sec=tokens_per_sec / spec.model.seq_length,
        **metrics,
    )
    samples = [layout.micro_batch_size * layout.grad_accum_steps] * layout.data_parallel
    proof = {**expected_proof(spec), "samples_per_data_rank": samples}
    ids = (spec.search_id, spec.trial, spec.attempt, spec.nonce)
    return Outcome(*ids, OutcomeStatus.MEASURED, measured=measured, proof=proof)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
