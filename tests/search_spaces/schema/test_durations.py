from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from search_spaces.errors import InputError
from search_spaces.schema.durations import Duration, parse_duration_s


@pytest.mark.bad_input(6)
@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        *((10, 600), ("10", 600), ("10:30", 630), ("90:00", 5400), ("01:30:00", 5400), ("12:30:00", 45000)),
        *(("1-12", 129600), ("1-12:30", 131400), ("1-12:30:15", 131415), ("90s", 90), ("0.5s", 0.5), ("10m", 600)),
        *(("2h", 7200), ("1d", 86400), ("08", 480)),
    ],
)
def test_durations_are_read_in_slurms_grammar_or_with_a_unit(given, seconds):
    assert parse_duration_s(given) == seconds


@pytest.mark.bad_input(20)
@pytest.mark.parametrize(
    "given",
    [
        *("", "soon", "1h30m", "10:99", "1-24", "1-12:60", "1:2:3:4", "-5", "1_000", "٣m", "10 minutes", "1e3s", "inf"),
        *(0, -1, 1.5, True, None, [], "0", "0s", "367d", 10**30, "999999999-00", "9" * 400),
    ],
)
def test_a_duration_in_another_form_is_refused_with_the_grammar(given):
    with pytest.raises(InputError, match=r"duration is") as caught:
        parse_duration_s(given)
    assert caught.value.problems[0].fix == "for example 10m, 2h or 01:30:00"


@pytest.mark.parametrize("given", ["367d", "9999999999s", "9999999999-00", "99999999999", 10**15])
def test_a_duration_over_a_year_is_refused_with_the_bound(given):
    with pytest.raises(InputError) as caught:
        parse_duration_s(given)
    assert caught.value.problems[0].rule == "a duration is longer than 0 and at most 366 days"


@pytest.mark.parametrize("seconds", [0.5, 90, 5400.25, 31536000])
def test_a_duration_written_down_is_read_back_the_same(seconds: float):
    adapter = TypeAdapter(Duration)
    assert parse_duration_s(adapter.dump_python(seconds)) == seconds
