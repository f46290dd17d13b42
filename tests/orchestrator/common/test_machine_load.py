"""Warning for a machine that is busy with other work."""

from __future__ import annotations

import pytest

from orchestrator.common import machine_load
from orchestrator.common.machine_load import busy_warning, describe_load


@pytest.mark.parametrize(
    ("load", "cpus", "is_busy"), [(0.0, 2, False), (0.4, 2, False), (0.5, 2, True), (7.9, 32, False)]
)
def test_a_machine_is_busy_from_a_quarter_of_its_cpus_on(load, cpus, is_busy):
    assert (describe_load(load, cpus) is not None) is is_busy


def test_its_own_load_is_reported_with_the_numbers(monkeypatch):
    monkeypatch.setattr(machine_load.os, "getloadavg", lambda: (13.42, 1.0, 1.0))
    monkeypatch.setattr(machine_load.os, "cpu_count", lambda: 2)
    assert busy_warning() == "this machine is busy: a load of 13.4 over the last minute, on 2 CPUs"
