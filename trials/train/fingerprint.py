"""Software and hardware a number was measured on, small enough to lie in every outcome."""

from __future__ import annotations

import os
import platform
import socket
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from trials.train.device import Device
from trials.trial import TrialSpec


def fingerprint(spec: TrialSpec, device: Device) -> dict[str, Any]:
    """Of rank 0's node; absent where unknown."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "deepspeed": _deepspeed_version() if spec.layout.engine == "deepspeed" else None,
        "cuda": torch.version.cuda,
        "device": _cpu_name() if device.is_cpu else torch.cuda.get_device_name(device.torch_device),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "host": socket.gethostname(),
        "executable": sys.executable,
    }
    return {name: value for name, value in found.items() if value is not None}


def _deepspeed_version() -> str | None:
    try:
        return version("deepspeed")
    except PackageNotFoundError:
        return None


def _cpu_name() -> str | None:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return None
