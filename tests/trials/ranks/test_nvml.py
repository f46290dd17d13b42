from __future__ import annotations

import ctypes
from typing import Any

import pytest

from trials.measurement.node_metrics import NodeSample
from trials.ranks.node_sampler import nvml_or_none
from trials.ranks.nvml import Nvml

UNSUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
GIB = 2**30


class Driver:
    """A stand-in for NVML: returns 0 and writes a value through the caller's pointer. Two GPUs, the second of them a
    MIG slice, of which the driver reports neither utilization nor power."""

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: ctypes.c_uint, device: Any) -> int:
        device._obj.value = number.value + 1
        return 0

    def nvmlDeviceGetMemoryInfo(self, device: ctypes.c_void_p, memory: Any) -> int:
        memory._obj.total, memory._obj.used = 80 * GIB, 20 * GIB * device.value
        return 0

    def nvmlDeviceGetUtilizationRates(self, device: ctypes.c_void_p, rates: Any) -> int:
        rates._obj.gpu = 98
        return 0 if device.value == 1 else UNSUPPORTED

    def nvmlDeviceGetPowerUsage(self, device: ctypes.c_void_p, milliwatts: Any) -> int:
        milliwatts._obj.value = 350_500
        return 0 if device.value == 1 else UNSUPPORTED

    def nvmlDeviceGetEnforcedPowerLimit(self, device: ctypes.c_void_p, milliwatts: Any) -> int:
        milliwatts._obj.value = 701_000
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, device: Any) -> int:
        device._obj.value = {b"GPU-aaaa": 1, b"GPU-bbbb": 2}.get(uuid)
        return NOT_FOUND if device._obj.value is None else 0

    def nvmlDeviceGetMigMode(self, device: ctypes.c_void_p, current: Any, pending: Any) -> int:
        current._obj.value = pending._obj.value = device.value == 2
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, device: ctypes.c_void_p, millijoules: Any) -> int:
        millijoules._obj.value = 5_000_000_500
        return 0


def test_each_gpu_is_told_of_as_far_as_its_driver_does():
    values = Nvml(Driver()).read()
    assert values == {
        "gpu_0_utilization_percentage": 98.0,
        "gpu_0_memory_usage_megabytes": pytest.approx(20 * GIB / 1e6),
        "gpu_0_memory_usage_percentage": 25.0,
        "gpu_0_power_usage_watts": 350.5,
        "gpu_0_power_usage_percentage": 50.0,
        "gpu_1_memory_usage_megabytes": pytest.approx(40 * GIB / 1e6),
        "gpu_1_memory_usage_percentage": 50.0,
    }
    assert NodeSample.from_json({"time": "2026-11-20T12:00:00.000000Z", **values}).values == values


def test_a_gpu_that_is_somebody_elses_or_lost_hides_no_other():
    class Shared(Driver):
        def nvmlDeviceGetHandleByIndex_v2(self, number: ctypes.c_uint, device: Any) -> int:
            return NO_PERMISSION if number.value == 0 else super().nvmlDeviceGetHandleByIndex_v2(number, device)

    values = Nvml(Shared()).read()
    assert values.keys() == {"gpu_1_memory_usage_megabytes", "gpu_1_memory_usage_percentage"}


def test_a_driver_that_does_not_start_is_none():
    driver = Driver()
    driver.nvmlInit_v2 = lambda: 9  # type: ignore[method-assign]
    with pytest.raises(OSError, match="nvmlInit_v2 failed with code 9"):
        Nvml(driver)


@pytest.mark.parametrize("failure", [OSError("libnvidia-ml.so.1: no such file"), AttributeError("no such function")])
def test_where_no_driver_tells_there_are_no_gpus(monkeypatch, failure):
    def refuse(_name: str) -> None:
        raise failure

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert nvml_or_none() is None


class Volta(Driver):
    """Knows no parts of a GPU."""

    def nvmlDeviceGetMigMode(self, device: ctypes.c_void_p, current: Any, pending: Any) -> int:
        return UNSUPPORTED


class Pascal(Volta):
    def nvmlDeviceGetTotalEnergyConsumption(self, device: ctypes.c_void_p, millijoules: Any) -> int:
        return UNSUPPORTED


@pytest.mark.parametrize(
    ("driver", "uuid", "joules"),
    [
        (Driver, "aaaa", 5_000_000.5),
        (Driver, "bbbb", None),
        (Driver, "cccc", None),
        (Volta, "bbbb", 5_000_000.5),
        (Pascal, "aaaa", None),
    ],
    ids=["whole", "shared-counter", "part", "no-parts", "no-counter"],
)
def test_energy_is_that_of_a_whole_gpu_or_unknown(driver, uuid, joules):
    assert Nvml(driver()).energy_j(uuid) == joules
