"""JSON of others: bounds of the parser, and dataclasses by their types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from search_spaces.decoding import MOST_LEVELS, decode, parse_json, require_fields
from trials.trial import FailureReason


@dataclass(frozen=True)
class Part:
    seconds: float


@dataclass(frozen=True)
class Whole:
    name: str
    count: int
    is_on: bool = False
    limit_s: float | None = None
    reason: FailureReason | None = None
    parts: tuple[Part, ...] = ()
    curve: tuple[tuple[int, float], ...] = ()
    rates: Mapping[str, float] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)


GIVEN: dict[str, Any] = {"name": "a", "count": 3}


def test_a_dataclass_is_decoded_by_its_types():
    data = GIVEN | {
        "limit_s": 2,
        "reason": "hang",
        "parts": [{"seconds": 0.5}],
        "curve": [[2, 1.5]],
        "rates": {"x": 1.0},
        "others": {"any": [None]},
    }
    assert decode(Whole, data) == Whole(
        "a", 3, False, 2, FailureReason.HANG, (Part(0.5),), ((2, 1.5),), {"x": 1.0}, {"any": [None]}
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({"count": value}, "count is") for value in (None, True, 1.0, "3", [3])),
        *(({"limit_s": value}, "limit_s is") for value in ("1", True, {}, math.nan, 10**400)),
        *(({"reason": value}, "reason is") for value in ("slow", 0, [], {})),
        *(({"parts": value}, "parts is") for value in (None, {}, "x")),
        *(({"curve": value}, "curve is") for value in ([[1]], [1], [["1", 1]])),
        *(({"rates": value}, "rates") for value in ({"x": "1"}, [], None)),
        ({"parts": [{}]}, "seconds is missing"),
        ({"parts": [1]}, "not an object"),
        ({"stranger": 1}, "'stranger' is not one of"),
    ],
)
def test_anything_else_is_a_value_error_with_the_name(change: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        decode(Whole, GIVEN | change)


@pytest.mark.parametrize("data", [None, [], "x", 1, {"name": "a"}])
def test_fields_are_those_of_an_object(data: Any):
    with pytest.raises(ValueError, match=r"is not an object|count is missing"):
        require_fields(Whole, data)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "NaN", "Infinity", "1e400", "-1e101", "9" * 19, "1" * 5000),
        *(b"\xff", b"\x00", "[" * (MOST_LEVELS + 2) + "]" * (MOST_LEVELS + 2), "[" * 100_000, '{"a":' * 100_000),
    ],
)
def test_text_beyond_the_bounds_is_a_value_error(text: str | bytes):
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(text)


def test_what_we_write_is_within_the_bounds():
    assert parse_json('{"a": [[1, -2.5e-12, null, true, "x"], 9007199254740993]}') == {
        "a": [[1, -2.5e-12, None, True, "x"], 9007199254740993]
    }
