"""The cases that the gate trains by engines which others wrote."""

from __future__ import annotations

import pytest

from tests.trials.train.few_cases import few_cases
from trials.ranks.engine_packages import PACKAGED_ENGINES

MOST_CASES = 12


@pytest.mark.parametrize("engine", [engine for engine in PACKAGED_ENGINES if engine != "accelerate-launch"])
def test_few_cases_are_at_most_twelve(engine):
    assert len(few_cases(engine)) <= MOST_CASES
