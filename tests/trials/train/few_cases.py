"""The cases of an engine that the gate trains."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from _pytest.mark import ParameterSet

from search_spaces.layouts.covering_array import cover
from search_spaces.layouts.layout import AXES
from trials.diagnostics.parity_cases import RECOMPUTATION_AXES, axis_values, covering_cases
from trials.diagnostics.selftest import Case


def few_cases(engine: str) -> list[Case]:
    """Few cases of an engine that cover every precision, and in fp32 every recomputation and every value of every other
    axis, where it has an effect."""
    given = covering_cases(most_ranks=4, engines=(engine,))
    return [given[number] for number in cover(list(map(shown, given)), [case.layout.num_gpus**2 for case in given])]


def shown(case: Case) -> list[Hashable]:
    values = axis_values(case)
    if case.layout.precision != "fp32":
        return [case.layout.precision]
    effective = [(axis, value) for axis, value in values.items() if axis not in AXES or case.layout.has_effect(axis)]
    return [*effective, tuple(values[axis] for axis in RECOMPUTATION_AXES)]


QUICK_CASES = 3
"""Cases of an engine that `make test` trains."""


def gate_cases(engine: str) -> list[ParameterSet]:
    """The few cases as parameters. All but the first ones on two ranks in fp32 are walks."""
    given = few_cases(engine)
    small = [case.name for case in given if case.layout.num_gpus <= 2 and case.layout.precision == "fp32"]
    quick = small[:QUICK_CASES]
    return [pytest.param(case, id=case.name, marks=() if case.name in quick else pytest.mark.walks) for case in given]
