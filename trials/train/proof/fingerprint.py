"""Fingerprint of the software and hardware of a measurement, small enough for every outcome."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from search_spaces.engines import MEGATRON_CORE
from trials.measurement.protocol import slow_ranks
from trials.ranks.engine_packages import PACKAGED_ENGINES, TRANSFORMER_ENGINE, more_packages_of, packages_of
from trials.ranks.failures import TrialFailure
from trials.ranks.software import cpu_name, gpu_driver, package_version, speed_environment
from trials.train.parallel.device import Device
from trials.train.parallel.gather import RankHost, gather_json
from trials.trial import FailureReason, TrialSpec


def fingerprint(
    spec: TrialSpec, device: Device, rank_hosts: Sequence[RankHost], software: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """The fingerprint of rank 0's node, and all ranks' hosts (`rank_hosts`, in rank order); absent where unknown.

    `software` is that of `common_software`.
    """
    found = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # a subclass, which no reader of outcomes takes
        "deepspeed": package_version("deepspeed") if spec.layout.engine == "deepspeed" else None,
        **(software or {}),
        "cuda": torch.version.cuda,
        "nccl": None if device.is_cpu else ".".join(map(str, torch.cuda.nccl.version())),
        "gpu_driver": None if device.is_cpu else gpu_driver(),
        "device": cpu_name() if device.is_cpu else torch.cuda.get_device_name(device.torch_device),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "host": socket.gethostname(),
        "executable": sys.executable,
        "environment": speed_environment(os.environ),
        "job_id": os.environ.get("SLURM_JOB_ID"),
        "hosts": _hosts(rank_hosts),
        "probe_ms_by_rank": probe_ms_by_rank(rank_hosts) or None,
        "slow_hosts": _hosts([rank_hosts[rank] for rank in slow_ranks(probe_ms_by_rank(rank_hosts))]) or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def common_software(spec: TrialSpec, device: Device, chunks: Iterable[Any]) -> dict[str, str | None]:
    """Versions, and for megatron-core layers, of an engine that others wrote, from the model chunks that it has built;
    nothing for other engines. Collective over the world. TrialFailure where they are not the same on all ranks."""
    if spec.layout.engine not in PACKAGED_ENGINES:
        return {}
    software = engine_software(spec.layout.engine, chunks) | _versions(more_packages_of(spec.layout, spec.model))
    by_rank = gather_json(software, device.torch_device)
    if mix := software_mix(by_rank):
        raise TrialFailure(FailureReason.SCRIPT_ERROR, f"the ranks' software differs: {mix}")
    return by_rank[0]


def software_mix(by_rank: Sequence[Mapping[str, str | None]]) -> str | None:
    """The fields in which ranks differ, each value with its ranks; None without one."""
    fields = [name for name in by_rank[0] if len({software[name] for software in by_rank}) > 1]
    return "; ".join(f"{name} is {_values_with_ranks([of[name] for of in by_rank])}" for name in fields) or None


def _values_with_ranks(values: Sequence[str | None]) -> str:
    ranks = {value: [str(rank) for rank, other in enumerate(values) if other == value] for value in values}
    return ", ".join(f"{value or 'unknown'} on rank {', '.join(those)}" for value, those in ranks.items())


def engine_software(engine: str, chunks: Iterable[Any]) -> dict[str, str | None]:
    """Versions that an engine of `PACKAGED_ENGINES` runs on. ImportError where it is missing."""
    if engine == MEGATRON_CORE:
        return megatron_software(chunks)
    return _versions(packages_of(engine))


def _versions(packages: Iterable[str]) -> dict[str, str | None]:
    return {package: package_version(package) for package in packages}


def megatron_software(chunks: Iterable[Any]) -> dict[str, str | None]:
    """Versions that engine megatron-core runs on, and the layers that it took, as the chunks' modules show."""
    # The version of what is imported, since a folder on the path may hide the installed package.
    from megatron.core import __version__ as megatron_core

    modules = [type(module) for chunk in chunks for module in chunk.modules()]
    is_taken = any(base.__module__.partition(".")[0] == _TRANSFORMER_ENGINE for m in modules for base in m.__mro__)
    return {
        "megatron_core": megatron_core,
        "transformer_engine": package_version(TRANSFORMER_ENGINE) if is_taken else None,
        "megatron_layers": (_TRANSFORMER_ENGINE if is_taken else "local") if modules else None,
    }


_TRANSFORMER_ENGINE = "transformer_engine"


def probe_ms_by_rank(rank_hosts: Sequence[RankHost]) -> list[float]:
    """Probe times in rank order; empty unless every rank's device was probed."""
    known = [rank.probe_ms for rank in rank_hosts if rank.probe_ms is not None]
    return known if len(known) == len(rank_hosts) else []


def _hosts(rank_hosts: Sequence[RankHost]) -> list[str]:
    """Distinct hosts, in rank order."""
    return list(dict.fromkeys(rank.host for rank in rank_hosts))
