"""Several objectives: the Pareto set, its trade-offs, and energy, which follows neither throughput nor nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.hardware.memory_headroom import MemoryHeadroom
from tests.kit import SPEC, with_metrics
from tests.trials.analysis.test_ranking import NODE_HOURS, SPEED, names, trial
from trials.analysis.best_layout import fastest_of, rationale
from trials.analysis.early_stopping import incumbents_of, read_incumbent
from trials.analysis.pareto import pareto, pareto_points, trade_offs
from trials.analysis.ranking import Objective, Ranking, Speedup, rank, speedup_over, upper_bound_of, value_of
from trials.files.folders import write_json
from trials.trial import FailureReason, Trial, TrialKind, TrialState

PER_GPU = Objective.TOKENS_PER_SEC_PER_GPU


def on(nodes: int, number: int, tokens_per_sec: float, spread: float = 0.01, flags: tuple[str, ...] = ()) -> Trial:
    """A measured trial on this many nodes of four ranks, all of one global batch."""
    shape = {"num_nodes": nodes, "tensor_parallel": nodes, "data_parallel": 4, "micro_batch_size": 2}
    return trial(number, tokens_per_sec, spread, flags, bucket_mib=number, **shape)


def ranked(*trials: Trial, others: tuple[Objective, ...] = (), headroom: MemoryHeadroom | None = None) -> Ranking:
    return rank(trials, SPEED, 8, headroom, others)


class TestNodes:
    """One objective, and layouts on several numbers of nodes."""

    def test_each_smaller_number_of_nodes_is_spoken_for_where_it_gains_something(self):
        front = pareto(ranked(on(4, 1, 300.0), on(4, 2, 280.0), on(2, 3, 200.0), on(2, 4, 150.0), on(1, 5, 120.0)))
        assert names(front) == ["t0001", "t0003", "t0005"]
        assert names(pareto(ranked(on(2, 1, 300.0), on(4, 2, 200.0)))) == ["t0001"]
        assert names(pareto(ranked(on(2, 1, 300.0), on(4, 2, 200.0), on(1, 3, 90.0)))) == ["t0001", "t0003"]
        alike = [on(4, 1, 302.0), on(2, 2, 300.0), on(1, 3, 100.0)]
        assert names(pareto(ranked(*alike))) == ["t0001", "t0002", "t0003"]
        assert names(pareto(ranked(on(8, 9, 400.0), *alike))) == ["t0009", "t0002", "t0003"]
        assert pareto(ranked(on(2, 1, 300.0), on(2, 2, 299.0))) == ()
        assert pareto(ranked()) == ()

    def test_suspect_layouts_and_those_that_are_too_full_are_left_out(self):
        suspect = on(1, 2, 100.0, flags=("suspect_node",))
        assert pareto(ranked(on(2, 1, 300.0), suspect)) == ()
        peaks = ((on(2, 1, 300.0), 5.0), (on(1, 2, 200.0), 7.0), (on(1, 3, 100.0), 6.0))
        runs = [with_metrics(run, peak_memory_gib=peak_gib) for run, peak_gib in peaks]
        front = pareto(ranked(*runs, headroom=MemoryHeadroom(10.0, 4.0)))
        assert names(front) == ["t0001", "t0003"]

    def test_a_run_whose_repeat_failed_for_a_reason_of_the_layouts_own_speaks_for_no_number_of_nodes(self):
        best = [on(2, 1, 300.0), replace(on(2, 1, 300.0), trial="t0007", kind=TrialKind.REPEAT)]
        lone, other = on(1, 3, 200.0), on(1, 4, 100.0)
        for reason, spoken_for in ((FailureReason.GPU_OOM, "t0004"), (FailureReason.NODE_FAILURE, "t0003")):
            again = Trial("t0008", lone.layout, TrialKind.REPEAT, TrialState.FAILED, reason)
            assert names(pareto(ranked(*best, lone, other, again))) == ["t0001", spoken_for]

    def test_a_finalist_speaks_for_its_nodes_with_the_speed_over_all_its_runs(self):
        lucky = on(1, 3, 200.0)
        again = [replace(on(1, 3, speed), trial=f"t000{n}", kind=TrialKind.REPEAT) for n, speed in ((5, 90), (6, 91))]
        lone = on(1, 4, 150.0)
        best = [on(2, 1, 300.0), replace(on(2, 1, 300.0), trial="t0007", kind=TrialKind.REPEAT)]
        front = pareto(ranked(*best, lucky, lone, *again))
        assert names(front) == ["t0001", "t0003"]
        assert front[1].measured.tokens_per_sec == pytest.approx(91)


class TestObjectives:
    """A list of objectives, of which the first decides."""

    def test_the_set_has_what_no_other_layout_beats_and_the_first_objective_decides(self):
        trials = on(4, 1, 300.0), on(2, 2, 200.0), on(1, 3, 60.0)
        assert names(pareto(ranked(*trials, others=(PER_GPU,)))) == ["t0001", "t0002"]
        assert names(pareto(ranked(*trials, others=(NODE_HOURS,)))) == ["t0001", "t0002"]
        assert names(pareto(ranked(*trials))) == ["t0001", "t0002", "t0003"]
        trials = on(4, 1, 300.0), on(2, 2, 200.0)
        ranking = rank(trials, NODE_HOURS, 8, others=(SPEED,))
        assert names(pareto(ranking)) == ["t0002", "t0001"]
        assert names(pareto(ranked(on(2, 1, 300.0), on(2, 2, 200.0), others=(PER_GPU, NODE_HOURS)))) == ["t0001"]

    @pytest.mark.slow
    @given(
        st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.floats(10.0, 1e4)), min_size=1, max_size=8),
        st.sampled_from([(), (PER_GPU,), (NODE_HOURS, PER_GPU)]),
    )
    def test_the_best_is_always_first_and_each_number_of_nodes_stands_at_most_once(self, found, others):
        ranking = ranked(*(on(nodes, n, speed) for n, (nodes, speed) in enumerate(found, 1)), others=others)
        front = pareto(ranking)
        nodes = [t.layout.num_nodes for t in front]
        assert len(nodes) == len(set(nodes))
        assert front[:1] == ((ranking.best,) if others or len({n for n, _ in found}) > 1 else ())


def test_a_point_says_what_it_gives_for_what_in_the_unit_of_each_objective():
    ranking = ranked(on(2, 1, 300.0), on(1, 2, 186.0), others=(NODE_HOURS,))
    first, second = pareto_points(ranking)
    assert (first.trial, first.num_nodes, second.trial, second.num_nodes) == ("t0001", 2, "t0002", 1)
    assert first.layout == ranking.best.layout
    hours = pytest.approx(1e9 / 186.0 / 3600)
    assert second.values == {"tokens_per_sec": 186.0, "node_hours_per_billion_tokens": hours}
    (trade,) = trade_offs(ranking)
    assert trade == "t0002 on 1 node has 62 % of its tokens/s at 81 % of its node-hours a token"
    assert rationale(ranking) == f"t0001 is the fastest of the layouts measured; {trade}"
    lone = ranked(on(2, 1, 300.0))
    assert (pareto_points(lone), trade_offs(lone)) == ([], [])


ENERGY = Objective.JOULES_PER_TOKEN


def drawing(number: int, tokens_per_sec: float, joules: float, kind: TrialKind = TrialKind.SEARCH, **layout) -> Trial:
    """A measured trial with this energy a token, known to 1 %."""
    measured = trial(number, tokens_per_sec, 0.01, **layout)
    ends = {"joules_per_token_low": 0.99 * joules, "joules_per_token_high": 1.01 * joules}
    return replace(with_metrics(measured, joules_per_token=joules, **ends), kind=kind)


FAST, FRUGAL, NEITHER = drawing(1, 300.0, 0.8), drawing(2, 200.0, 0.5), drawing(3, 100.0, 0.9)


def test_the_layout_that_needs_the_least_energy_is_the_best_and_one_without_energy_not_ranked():
    ranking = rank([FAST, FRUGAL, NEITHER], ENERGY, 8)
    assert names(ranking.ordered) == ["t0002", "t0001", "t0003"]
    assert fastest_of(ranking).value == pytest.approx(0.5)
    assert value_of(ranking.best, ENERGY) == pytest.approx(2.0), "larger is better"
    ranking = rank([FAST, FRUGAL], ENERGY, 8)
    assert speedup_over(FAST, ranking.best, ENERGY) == Speedup(
        pytest.approx(1.6), pytest.approx(0.8 * 0.99 / (0.5 * 1.01)), pytest.approx(0.8 * 1.01 / (0.5 * 0.99))
    )
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
    assert [point.values for point in pareto_points(ranking)] == [
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
        write_json(path, incumbents_of([ranking], SPEC.search_id, batch).to_json())
        found = read_incumbent(replace(SPEC, trial="t0009"), path, fingerprint)
        assert (found is not None) is is_beaten
    slow = replace(best, state=TrialState.FAILED, reason=FailureReason.TIME_LIMIT)
    assert upper_bound_of(slow, SPEED) is not None
    assert upper_bound_of(slow, ENERGY) is None
