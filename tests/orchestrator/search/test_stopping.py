"""Time limits of attempts, from the durations of measured trials."""

from __future__ import annotations

import pytest

from orchestrator.search.index import SearchIndex
from orchestrator.search.stopping import TIME_LIMIT_FACTOR, TIME_LIMIT_MARGIN_S, time_limit_s
from search_spaces.layouts.layout import Layout
from trials.analysis.ranking import Objective
from trials.ledger.events import SearchRecord
from trials.trial import Attempt, FailureReason, Trial, TrialState

MOST_S = 1800.0


def trial_of(name: str, duration_s: float, reason: FailureReason | None = None, num_nodes: int = 1) -> Trial:
    state = TrialState.MEASURED if reason is None else TrialState.FAILED
    attempt = Attempt(
        name, "a1", "0" * 32, num_nodes, MOST_S, state=state, reason=reason, started_at=1e9, ended_at=1e9 + duration_s
    )
    return Trial(name, Layout(), state=state, reason=reason, attempts=(attempt,))


def search_with(*durations_s: float, failed: int = 0) -> SearchIndex:
    measured = [trial_of(f"t{i:04d}", duration_s) for i, duration_s in enumerate(durations_s, start=1)]
    others = [trial_of(f"t{i + 900}", 1.0, FailureReason.GPU_OOM) for i in range(failed)]
    search = SearchRecord("limits-aaaaaa", {}, "c0de", 1e9, trials=(*measured, *others))
    return SearchIndex(search, Objective.TOKENS_PER_SEC, 1)


def test_two_trials_tell_nothing_yet():
    assert time_limit_s(search_with(10.0, 20.0), MOST_S, 1) == MOST_S


def test_the_limit_follows_the_longest_measured_trial_with_room():
    assert time_limit_s(search_with(10.0, 100.0, 20.0), MOST_S, 1) == pytest.approx(
        TIME_LIMIT_FACTOR * 100 + TIME_LIMIT_MARGIN_S
    )


def test_the_search_files_limit_is_never_exceeded():
    assert time_limit_s(search_with(10.0, 1700.0, 20.0), MOST_S, 1) == MOST_S


def test_trials_that_failed_say_nothing_about_how_long_one_takes():
    assert time_limit_s(search_with(10.0, 20.0, failed=3), MOST_S, 1) == MOST_S


def test_a_clock_that_went_back_gives_no_limit_below_the_room():
    assert time_limit_s(search_with(-5.0, -5.0, -5.0), MOST_S, 1) == TIME_LIMIT_MARGIN_S


def test_fewer_nodes_are_given_the_longer_for_the_same_work_and_more_no_less():
    trials = [trial_of(f"t{nodes}", 60.0, num_nodes=nodes) for nodes in (2, 4, 4)]
    index = SearchIndex(
        SearchRecord("limits-aaaaaa", {}, "c0de", 1e9, trials=tuple(trials)), Objective.TOKENS_PER_SEC, 1
    )
    limits_s = [time_limit_s(index, MOST_S, nodes) for nodes in (1, 2, 4, 8)]
    assert limits_s == [TIME_LIMIT_FACTOR * longest_s + TIME_LIMIT_MARGIN_S for longest_s in (240.0, 120.0, 60.0, 60.0)]
