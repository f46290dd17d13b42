"""Device of a rank: the same calls on CPU with gloo and on GPUs with NCCL; and the free memory of its host."""

from __future__ import annotations

import math
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from trials.measurement.device_memory import RankMemory
from trials.measurement.protocol import PROBE_SIZE
from trials.ranks.failures import TrialFailure
from trials.ranks.kernel_oom import CGROUPS, PROC, memory_groups
from trials.trial import FailureReason, TrialSpec

GIB = 2**30
CONTEXT_GIB = 0.75
"""Memory of a GPU that a process takes before it allocates any: the driver's context, 0.3 to 0.6 GiB as observed."""
FOREIGN_MEMORY_GIB = 1.0
"""Memory beyond the context that counts as another process's, for which a layout near the limit would be rejected."""
MEMORY_RELEASE_S = 10.0
"""Time for the driver to release the memory of a process that has just ended."""
PROBE_WARMUP_S = 0.3
"""Time for an idle GPU to reach its clock."""
PROBE_ROUNDS = 5
UTILIZATION_INTERVAL_S = 1.0
"""Sampling interval; the driver's own sample period is a sixth of a second to one second."""


@dataclass(frozen=True)
class Device:
    """Device of this rank. Memory in GiB; device memory is None on a CPU, which has none of its own."""

    torch_device: torch.device

    @property
    def is_cpu(self) -> bool:
        return self.torch_device.type == "cpu"

    @property
    def backend(self) -> str:
        return "gloo" if self.is_cpu else "nccl"

    def synchronize(self) -> None:
        """Wait until all launched work is done; a CPU computes synchronously."""
        if not self.is_cpu:
            torch.cuda.synchronize(self.torch_device)

    def allocated_gib(self) -> float | None:
        return None if self.is_cpu else torch.cuda.memory_allocated(self.torch_device) / GIB

    def reserved_gib(self) -> float | None:
        return None if self.is_cpu else torch.cuda.memory_reserved(self.torch_device) / GIB

    def used_gib(self) -> float | None:
        """GiB of the GPU in use, by this process and any other; None on a CPU."""
        if self.is_cpu:
            return None
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return (total - free) / GIB

    def peak_memory(self, outside_gib: float | None) -> RankMemory:
        """Peaks of this rank since `reset_peak`; `outside_gib` is the most that was used of a GPU and not reserved."""
        if self.is_cpu:
            # Not getrusage, whose ru_maxrss a child inherits from its parent.
            return RankMemory(_status_kib("VmHWM") / 2**20)
        statistics = torch.cuda.memory_stats(self.torch_device)
        inactive_bytes = statistics.get("inactive_split_bytes.all.peak")
        return RankMemory(
            torch.cuda.max_memory_reserved(self.torch_device) / GIB,
            peak_allocated_gib=torch.cuda.max_memory_allocated(self.torch_device) / GIB,
            outside_gib=outside_gib,
            total_gib=torch.cuda.mem_get_info(self.torch_device)[1] / GIB,
            inactive_split_gib=None if inactive_bytes is None else inactive_bytes / GIB,
            alloc_retries=statistics.get("num_alloc_retries"),
        )

    def reset_peak(self) -> None:
        """Reset a GPU's peak, since drawing whole weights before slicing them is not part of training."""
        if not self.is_cpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.torch_device)
            torch.cuda.reset_accumulated_memory_stats(self.torch_device)

    def probe_ms(self) -> float | None:
        """Milliseconds of one product of fixed size in half precision; None on a CPU, whose cores ranks share.

        Takes half a second and frees what it allocates.
        """
        if self.is_cpu:
            return None
        factor = torch.ones((PROBE_SIZE, PROBE_SIZE), dtype=torch.float16, device=self.torch_device)
        product = torch.empty_like(factor)
        return time_work_ms(lambda: torch.mm(factor, factor, out=product), self.synchronize)

    def utilization(self) -> float:
        """Fraction of the driver's last sample period in which the GPU was busy, with any process.

        Takes milliseconds. Raises whatever torch, NVML's or AMD's library raise where one of them is missing.
        """
        return torch.cuda.utilization(self.torch_device) / 100

    def limit_memory(self, limit_gib: float) -> None:
        """Make the allocator fail beyond this limit; MemoryError when the rank already exceeds it.

        On a CPU the limit is on resident memory, which the kernel cannot limit: so writable mappings may grow by what
        is still free under the limit. Only the soft limit is set, so that a failing rank can lift it to report the
        failure.
        """
        if self.is_cpu:
            _limit_writable_memory(int(limit_gib * GIB))
        else:
            total = torch.cuda.get_device_properties(self.torch_device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit_gib * GIB / total), self.torch_device)


class Utilization:
    """Samples of a device's utilisation, for one thread: at most one a second, and none after the first failure, since
    a missing library stays missing."""

    def __init__(self, device: Device):
        self._device = device
        self._due_s = math.inf if device.is_cpu else 0.0

    def sample(self) -> float | None:
        """A fraction; None between samples, on a CPU and where the driver does not report it."""
        if time.monotonic() < self._due_s:
            return None
        try:
            found = self._device.utilization()
        except Exception:  # an optional metric must not end the measurement
            self._due_s = math.inf
            return None
        self._due_s = time.monotonic() + UTILIZATION_INTERVAL_S
        return found


def open_device(spec: TrialSpec, local_rank: int) -> Device:
    """The device of this rank, made current. RuntimeError when the spec needs a GPU and there is none."""
    if spec.accelerator == "cpu":
        return Device(torch.device("cpu"))
    if not torch.cuda.is_available():
        raise RuntimeError(f"the spec names accelerator {spec.accelerator}, but torch sees no GPU on this node")
    # A launcher may expose only its own device to each rank.
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    _require_free_memory(device)
    return Device(device)


def _require_free_memory(device: torch.device) -> None:
    """TrialFailure when memory of this GPU is in use, and stays so, before this process has allocated any."""
    deadline = time.monotonic() + MEMORY_RELEASE_S
    while (found := _foreign_memory_error(device)) is not None:
        if time.monotonic() >= deadline:
            raise TrialFailure(FailureReason.GPU_MEMORY_IN_USE, found)
        time.sleep(0.5)


def _foreign_memory_error(device: torch.device) -> str | None:
    """Error for a GPU on which another process holds memory; None for a free one."""
    free, total = torch.cuda.mem_get_info(device)
    used_gib = (total - free) / GIB
    if used_gib <= CONTEXT_GIB + FOREIGN_MEMORY_GIB:
        return None
    return (
        f"GPU {device.index} of {socket.gethostname()}: {used_gib:.2f} of {total / GIB:.2f} GiB are in use before this "
        f"trial has allocated any; its own context takes up to {CONTEXT_GIB} GiB"
    )


def time_work_ms(work: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """Milliseconds per call of `work` once warm: the median over a few rounds of equally many calls."""
    started, calls = time.perf_counter(), 0
    while time.perf_counter() - started < PROBE_WARMUP_S:
        work()
        synchronize()
        calls += 1
    calls = max(1, calls // (2 * PROBE_ROUNDS))
    return median(_round_ms(work, synchronize, calls) for _ in range(PROBE_ROUNDS))


def _round_ms(work: Callable[[], object], synchronize: Callable[[], None], calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        work()
    synchronize()
    return (time.perf_counter() - started) * 1e3 / calls


def select_attention_kernel(kernel: str) -> None:
    """`flash`: kernels that do not store the scores (flash, memory-efficient); `math`: the plain products, also
    in 16 bits. `flex` is a function of its own, on a CPU patched by the plain products."""
    torch.backends.cuda.enable_math_sdp(kernel != "flash")
    # Otherwise torch computes 16-bit products in fp32 (aten/src/ATen/native/transformers/attention.cpp).
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    torch.backends.cuda.enable_flash_sdp(kernel == "flash")
    torch.backends.cuda.enable_mem_efficient_sdp(kernel == "flash")
    torch.backends.cuda.enable_cudnn_sdp(False)


def resident_gib() -> float:
    """Host memory of this process that is resident now."""
    return _status_kib("VmRSS") / 2**20


def lift_memory_limit() -> None:
    """Undo `limit_memory` on a CPU, so that reporting a failure does not itself run out of memory."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _limit_writable_memory(limit_bytes: int) -> None:
    free = limit_bytes - _status_kib("VmRSS") * 1024
    if free <= 0:
        raise MemoryError(f"resident memory is already beyond the limit of {limit_bytes / GIB:.3f} GiB")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_status_kib("VmData") * 1024 + free, hard))


def _status_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise OSError(f"/proc/self/status has no {field}")


def available_gib(proc: Path = PROC, cgroups: Path = CGROUPS) -> float:
    """Free memory of the host: the minimum of MemAvailable and of the rest of each limited cgroup of this process.

    A cgroup's inactive file cache counts as free, since the kernel drops it first. OSError without /proc/meminfo.
    """
    left = [_meminfo_bytes(proc, "MemAvailable")]
    for folder, (limit, used, inactive_file) in _limited_groups(proc, cgroups):
        # In a container the path may be that of the host, which does not exist inside.
        with suppress(OSError, ValueError):
            cache = _statistics(folder / "memory.stat").get(inactive_file, 0)
            left.append(_number(folder / limit) - _number(folder / used) + cache)
    return max(0, min(left)) / GIB


_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""Names of the limit, of what is used and of the inactive file cache, by the version of control groups."""


def _limited_groups(proc: Path, cgroups: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """This process's memory cgroup and its parents, with the names of their files in that version."""
    for version, mount, path in memory_groups(proc, cgroups):
        for folder in (Path(path), *Path(path).parents):
            yield mount / folder, _FILES[version]


def _meminfo_bytes(proc: Path, field: str) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{proc / 'meminfo'} has no {field}")


def _number(path: Path) -> int:
    """The file's number; ValueError for `max`, version 2's value for no limit; version 1 has a number near 2^63."""
    return int(path.read_text())


def _statistics(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in path.read_text().splitlines())
    return {name: int(value) for name, value in pairs}
