"""What a rank runs on and with, as far as nothing has to be imported to know it. Standard library only."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


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
