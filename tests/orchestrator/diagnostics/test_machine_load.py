"""Load of this machine by other work."""

from __future__ import annotations

import pytest

from orchestrator.diagnostics.machine_load import describe_load


@pytest.mark.parametrize(
    ("load", "cpus", "is_busy"), [(0.0, 2, False), (0.4, 2, False), (0.5, 2, True), (7.9, 32, False)]
)
def test_a_machine_is_busy_from_a_quarter_of_its_cpus_on(load, cpus, is_busy):
    assert (describe_load(load, cpus) is not None) is is_busy
