from __future__ import annotations

import json
from pathlib import Path

import pytest

from search_spaces.errors import InputError, Problem, shown


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ([1.5, float("inf")], [1.5, "inf"]),
        ({"a": {1: float("nan")}}, {"a": {"1": "nan"}}),
        ((True, None, "x"), [True, None, "x"]),
        (Path("/x"), repr(Path("/x"))),
        ({3}, "{3}"),
    ],
)
def test_a_problem_is_plain_finite_json_whatever_its_value(value, plain):
    written = Problem("code", "message", value=value).to_json()
    assert written["value"] == plain
    assert json.loads(json.dumps(written, allow_nan=False)) == written


def test_a_place_is_filled_in_where_a_problem_does_not_know_its_own():
    error = InputError(Problem("a", "x"), Problem("b", "x", file="table.csv"), Problem("c", "x", line=3))
    placed = error.at(file="search.yaml", line=7, key="space")
    assert [(p.file, p.line) for p in placed.problems] == [
        ("search.yaml", 7),
        ("table.csv", None),
        ("search.yaml", 3),
    ]
    assert {p.key for p in placed.problems} == {"space"}


def test_a_value_is_shown_in_the_words_of_a_file():
    assert [shown(v) for v in (None, True, False, "x", 3)] == ["null", "true", "false", "'x'", "3"]
