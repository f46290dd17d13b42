from __future__ import annotations

import json
from pathlib import Path

import pytest

from search_spaces.errors import InputError, Problem, format_value


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


def test_a_problem_is_told_in_the_words_of_a_file_with_its_place_where_it_knows_none():
    error = InputError(Problem("a", "x"), Problem("b", "x", file="table.csv"), Problem("c", "x", line=3))
    placed = error.at(file="search.yaml", line=7, key="space")
    assert [(p.file, p.line) for p in placed.problems] == [("search.yaml", 7), ("table.csv", None), ("search.yaml", 3)]
    assert {p.key for p in placed.problems} == {"space"}
    assert [format_value(v) for v in (None, True, False, "x", 3)] == ["null", "true", "false", "'x'", "3"]


@pytest.mark.slow
@pytest.mark.bad_input(52)
@pytest.mark.parametrize(
    "value",
    ["9" * 5000, "x" * 2**20, "x y " * 2**18, 10**5000, ["x"] * 10**5, {"a": "x" * 10**6}],
    ids=["digits", "word", "words", "number", "list", "mapping"],
)
def test_what_a_problem_quotes_is_shortened_wherever_it_stands(value):
    quoted = value if isinstance(value, str) else "x" * 2**20
    rule, fix = f"none of {quoted}", f"write {quoted[:9]}"
    problem = Problem("code", f"has {quoted} in it", rule, fix, quoted, value, quoted, 3)
    told = json.dumps(problem.to_json())
    assert len(str(problem)) < 30_000
    assert len(told) < 40_000
    assert str(problem).count("characters") >= 3
    assert "has " in str(problem)
    assert " in it" in str(problem)
