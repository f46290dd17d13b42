"""Energy as an objective: ranked by itself, since it follows neither from throughput nor from nodes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.kit import SPEC, with_metrics
from tests.trials.analysis.test_ranking import SPEED, names, trial
from trials.analysis.best_layout import best_json
from trials.analysis.early_stopping import best_file, read_incumbent
from trials.analysis.pareto import pareto, pareto_json, trade_offs
from trials.analysis.ranking import Objective, Speedup, rank, speedup_over, upper_bound_of, value_of
from trials.trial import FailureReason, Trial, TrialKind, TrialState

ENERGY = Objective.JOULES_PER_TOKEN


def drawing(number: int, tokens_per_sec: float, joules: float, kind: TrialKind = TrialKind.SEARCH, **layout) -> Trial:
    """A measured trial with this energy a token, known to 1 %."""
    measured = trial(number, tokens_per_sec, 0.01, **layout)
    ends = {"joules_per_token_low": 0.99 * joules, "joules_per_token_high": 1.01 * joules}
    return replace(with_metrics(measured, joules_per_token=joules, **ends), kind=kind)


FAST, FRUGAL, NEITHER = drawing(1, 300.0, 0.8), drawing(2, 200.0, 0.5), drawing(3, 100.0, 0.9)


def test_the_layout_that_needs_the_least_energy_is_the_best_with_the_ratio_of_energies():
    ranking = rank([FAST, FRUGAL, NEITHER], ENERGY, 8)
    assert names(ranking.ordered) == ["t0002", "t0001", "t0003"]
    assert best_json(ranking)["value"] == pytest.approx(0.5)
    assert value_of(ranking.best, ENERGY) == pytest.approx(2.0), "larger is better"
    ranking = rank([FAST, FRUGAL], ENERGY, 8)
    assert speedup_over(FAST, ranking.best, ENERGY) == Speedup(
        pytest.approx(1.6), pytest.approx(0.8 * 0.99 / (0.5 * 1.01)), pytest.approx(0.8 * 1.01 / (0.5 * 0.99))
    )


def test_a_layout_without_energy_is_not_ranked_by_it():
    ranking = rank([FAST, trial(4, 900.0)], ENERGY, 8)
    assert (names(ranking.ordered), ranking.ties) == (["t0001"], ())
    assert speedup_over(trial(4, 900.0), ranking.best, ENERGY) is None
    with pytest.raises(ValueError, match="t0004 was not measured"):
        value_of(trial(4, 900.0), ENERGY)


def test_finalists_compete_by_the_spread_of_their_energy_between_runs():
    steady = [drawing(1, 100.0, 0.50, kind) for kind in (TrialKind.SEARCH, TrialKind.REPEAT, TrialKind.REPEAT)]
    lucky = [drawing(2, 100.0, j, k) for j, k in zip((0.35, 0.5, 0.6), [s.kind for s in steady], strict=True)]
    ranking = rank([*steady, *lucky], ENERGY, 8)
    assert ranking.fastest.trial == "t0001"
    best = ranking.fastest.measured
    assert best.joules_per_token == pytest.approx(0.5)
    assert best.joules_per_token_low < 0.5 < best.joules_per_token_high


def test_on_one_number_of_nodes_speed_and_energy_are_traded_off():
    ranking = rank([FAST, FRUGAL, NEITHER], SPEED, 8, others=(ENERGY,))
    assert names(pareto(ranking)) == ["t0001", "t0002"], "the third is beaten by both in both"
    assert [point["values"] for point in pareto_json(ranking)] == [
        {"tokens_per_sec": 300.0, "joules_per_token": pytest.approx(0.8)},
        {"tokens_per_sec": 200.0, "joules_per_token": pytest.approx(0.5)},
    ]
    (text,) = trade_offs(ranking)
    assert text.endswith("and 62 % of its energy")
    twin = drawing(4, 201.0, 0.501)
    assert names(pareto(rank([FAST, FRUGAL, twin], SPEED, 8, others=(ENERGY,)))) == ["t0001", "t0004"]


def test_a_fast_layout_is_no_bound_and_stops_no_trial(tmp_path):
    batch = SPEC.global_batch_size
    best = drawing(1, 1e9, 0.5, data_parallel=batch)
    fingerprint = best.last_attempt.outcome.fingerprint
    for objective, is_beaten in ((SPEED, True), (ENERGY, False)):
        ranking = rank([best], objective, batch)
        path = tmp_path / f"{objective}.json"
        path.write_text(json.dumps(best_file(ranking, [ranking], SPEC.search_id, batch)))
        found = read_incumbent(replace(SPEC, trial="t0009"), path, fingerprint)
        assert (found is not None) is is_beaten
    slow = replace(best, state=TrialState.FAILED, reason=FailureReason.TIME_LIMIT)
    assert upper_bound_of(slow, SPEED) is not None
    assert upper_bound_of(slow, ENERGY) is None
