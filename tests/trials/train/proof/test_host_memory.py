from __future__ import annotations

from pathlib import Path

import pytest

from trials.train.proof.host_memory import available_gib

GIB = 2**30


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc of a node with 100 GiB available."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {200 * 2**20} kB\nMemAvailable: {100 * 2**20} kB\n")
    return tmp_path / "proc"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def group_2(folder: Path, limit: str, used_gib: float, cache_gib: float) -> None:
    statistics = f"anon 5\ninactive_file {int(cache_gib * GIB)}"
    write(folder, memory__max=limit, memory__current=str(int(used_gib * GIB)), memory__stat=statistics)


def in_group(proc: Path, lines: str) -> None:
    (proc / "self/cgroup").write_text(lines + "\n")


def test_without_a_limit_the_node_has_what_it_has(proc, tmp_path):
    in_group(proc, "0::/job_7")
    group_2(tmp_path / "cgroup/job_7", "max", 10, 0)
    assert available_gib(proc, tmp_path / "cgroup") == 100


def test_a_limit_counts_without_the_cache_that_would_be_dropped(proc, tmp_path):
    in_group(proc, "0::/job_7/step_0")
    group_2(tmp_path / "cgroup/job_7/step_0", str(64 * GIB), 40, 4)
    assert available_gib(proc, tmp_path / "cgroup") == 28


def test_so_does_the_limit_of_a_group_above(proc, tmp_path):
    in_group(proc, "0::/job_7/step_0")
    group_2(tmp_path / "cgroup/job_7/step_0", "max", 10, 0)
    group_2(tmp_path / "cgroup/job_7", str(32 * GIB), 20, 0)
    assert available_gib(proc, tmp_path / "cgroup") == 12


def test_version_1_has_other_names(proc, tmp_path):
    in_group(proc, "5:cpu:/other\n4:memory,hugetlb:/slurm/job_7\n0::/")
    write(
        tmp_path / "cgroup/memory/slurm/job_7",
        memory__limit_in_bytes=str(16 * GIB),
        memory__usage_in_bytes=str(6 * GIB),
        memory__stat=f"inactive_file 1\ntotal_inactive_file {2 * GIB}",
    )
    assert available_gib(proc, tmp_path / "cgroup") == 12


def test_a_group_that_does_not_show_inside_of_the_container_limits_nothing(proc, tmp_path):
    in_group(proc, "0::/somewhere/else")
    assert available_gib(proc, tmp_path / "cgroup") == 100


def test_a_kernel_without_cgroups_limits_nothing(proc, tmp_path):
    assert available_gib(proc, tmp_path / "cgroup") == 100


def test_what_is_overdrawn_leaves_nothing(proc, tmp_path):
    in_group(proc, "0::/job_7")
    group_2(tmp_path / "cgroup/job_7", str(4 * GIB), 5, 0)
    assert available_gib(proc, tmp_path / "cgroup") == 0


def test_this_machine_has_some_left():
    assert available_gib() > 0
