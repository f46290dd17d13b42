"""Software and hardware that a third-party trainer was measured on. Standard library only."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from search_spaces.engines import ACCELERATE, MEGATRON_CORE
from trials.ranks.engine_packages import TRANSFORMER_ENGINE, TRANSFORMERS
from trials.ranks.environment import RankEnvironment
from trials.ranks.software import cpu_name, gpu_driver, gpu_name, package_version, speed_environment
from trials.trainers.megatron_lm.checkout import commit, core_version
from trials.trainers.megatron_lm.trainer import NAME as MEGATRON_LM
from trials.trial import TrialSpec


def fingerprint(spec: TrialSpec, env: RankEnvironment, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Fingerprint of the rank that reads the log, whose interpreter is the trainer's, with the trainer's environment;
    unknown fields are absent."""
    found = {
        "python": platform.python_version(),
        "torch": package_version("torch"),
        "deepspeed": package_version("deepspeed"),
        **(_megatron_lm(spec.trainer["script"]) if spec.trainer["kind"] == MEGATRON_LM else {}),
        "transformer_engine": package_version(TRANSFORMER_ENGINE),
        **_accelerate(spec),
        "device": cpu_name() if spec.accelerator == "cpu" else gpu_name(env.local_rank),
        "gpu_driver": None if spec.accelerator == "cpu" else gpu_driver(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "host": socket.gethostname(),
        "executable": sys.executable,
        "environment": speed_environment(os.environ if environment is None else environment),
        "job_id": os.environ.get("SLURM_JOB_ID"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _megatron_lm(script: str) -> dict[str, str | None]:
    """Version that the script imports, that of its folder or else the installed one, and the commit of its folder;
    None where they are not known."""
    found: dict[str, str | None] = {"megatron_core": None, "megatron_lm_commit": None}
    with suppress(OSError):
        found["megatron_core"] = core_version(script) or package_version(MEGATRON_CORE)
    with suppress(OSError):
        found["megatron_lm_commit"] = commit(script)
    return found


def _accelerate(spec: TrialSpec) -> dict[str, str | None]:
    """Versions that the script imports, or may import."""
    packages = (ACCELERATE, TRANSFORMERS) if spec.trainer["kind"] == ACCELERATE else ()
    return {name: package_version(name) for name in packages}
