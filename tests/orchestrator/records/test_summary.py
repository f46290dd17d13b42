"""Answers about a recorded search: what is known has its value, what is unknown is null."""

from __future__ import annotations

import pytest

from orchestrator.records.summary import BestLayout
from search_spaces.layouts.layout import Layout
from tests.kit import MINIMAL, loaded
from tests.trials.analysis.test_ranking import SPEED, trial
from trials.analysis.ranking import Ranking, rank


@pytest.fixture
def spec(tmp_path):
    return loaded(tmp_path, MINIMAL)


def test_the_best_layout_has_its_numbers_and_null_for_what_is_unknown(spec):
    best = BestLayout.of(rank([trial(1, 300.0, 0.05), trial(2, 299.0, 0.05)], SPEED, 8), spec).plain()
    expected = {"trial": "t0001", "layout": Layout(data_parallel=8).to_json(), "objective": "tokens_per_sec"}
    expected |= {"value": 300.0, "tokens_per_sec": 300.0, "tokens_per_sec_low": 285.0, "tokens_per_sec_high": 315.0}
    expected |= {"ties": ["t0002"], "selection_reason": "fastest", "pareto": [], "flags": []}
    expected |= {"fastest": {"trial": "t0001", "value": 300.0, "peak_memory_gib": None}}
    expected |= {"rationale": "t0001 is the fastest of the layouts measured", "on_disjoint_nodes": None}
    expected |= dict.fromkeys(("peak_memory_gib", "time_s", "slowest_rank", "fullest_rank"))
    rate = {"tokens_per_day": 300.0 * 86400, "stalled_share": None, "checkpoint_stall_s": None}
    assert best == expected | {"training_rate": rate}
    best = BestLayout.of(rank([trial(1, 300.0, None)], SPEED, 8), spec)
    assert (best.tokens_per_sec_low, best.tokens_per_sec_high) == (None, None)
    assert BestLayout.of(Ranking(SPEED), spec) is None
