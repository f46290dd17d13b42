"""Clipped steps of every case of the covering arrays, by every engine, compared with a plain GPT."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache

import pytest
from _pytest.mark import ParameterSet

from search_spaces.engines import ACCELERATE, MEGATRON_CORE, TORCHTITAN
from tests.trials.train.engine_cases import covering_cases_of
from tests.trials.train.parity import Parity, needs_accelerate, needs_megatron, needs_torchtitan
from tests.trials.train.ranks import WarmRanks
from trials.diagnostics.parity_cases import NATIVE_ENGINES, covering_cases

pytestmark = [pytest.mark.processes, pytest.mark.walks, pytest.mark.minutes, pytest.mark.timeout(400)]
NEEDS = {ACCELERATE: needs_accelerate, MEGATRON_CORE: needs_megatron, TORCHTITAN: needs_torchtitan}


@pytest.fixture(scope="module")
def parity_of() -> Iterator[Callable[[str], Parity]]:
    """Cases on ranks of an engine; the native engines share theirs."""
    with ExitStack() as stack:
        started = cache(lambda engine: Parity(stack.enter_context(closing(WarmRanks(engine)))))
        yield lambda engine: started(engine if engine in NEEDS else "")


def cases() -> Iterator[ParameterSet]:
    """Every case, in the group of its engine, so that one worker has its ranks."""
    packaged = [case for engine in NEEDS for case in covering_cases_of(engine)]
    for case in [*covering_cases(engines=NATIVE_ENGINES), *packaged]:
        engine = case.layout.engine
        marks = [pytest.mark.xdist_group(f"array-{engine}"), *([NEEDS[engine]] if engine in NEEDS else [])]
        yield pytest.param(case, id=case.name, marks=marks)


STEPS = 4
"""Enough: without any one reduction, three steps already differ by more than is tolerated (test_parity.py)."""


@pytest.mark.parametrize("given", list(cases()))
def test_steps_of_a_layout_are_those_of_a_plain_gpt(parity_of, given, record_property):
    parity_of(given.layout.engine).expect(given, record_property, STEPS)
