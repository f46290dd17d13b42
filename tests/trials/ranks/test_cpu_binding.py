"""Cores of ranks that are started as plain processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trials.ranks.cpu_binding import own_cpus


def topology(folder: Path, cores: list[tuple[int, int]]) -> Path:
    """Files of CPUs 0, 1, ... with these packages and cores."""
    for cpu, (package, core) in enumerate(cores):
        of_cpu = folder / f"cpu{cpu}" / "topology"
        of_cpu.mkdir(parents=True)
        (of_cpu / "physical_package_id").write_text(f"{package}\n")
        (of_cpu / "core_id").write_text(f"{core}\n")
    return folder


@pytest.mark.parametrize(
    ("ranks", "shares"),
    [
        (1, [[0, 4, 1, 5, 2, 6, 3, 7]]),
        (2, [[0, 4, 1, 5], [2, 6, 3, 7]]),
        (3, [[0, 4], [1, 5], [2, 6, 3, 7]]),
        (8, [[0, 4], [0, 4], [1, 5], [1, 5], [2, 6], [2, 6], [3, 7], [3, 7]]),
    ],
)
def test_ranks_have_whole_cores_and_neighbours(tmp_path, ranks, shares):
    """Two packages of two cores, with two hardware threads each, numbered as Linux does."""
    folder = topology(tmp_path, [(0, 0), (0, 1), (1, 0), (1, 1)] * 2)
    assert [own_cpus(set(range(8)), rank, ranks, folder) for rank in range(ranks)] == shares


def test_only_usable_cpus_are_shared_out(tmp_path):
    folder = topology(tmp_path, [(0, 0), (0, 1), (0, 2), (0, 3)])
    assert [own_cpus({1, 3}, rank, 2, folder) for rank in range(2)] == [[1], [3]]


def test_without_a_topology_a_cpu_is_a_core(tmp_path):
    usable = os.sched_getaffinity(0)
    assert own_cpus(usable, 0, 1, tmp_path) == sorted(usable)
