"""Samples of a node and its GPUs."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import make_spec
from trials.files.folders import AttemptFolder
from trials.measurement.node_metrics import MAX_BYTES, MAX_NODES, NodeSample, read_samples, sample_line
from trials.ranks import node_sampler
from trials.ranks.environment import RankEnvironment
from trials.ranks.node_sampler import Node, NodeSampler, nvml_or_none, pause_after, sample_node
from trials.ranks.nvml import Nvml

SPEC = replace(make_spec(Layout()), num_gpus=80, gpus_per_node=4)


class Enough(Exception):
    """Ends a sampler once a test has seen enough."""


def write_proc(proc: Path, busy: int, idle: int, available_kib: int = 750, received: int = 0, sent: int = 0) -> Path:
    (proc / "net").mkdir(parents=True, exist_ok=True)
    # user nice system idle iowait irq softirq steal guest guest_nice: guests are part of user
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle - 5} 5 0 0 0 {busy} 0\ncpu0 1 2 3 4\n")
    (proc / "meminfo").write_text(f"MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: {available_kib} kB\n")
    heading = "Inter-|   Receive |  Transmit\n face |bytes packets | bytes packets\n"
    lines = [f"  {name}: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n" for name in ("lo", "ib0")]
    (proc / "net/dev").write_text(heading + "".join(lines))
    return proc


def test_a_look_says_what_changed_since_the_last_one(tmp_path):
    node = Node(proc=write_proc(tmp_path, busy=100, idle=100, received=10**6))
    write_proc(tmp_path, busy=130, idle=170, received=2 * 10**6, sent=5 * 10**6)
    assert "cpu_utilization_percentage" not in Node(proc=tmp_path).look(), "within one tick"
    assert node.look() == {
        "cpu_utilization_percentage": 30.0,
        "system_memory_usage_megabytes": 0.3,  # 250 KiB
        "system_memory_usage_percentage": 25.0,
        "network_receive_megabytes": 2.0,
        "network_transmit_megabytes": 10.0,
    }
    write_proc(tmp_path, busy=140, idle=170, received=2 * 10**6, sent=5 * 10**6)
    second = node.look()
    assert (second["cpu_utilization_percentage"], second["network_receive_megabytes"]) == (100.0, 2.0)


def sampled(monkeypatch, path: Path, looks: int) -> list[float]:
    """Run a sampler for this many samples; returns the pauses it made."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        if len(pauses) == looks:
            raise Enough
        pauses.append(seconds)

    monkeypatch.setattr(node_sampler.time, "sleep", sleep)
    monkeypatch.setattr(node_sampler.time, "monotonic", lambda: sum(pauses))
    NodeSampler(path, has_gpus=False).run()
    return pauses


def test_samples_are_whole_lines_a_few_seconds_apart(monkeypatch, tmp_path):
    path = tmp_path / "system.n0.r0.jsonl"
    assert sampled(monkeypatch, path, looks=3) == [0.05, 1.0, 5.0]
    assert len(read_samples(path)) == 3


def test_a_week_of_samples_of_eight_gpus_can_be_read():
    values = [f"gpu_{gpu}_{name}" for gpu in range(8) for name in ("utilization_percentage", "power_usage_percentage")]
    values += [f"gpu_{gpu}_memory_usage_{unit}" for gpu in range(8) for unit in ("megabytes", "percentage")]
    line = len(sample_line(NodeSample("2026-11-20T12:00:00.000000Z", dict.fromkeys(values, 123456.7)))) + 8 * 40
    age_s, lines = 0.0, 0
    while age_s < 7 * 24 * 3600:
        age_s += pause_after(age_s)
        lines += 1
    assert lines < 1000
    assert lines * line < MAX_BYTES / 2


def test_what_fails_ends_the_sampling_and_nothing_else(monkeypatch, tmp_path):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    NodeSampler(tmp_path / "no such folder" / "system", has_gpus=False).run()
    NodeSampler(tmp_path / "system", has_gpus=False, proc=tmp_path / "none").run()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    sample_node(SPEC, AttemptFolder(tmp_path), RankEnvironment(0, 80, 0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("rank", "restart", "expected"),
    [
        (0, 0, ["system.n0.r0.jsonl"]),
        (3, 0, []),
        (4, 2, ["system.n1.r2.jsonl"]),
        (4 * (MAX_NODES - 1), 0, ["system.n15.r0.jsonl"]),
        (4 * MAX_NODES, 0, []),
    ],
)
def test_the_first_rank_of_each_of_the_first_nodes_samples(monkeypatch, tmp_path, rank, restart, expected):
    started: list[str] = []
    monkeypatch.setattr(NodeSampler, "start", lambda self: started.append(self._path.name))
    sample_node(SPEC, AttemptFolder(tmp_path), RankEnvironment(rank, 80, rank % 4, restart))
    assert started == expected


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
