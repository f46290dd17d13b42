"""Software and hardware of a rank, as far as known without imports. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from search_spaces.schema.unsafe_text import looks_secret

_DECIDE_SPEED = re.compile(
    "(NCCL|RCCL|TORCH|PYTORCH|CUDA|HIP|HSA|ROCR|MIOPEN|GLOO|UCX|FI|MPICH|OMP|KMP|GOMP|MKL|OPENBLAS|MALLOC)_"
    "|(LOADEDMODULES|LD_PRELOAD)$"
)
"""Names of variables that configure libraries, allocators and transports."""
_OF_ONE_RANK = re.compile(r"VISIBLE_DEVICES$")
_NOT_THE_USERS = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")
"""Variables that scikit-learn sets in a driver's process and its ranks inherit, in a search and not in a replay."""
_LONGEST_VALUE = 1000
_DRIVER_VERSION = re.compile(r"Module.*?\s(\d+\.\d+(?:\.\d+)?)\s")


def speed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that may affect speed, without secrets and without those that differ from rank to rank.

    In alphabetical order; long values are cut, unprintable characters become spaces.
    """
    return {
        name: "".join(c if c.isprintable() else " " for c in environment[name][:_LONGEST_VALUE])
        for name in sorted(environment)
        if _DECIDE_SPEED.match(name) and not _is_left_out(name, environment[name])
    }


def _is_left_out(name: str, value: str) -> bool:
    return name in _NOT_THE_USERS or bool(_OF_ONE_RANK.search(name)) or looks_secret(value, name)


def gpu_driver(version_file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Version of NVIDIA's driver; None without one."""
    try:
        found = _DRIVER_VERSION.search(version_file.read_text())
    except OSError:
        return None
    return found and found[1]


def package_version(name: str) -> str | None:
    """Version of an installed package; None without one."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def cpu_name() -> str | None:
    return _after_colon(Path("/proc/cpuinfo"), "model name")


def gpu_name(local_rank: int) -> str | None:
    """Model of the node's GPU of this number, by NVIDIA's driver; None where it reports none."""
    gpus = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return _after_colon(gpus[local_rank % len(gpus)], "Model") if gpus else None


def _after_colon(path: Path, label: str) -> str | None:
    """The value on the first line that begins with `label`."""
    for line in path.read_text().splitlines():
        if line.startswith(label):
            return line.partition(":")[2].strip()
    return None
