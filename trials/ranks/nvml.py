"""Metrics of a node's GPUs by NVIDIA's driver library (NVML). Standard library only."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
_MEGABYTE = 1e6
_MILLIWATTS = 1e3
_MILLIJOULES = 1e3


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t: percent of the driver's last sample period."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """The GPUs visible to this process, numbered as by nvidia-smi. OSError where the driver reports none.

    GPUs that are lost or belong to another user are counted by the driver and skipped here.
    """

    def __init__(self, library: Any = None):
        self._library = library or ctypes.CDLL(_LIBRARY)
        self._require("nvmlInit_v2")
        count = ctypes.c_uint()
        self._require("nvmlDeviceGetCount_v2", ctypes.byref(count))
        handles = ((number, self._device(number)) for number in range(count.value))
        self._devices = {number: device for number, device in handles if device is not None}

    def read(self) -> dict[str, float]:
        """Metrics by MLflow's names for a GPU's system metrics; those that the driver does not report are absent.

        Takes milliseconds, most of them without the interpreter's lock.
        """
        return {
            f"gpu_{number}_{name}": value
            for number, device in self._devices.items()
            for name, value in self._values(device)
        }

    def energy_j(self, uuid: str) -> float | None:
        """Joules that the GPU of this UUID (without the prefix of nvidia-smi) has used since its driver was loaded.

        None where its driver does not report them: before Volta, and for parts of a GPU (MIG), which share a counter.
        """
        device, energy = ctypes.c_void_p(), ctypes.c_ulonglong()
        code = self._library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(device))
        if code != _SUCCESS or self._is_partitioned(device):
            return None
        if not self._query("nvmlDeviceGetTotalEnergyConsumption", device, energy):
            return None
        return energy.value / _MILLIJOULES

    def _is_partitioned(self, device: ctypes.c_void_p) -> bool:
        """True if the GPU is split by MIG; GPUs that cannot be split do not report it."""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        code = self._library.nvmlDeviceGetMigMode(device, ctypes.byref(current), ctypes.byref(pending))
        return code == _SUCCESS and current.value != 0

    def _values(self, device: ctypes.c_void_p) -> Iterator[tuple[str, float]]:
        utilization, memory = _Utilization(), _Memory()
        power, most_power = ctypes.c_uint(), ctypes.c_uint()
        if self._query("nvmlDeviceGetUtilizationRates", device, utilization):
            yield "utilization_percentage", float(utilization.gpu)
        if self._query("nvmlDeviceGetMemoryInfo", device, memory) and memory.total:
            yield "memory_usage_megabytes", memory.used / _MEGABYTE
            yield "memory_usage_percentage", 100 * memory.used / memory.total
        if self._query("nvmlDeviceGetPowerUsage", device, power):
            yield "power_usage_watts", power.value / _MILLIWATTS
            if self._query("nvmlDeviceGetEnforcedPowerLimit", device, most_power) and most_power.value:
                yield "power_usage_percentage", 100 * power.value / most_power.value

    def _device(self, number: int) -> ctypes.c_void_p | None:
        device = ctypes.c_void_p()
        code = self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(device))
        return device if code == _SUCCESS else None

    def _query(self, function: str, device: ctypes.c_void_p, answer: Any) -> bool:
        """True if the driver reports this; for a part of a GPU (MIG) it does not report everything."""
        return getattr(self._library, function)(device, ctypes.byref(answer)) == _SUCCESS

    def _require(self, function: str, *arguments: Any) -> None:
        if (code := getattr(self._library, function)(*arguments)) != _SUCCESS:
            raise OSError(f"{function} failed with code {code}")
