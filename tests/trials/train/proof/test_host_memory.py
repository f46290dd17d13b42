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


@pytest.mark.parametrize(
    ("group", "limits", "gib"),
    [
        ("0::/job_7", {"job_7": ("max", 10, 0)}, 100),
        ("0::/job_7/step_0", {"job_7/step_0": (str(64 * GIB), 40, 4)}, 28),  # cache would be dropped
        ("0::/job_7/step_0", {"job_7/step_0": ("max", 10, 0), "job_7": (str(32 * GIB), 20, 0)}, 12),
        ("0::/somewhere/else", {}, 100),  # it does not show inside of the container
        (None, {}, 100),
        ("0::/job_7", {"job_7": (str(4 * GIB), 5, 0)}, 0),
    ],
    ids=["no-limit", "limit", "limit-above", "not-shown", "no-cgroups", "overdrawn"],
)
def test_a_node_has_what_it_and_the_limits_of_the_process_leave(proc, tmp_path, group, limits, gib):
    if group is not None:
        (proc / "self/cgroup").write_text(group + "\n")
    for name, limit in limits.items():
        group_2(tmp_path / "cgroup" / name, *limit)
    assert available_gib(proc, tmp_path / "cgroup") == gib


def test_version_1_has_other_names(proc, tmp_path):
    (proc / "self/cgroup").write_text("5:cpu:/other\n4:memory,hugetlb:/slurm/job_7\n0::/\n")
    write(
        tmp_path / "cgroup/memory/slurm/job_7",
        memory__limit_in_bytes=str(16 * GIB),
        memory__usage_in_bytes=str(6 * GIB),
        memory__stat=f"inactive_file 1\ntotal_inactive_file {2 * GIB}",
    )
    assert available_gib(proc, tmp_path / "cgroup") == 12


def test_this_machine_has_some_left():
    assert available_gib() > 0
