from __future__ import annotations

import pytest

from search_spaces.errors import InputError
from search_spaces.layouts.axes import axis_values, complete_axes
from search_spaces.layouts.layout import LAYOUT_FIELDS


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("1f1b", ("1f1b",)),
        ({"min": 1, "max": 8, "factor": 2}, (1, 2, 4, 8)),
        ({"min": 3, "max": 20, "factor": 3}, (3, 9)),
        ({"min": 1, "max": 7, "step": 3}, (1, 4, 7)),
        ({"min": 0, "max": 3, "step": 1}, (0, 1, 2, 3)),
        ({"min": 5, "max": 5, "step": 100}, (5,)),
    ],
)
def test_an_axis_is_a_value_a_list_or_a_range(given, values):
    assert axis_values(given) == values


@pytest.mark.bad_input(16)
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "empty list"),
        ([1, 2, 1], "1 twice"),
        ({"min": 8, "max": 1, "step": 1}, "min 8 is more than max 1"),
        ({"min": 1, "max": 8, "step": 0}, "step is 0"),
        ({"min": 1, "max": 8, "factor": 1}, "factor is 1"),
        ({"min": 0, "max": 8, "factor": 2}, "min is 0"),
        ({"min": 1.0, "max": 8, "step": 1}, "min is 1.0"),
        ({"min": 1, "max": 10**12, "step": 1}, "max is 1000000000000"),
        (list(range(10_001)), "10001 values"),
    ],
)
def test_repeats_and_ranges_that_lead_nowhere_are_refused(given, words):
    with pytest.raises(InputError, match=words):
        axis_values(given)


def test_every_field_that_is_not_given_gets_its_one_default_and_accumulation_is_no_axis():
    complete = complete_axes({"tensor_parallel": [1, 2]}, num_nodes=3)
    assert complete["tensor_parallel"] == (1, 2)
    assert complete["num_nodes"] == (3,)
    assert complete["bucket_mib"] == (None,)
    assert list(complete) == [f for f in LAYOUT_FIELDS if f not in ("data_parallel", "grad_accum_steps")]
    assert complete_axes(complete, num_nodes=7) == complete
    assert complete_axes({"grad_accum_steps": [1, 2]}, num_nodes=1)["grad_accum_steps"] == (1, 2)
