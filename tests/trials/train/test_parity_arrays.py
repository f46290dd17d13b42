"""Clipped steps of every case of the covering arrays, by every engine, compared with a plain GPT."""

from __future__ import annotations

import pytest

from tests.trials.train.engine_cases import covering_cases_of, of_engine
from tests.trials.train.parity import NEEDS
from trials.diagnostics.parity_cases import NATIVE_ENGINES, covering_cases

pytestmark = [pytest.mark.processes, pytest.mark.walks, pytest.mark.minutes, pytest.mark.timeout(400)]
CASES = [*covering_cases(engines=NATIVE_ENGINES), *(case for engine in NEEDS for case in covering_cases_of(engine))]
STEPS = 4
"""Enough: without any one reduction, three steps already differ by more than is tolerated (test_parity.py)."""


@pytest.mark.parametrize("given", [*map(of_engine, CASES)])
def test_steps_of_a_layout_are_those_of_a_plain_gpt(parity_of, given, record_property):
    parity_of(given.layout.engine).expect(given, record_property, STEPS)
