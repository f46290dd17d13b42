from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache

import pytest

from tests.trials.train.parity import Parity
from tests.trials.train.ranks import WarmRanks
from tests.trials.train.trial_processes import RunningTrial, start_trial
from trials.diagnostics.parity_cases import NATIVE_ENGINES


@pytest.fixture(scope="session")
def ranks() -> Iterator[WarmRanks]:
    warm = WarmRanks()
    yield warm
    warm.close()


@pytest.fixture(scope="module")
def parity(ranks: WarmRanks) -> Parity:
    """Cases on ranks of the native engines."""
    return Parity(ranks)


@pytest.fixture(scope="module")
def parity_of() -> Iterator[Callable[[str], Parity]]:
    """Cases on ranks of an engine; the native engines share theirs."""
    with ExitStack() as stack:
        started = cache(lambda engine: Parity(stack.enter_context(closing(WarmRanks(engine)))))
        yield lambda engine: started("" if engine in NATIVE_ENGINES else engine)


@pytest.fixture
def start(tmp_path, ranks):
    """`start_trial` in this test's folder, on warm ranks by default; no rank outlives the test."""
    trials: list[RunningTrial] = []

    def start_here(spec, **options) -> RunningTrial:
        trials.append(start_trial(tmp_path, spec, **{"warm": ranks} | options))
        return trials[-1]

    yield start_here
    for trial in trials:
        trial.kill()
