"""What a rank runs on and with, as far as nothing has to be imported to know it. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_DECIDE_SPEED = re.compile(
    "(NCCL|RCCL|TORCH|PYTORCH|CUDA|HIP|HSA|ROCR|MIOPEN|GLOO|UCX|FI|MPICH|OMP|KMP|GOMP|MKL|OPENBLAS|MALLOC)_"
    "|(LOADEDMODULES|LD_PRELOAD)$"
)
"""Names of variables by which libraries, allocators and transports are set."""
_OF_ONE_RANK = re.compile(r"VISIBLE_DEVICES$")
_NOT_THE_USERS = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")
"""What scikit-learn sets in the process that drives, and ranks inherit: a search's do, a replay's do not."""
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|_KEY$")
_LONGEST_VALUE = 1000
_DRIVER_VERSION = re.compile(r"Module.*?\s(\d+\.\d+(?:\.\d+)?)\s")


def speed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which a run may be faster or slower than another on the same machine, without secrets and
    without what differs from rank to rank; in alphabetical order, long values cut, what cannot be printed a space."""
    return {
        name: "".join(c if c.isprintable() else " " for c in environment[name][:_LONGEST_VALUE])
        for name in sorted(environment)
        if _DECIDE_SPEED.match(name) and not _is_left_out(name)
    }


def _is_left_out(name: str) -> bool:
    return name in _NOT_THE_USERS or bool(_OF_ONE_RANK.search(name) or _SECRET.search(name))


def gpu_driver(version_file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of NVIDIA's driver; None where there is none."""
    try:
        found = _DRIVER_VERSION.search(version_file.read_text())
    except OSError:
        return None
    return found and found[1]


def package_version(name: str) -> str | None:
    """Of an installed package; None where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def cpu_name() -> str | None:
    return _after_colon(Path("/proc/cpuinfo"), "model name")


def gpu_name(local_rank: int) -> str | None:
    """The model of a node's GPU of this number, as NVIDIA's driver tells it; None where it tells none."""
    gpus = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return _after_colon(gpus[local_rank % len(gpus)], "Model") if gpus else None


def _after_colon(path: Path, label: str) -> str | None:
    """The value of the first line that begins so."""
    for line in path.read_text().splitlines():
        if line.startswith(label):
            return line.partition(":")[2].strip()
    return None
