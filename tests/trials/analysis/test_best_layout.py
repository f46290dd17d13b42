"""The contract's `best` object, and the reason for the choice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from tests.kit import with_metrics
from tests.trials.analysis.test_ranking import NODE_HOURS, SPEED, again, trial
from trials.analysis.best_layout import (
    Choice,
    best_json,
    choice_of,
    describe_faster,
    describe_no_best,
    fastest_json,
    no_room_detail,
    rationale,
)
from trials.analysis.ranking import Ranking, rank
from trials.trial import Trial, TrialKind


def with_peak(run: Trial, peak_gib: float) -> Trial:
    return with_metrics(run, peak_memory_gib=peak_gib)


def spared() -> Ranking:
    """Two tied finalists, of which the slower one needs 12 % less memory."""
    first = [with_peak(run, 63.0) for run in (trial(1, 300.0), again(3, 1, 300.0), again(5, 1, 300.0))]
    second = [with_peak(run, 55.5) for run in (trial(2, 291.0), again(4, 2, 291.0), again(6, 2, 291.0))]
    return rank([*first, *second], SPEED, 8)


def test_it_has_the_contracts_names_and_null_for_what_is_unknown():
    best = best_json(rank([trial(1, 300.0, 0.05), trial(2, 299.0, 0.05)], SPEED, 8))
    expected = {"trial": "t0001", "layout": Layout(data_parallel=8).to_json(), "objective": "tokens_per_sec"}
    expected |= {"value": 300.0, "tokens_per_sec": 300.0, "tokens_per_sec_low": 285.0, "tokens_per_sec_high": 315.0}
    expected |= {"ties": ["t0002"], "selection_reason": "fastest", "pareto": [], "flags": []}
    expected |= {"fastest": {"trial": "t0001", "value": 300.0, "peak_memory_gib": None}}
    expected |= {"rationale": "t0001 is the fastest of the layouts measured", "on_disjoint_nodes": None}
    assert best == expected | dict.fromkeys(("peak_memory_gib", "time_s", "slowest_rank", "fullest_rank"))
    best = best_json(rank([trial(1, 300.0, None)], SPEED, 8))
    assert (best["tokens_per_sec_low"], best["tokens_per_sec_high"]) == (None, None)
    ranking = rank([trial(1, 300.0)], NODE_HOURS, 8)
    assert rationale(ranking) == "t0001 is the best in node_hours_per_billion_tokens of the layouts measured"
    nothing = Ranking(SPEED)
    assert [tell(nothing) for tell in (best_json, choice_of, fastest_json, rationale)] == [None] * 4


def test_what_was_chosen_for_its_memory_or_interval_says_over_which():
    best = best_json(spared())
    assert (best["trial"], best["selection_reason"], best["ties"]) == ("t0002", Choice.MEMORY, ["t0001"])
    assert best["fastest"] == {"trial": "t0001", "value": pytest.approx(300.0), "peak_memory_gib": 63.0}
    assert best["tokens_per_sec"] == pytest.approx(291.0), "the numbers are those of the chosen layout"
    words = "Recommended: t0002. t0001 is 3 % faster, within noise, but needs 63 GiB instead of 55.5"
    assert best["rationale"] == words
    steady, varying = [trial(1, 300.0), again(3, 1, 300.0)], [trial(2, 250.0), again(4, 2, 380.0)]
    ranking = rank([*steady, *varying], SPEED, 8)
    assert (ranking.best.trial, choice_of(ranking), fastest_json(ranking)["trial"]) == ("t0001", "interval", "t0002")
    words = "Recommended: t0001. t0002 is 3 % faster, within noise, but its 95 % interval reaches lower"
    assert rationale(ranking) == words


@pytest.mark.parametrize(
    ("peak_gib", "nodes", "words"),
    [
        (8.0, 1, "needs 8 GiB instead of 7"),
        (None, 1, "its peak memory is unknown"),
        (7.0, 1, "its 95 % interval reaches lower"),
        (6.0, 2, "takes 2 nodes instead of 1"),
    ],
)
def test_another_faster_tie_than_the_one_that_was_spared_has_its_own_drawback(
    peak_gib: float | None, nodes: int, words: str
):
    """The first has the highest lower end and most memory; the second, of the least memory, is as fast, if varying."""
    shape = {"tensor_parallel": 3, "num_nodes": nodes}
    runs = [with_peak(run, 10.0) for run in (trial(1, 300.0), again(4, 1, 300.0))]
    runs += [with_peak(run, 7.0) for run in (trial(2, 280.0), again(5, 2, 330.0))]
    varying = trial(3, 270.0, **shape), replace(trial(6, 350.0, **shape), kind=TrialKind.REPEAT)
    runs += [with_metrics(run, peak_memory_gib=peak_gib) for run in varying]
    assert describe_faster(rank(runs, SPEED, 8)) == f"t0003 is 1 % faster, within noise, but {words}"


def test_a_faster_one_that_did_not_compete_is_named_with_its_obstacle():
    headroom, full, fits = MemoryHeadroom(10.0, 4.0), with_peak(trial(1, 300.0), 9.0), with_peak(trial(2, 200.0), 5.0)
    ranking = rank([full, fits], SPEED, 8, headroom)
    assert (choice_of(ranking), fastest_json(ranking)["trial"]) == (Choice.EXCLUDED, "t0001")
    assert rationale(ranking) == "Recommended: t0002. t0001 is 50 % faster, but leaves too little memory free"
    once = rank([trial(1, 303.0), trial(2, 300.0), again(3, 2, 300.0)], SPEED, 8)
    assert rationale(once) == "Recommended: t0002. t0001 is 1 % faster, but was not measured again"
    suspect = rank([trial(1, 303.0, flags=("suspect_node",)), trial(2, 302.0)], SPEED, 8)
    assert rationale(suspect) == "Recommended: t0002. t0001 is 0.3 % faster, but is suspect"
    unproven = rank([trial(1, 330.0, flags=("unproven",)), trial(2, 300.0)], SPEED, 8)
    assert rationale(unproven) == "Recommended: t0002. t0001 is 10 % faster, but is unproven"
    assert rationale(rank([fits], SPEED, 8, headroom)) == "t0002 is the fastest of the layouts measured"


def test_where_no_layout_may_be_the_best_that_is_said():
    headroom = MemoryHeadroom(10.0, 4.0)
    full = [with_peak(trial(1, 300.0), 9.0), with_peak(trial(2, 200.0), 8.8), trial(3, 100.0)]
    asked = "no layout that was measured leaves 4 GiB free (constraints.min_free_memory_gib)"
    assert no_room_detail(rank(full, SPEED, 8, headroom)) == f"{asked}: t0002 comes nearest and leaves 1.2 GiB"
    assert no_room_detail(rank(full[2:], SPEED, 8, headroom)) == f"{asked}: the peak of none is known"
    assert no_room_detail(rank([*full, with_peak(trial(4, 1.0), 1.0)], SPEED, 8, headroom)) is None
    assert no_room_detail(rank(full, SPEED, 8)) is no_room_detail(rank([], SPEED, 8, headroom)) is None
    suspect = rank([trial(1, 300.0, flags=("suspect_node",))], SPEED, 8)
    assert suspect.best is None
    assert describe_no_best(suspect) == "no layout that was measured may be the best: one suspect run alone never is"
    assert describe_no_best(rank([], SPEED, 8)) is None
    full = rank([with_peak(trial(1, 300.0), 9.0)], SPEED, 8, MemoryHeadroom(10.0, 4.0))
    assert describe_no_best(full) == no_room_detail(full)
