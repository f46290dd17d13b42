from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.trials.train.ranks import WarmRanks


@pytest.fixture(scope="session")
def ranks() -> Iterator[WarmRanks]:
    warm = WarmRanks()
    yield warm
    warm.close()
