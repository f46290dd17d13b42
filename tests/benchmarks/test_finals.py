"""Simulated finals: errors of the rule and what it saves."""

from __future__ import annotations

import pytest

from benchmarks.finals import BASELINE, NOISE, lines_of, play, summary_of
from trials.analysis.finals import ERROR_RATE, Finals

pytestmark = pytest.mark.slow


def test_by_either_rule_the_same_runs_are_drawn_and_a_fixed_count_is_kept():
    played = play("apart", NOISE["quiet"], 3, Finals.FIXED, seed=7)
    assert (played.repeats, played.rounds) == (12, 3), f"three finalists and {BASELINE}"
    early = play("apart", NOISE["quiet"], 3, Finals.UNTIL_DECIDED, seed=7)
    assert early.repeats < played.repeats
    assert early == play("apart", NOISE["quiet"], 3, Finals.UNTIL_DECIDED, seed=7)


def test_the_error_rate_is_kept_where_runs_vary_as_assumed_and_repeats_are_saved():
    lines = list(lines_of(40, 2))
    for line in lines:
        by_rule, fixed = line["until_decided"], line["fixed"]
        if line["noise"] != "busy":
            assert by_rule["false_by_rule"] <= ERROR_RATE
        assert by_rule["repeats"] < fixed["repeats"] == 8
    assert summary_of(lines)["until_decided"] < 7.5 < summary_of(lines)["fixed"] == 8
