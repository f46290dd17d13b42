"""A rank's memory capacity, and the headroom that a layout leaves."""

from __future__ import annotations

import pytest

from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.hardware.memory_headroom import CONTEXT_GIB, MemoryHeadroom, rank_memory_gib

A100, CPU = ACCELERATORS["a100-40gb"], ACCELERATORS["cpu"]
HEADROOM = MemoryHeadroom(capacity_gib=10.0, min_free_gib=4.0)


@pytest.mark.parametrize(
    ("accelerator", "limit_gib", "memory_gib"),
    [(A100, None, 39.49 - CONTEXT_GIB), (A100, 20.0, 20.0), (A100, 100.0, 39.49 - CONTEXT_GIB), (CPU, 2.0, 2.0)],
)
def test_a_rank_may_take_what_the_device_has_beside_its_context_or_its_limit(accelerator, limit_gib, memory_gib):
    assert rank_memory_gib(accelerator, limit_gib) == pytest.approx(memory_gib)


def test_a_cpu_without_a_limit_has_a_memory_that_nobody_knows():
    assert rank_memory_gib(CPU, None) is None
    assert MemoryHeadroom.of(CPU, None, 1.0) is None


@pytest.mark.parametrize(
    ("peak_gib", "is_satisfied"), [(5.9, True), (6.0, True), (6.1, False), (11.0, False), (None, False)]
)
def test_a_peak_keeps_it_that_is_known_and_leaves_enough(peak_gib, is_satisfied):
    assert HEADROOM.is_satisfied(peak_gib) is is_satisfied


def test_it_is_found_in_what_a_search_wrote_down():
    spec = {"cluster": Cluster(A100, 8, 1).to_json(), "constraints": {"min_free_memory_gib": 4.0}, "measure": {}}
    assert MemoryHeadroom.of_search(spec) == MemoryHeadroom.of(A100, None, 4.0)
    limited = spec | {"measure": {"memory_limit_gib": 10.0}}
    assert MemoryHeadroom.of_search(limited) == HEADROOM
    for without in ({}, {"constraints": None}, {"constraints": {"max_nodes": 2}}):
        assert MemoryHeadroom.of_search(without) is None
