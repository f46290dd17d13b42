"""Binding of ranks to cores where they are started as plain processes; srun binds its own. Standard library only."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from trials.ranks.environment import RankEnvironment
from trials.trial import TrialSpec

_TOPOLOGY = Path("/sys/devices/system/cpu")


def bind(spec: TrialSpec, env: RankEnvironment) -> None:
    """Give this process, and what it starts, its rank's cores where the trial's launch options ask for that."""
    if env.ranks_on_node is not None and spec.layout.of_trial.launch.get("cpu_bind") == "cores":
        os.sched_setaffinity(0, own_cpus(os.sched_getaffinity(0), env.local_rank, env.ranks_on_node))


def own_cpus(usable: set[int], local_rank: int, ranks_on_node: int, topology: Path = _TOPOLOGY) -> list[int]:
    """CPUs of a rank's share of these: whole cores, neighbours together. With fewer cores than ranks, ranks share a
    core."""
    cores: dict[tuple[int, ...], list[int]] = {}
    for cpu in sorted(usable):
        cores.setdefault(_core_of(cpu, topology), []).append(cpu)
    ordered = [cores[core] for core in sorted(cores)]
    first, end = (len(ordered) * (local_rank + n) // ranks_on_node for n in (0, 1))
    return [cpu for core in ordered[first : max(end, first + 1)] for cpu in core]


def _core_of(cpu: int, topology: Path) -> tuple[int, ...]:
    """Package and core of a CPU, which the hardware threads of one core share; the CPU itself where unknown."""
    names = ("physical_package_id", "core_id")
    with suppress(OSError, ValueError):
        package, core = (int((topology / f"cpu{cpu}" / "topology" / name).read_text()) for name in names)
        return package, core
    return 0, cpu
