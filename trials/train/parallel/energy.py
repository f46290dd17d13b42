"""Energy of a rank's GPU over the measured steps, by its driver's counter: NVML, or AMD SMI with torch for ROCm."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from trials.measurement.energy import RankEnergy
from trials.ranks.node_sampler import nvml_or_none
from trials.train.parallel.device import Device

NVML, AMD_SMI = "nvml", "amdsmi"

_MICROJOULES = 1e6

Reader = Callable[[], float | None]
"""Joules that the device has used since some moment; None where its driver does not report them."""


class EnergyMeter:
    """Energy of this rank's device from `begin` to `end`. A device or driver without a counter is no error."""

    def __init__(self, device: Device):
        self.library = None if device.is_cpu else (AMD_SMI if torch.version.hip else NVML)
        self._device = device
        self._read: Reader | None = None
        self._first: tuple[float, float] | None = None
        self._used = RankEnergy(None)

    def begin(self) -> None:
        if self.library is not None:
            self._read, gpu = _reader(self._device, self.library)
            self._used = RankEnergy(gpu)
            self._first = self._now()

    def end(self) -> None:
        """Read once more; nothing where the measured steps have not begun."""
        last = None if self._first is None else self._now()
        if self._first is not None and last is not None:
            (from_s, from_j), (to_s, to_j) = self._first, last
            self._used = RankEnergy(self._used.gpu, to_j - from_j, to_s - from_s)

    def used(self) -> RankEnergy:
        return self._used

    def _now(self) -> tuple[float, float] | None:
        """Time in seconds, and the counter; None where it cannot be read."""
        try:
            joules = None if self._read is None else self._read()
        except Exception:  # an optional metric must not end the measurement
            return None
        return None if joules is None else (time.monotonic(), joules)


def _reader(device: Device, library: str) -> tuple[Reader | None, str | None]:
    """Reader of the device's counter, and the identity of the GPU on its node; None where torch cannot tell which it
    is."""
    try:
        gpu = str(torch.cuda.get_device_properties(device.torch_device).uuid)
        return (_amd_reader(device.torch_device) if library == AMD_SMI else _nvml_reader(gpu)), gpu
    except Exception:  # no such library, or a torch without these properties
        return None, None


def _nvml_reader(uuid: str) -> Reader | None:
    nvml = nvml_or_none()
    return None if nvml is None else lambda: nvml.energy_j(uuid)


def _amd_reader(device: torch.device) -> Reader:
    """Reader of the accumulator of AMD SMI, which torch for ROCm imports; it names the unit with each value."""
    amdsmi: Any = torch.cuda.amdsmi
    handle = torch.cuda._get_amdsmi_handler(device)

    def read() -> float:
        counted: dict[str, Any] = amdsmi.amdsmi_get_energy_count(handle)
        return counted["energy_accumulator"] * counted["counter_resolution"] / _MICROJOULES

    return read
