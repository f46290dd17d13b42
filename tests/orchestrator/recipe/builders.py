"""Synthetic searches with measured trials."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from orchestrator.recipe.build import RecipeSource
from search_spaces.layouts.layout import Layout
from tests.kit import TINY, metrics, trial_of
from trials.analysis.ranking import Objective, rank
from trials.ledger.events import EndReason, SearchRecord, SearchState
from trials.measure_rules import MeasureRules
from trials.trial import Attempt, Outcome, OutcomeStatus, Trial, TrialSpec, TrialState

MODEL = TINY
LAYOUT = Layout(
    tensor_parallel=2, pipeline_parallel=2, micro_batch_size=2, grad_accum_steps=4, pipeline_schedule="1f1b"
)
SLOWER_LAYOUT = Layout(data_parallel=4, micro_batch_size=2)
SEARCH_ID = "quickstart-abc234"
RULES = MeasureRules(min_steps=8, max_steps=10, time_limit_s=60.0)


def spec_of(layout: Layout, **changes: Any) -> TrialSpec:
    mine = {"search_id": SEARCH_ID, "nonce": "0" * 32, "gpus_per_node": layout.num_gpus // layout.num_nodes}
    return trial_of(layout, **mine | {"measure": RULES} | changes)


def measured_trial(name: str, layout: Layout, step_time_s: float, half_width: float = 0.02) -> Trial:
    """A measured trial whose interval is +- `half_width` of its step time."""
    low, high = step_time_s * (1 - half_width), step_time_s * (1 + half_width)
    tokens = layout.global_batch_size * MODEL.seq_length
    rates = {"tokens_per_sec_per_gpu": tokens / step_time_s / layout.num_gpus, "peak_memory_gib": 0.25}
    rates |= {"samples_per_sec": layout.global_batch_size / step_time_s}
    rates |= {"tokens_per_sec_low": tokens / high, "tokens_per_sec_high": tokens / low}
    measured = metrics(tokens / step_time_s, step_time_s, step_time_low_s=low, step_time_high_s=high, **rates)
    software = {"torch": "2.13.0", "python": "3.11.2", "kernel": "1e3", "host": "node01", "executable": sys.executable}
    told = {"measured": measured, "fingerprint": software, "step_times_s": (low, step_time_s, high)}
    outcome = Outcome(SEARCH_ID, name, "a1", "0" * 32, OutcomeStatus.MEASURED, **told)
    ran = {"state": TrialState.MEASURED, "job_id": "local-1", "nodes": ("node01",), "started_at": 1_800_000_000.0}
    attempt = Attempt(name, "a1", "0" * 32, 1, 60.0, outcome=outcome, **ran)
    return Trial(name, layout, state=TrialState.MEASURED, attempts=(attempt,))


def source_of(*trials: Trial, baseline: Trial | None = None, **of_spec: Any) -> RecipeSource:
    """The recipe source of the best of these trials; `of_spec` are further fields of its spec."""
    search = SearchRecord(SEARCH_ID, {"constraints": {"max_nodes": 1}}, "c0de" * 16, 1_800_000_000.0, trials=trials)
    search = replace(search, state=SearchState.COMPLETED, end_reason=EndReason.MAX_TRIALS)
    batch = trials[0].layout.global_batch_size
    ranking = rank(trials, Objective.TOKENS_PER_SEC, batch)
    best = ranking.best
    assert best is not None
    spec = replace(spec_of(best.layout), trial=best.trial, **of_spec)
    return RecipeSource(search, best, spec, ranking, baseline)
