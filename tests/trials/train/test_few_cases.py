"""The cases that the gate trains by engines which others wrote."""

from __future__ import annotations

import pytest

from search_spaces.layouts.layout import AXES
from tests.trials.train.few_cases import few_cases
from trials.diagnostics.parity_cases import axis_values, covering_cases
from trials.ranks.engine_packages import PACKAGED_ENGINES

MOST_CASES = 19
"""Ten for the values of the axes, and nine for models with features and what they are trained with."""
of_each_engine = pytest.mark.parametrize("engine", [name for name in PACKAGED_ENGINES if name != "accelerate-launch"])


@of_each_engine
def test_few_cases_are_at_most_nineteen(engine):
    assert len(few_cases(engine)) <= MOST_CASES


@of_each_engine
def test_few_cases_have_every_value_where_it_has_an_effect(engine):
    assert effects(covering_cases(most_ranks=4, engines=(engine,))) == effects(few_cases(engine))


def effects(cases):
    """(axis, value) of the layouts in fp32 that are not there whatever is asked for."""
    layouts = [(case.layout, axis_values(case)) for case in cases if case.layout.precision == "fp32"]
    return {
        (name, value)
        for layout, values in layouts
        for name, value in values.items()
        if name in AXES and layout.has_effect(name)
    }
