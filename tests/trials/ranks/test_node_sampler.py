"""Samples of a node and its GPUs."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import make_spec
from trials.files.folders import AttemptFolder
from trials.measurement.node_metrics import MAX_NODES, NodeSample
from trials.ranks.environment import RankEnvironment
from trials.ranks.node_sampler import Node, NodeSampler, nvml_or_none, pause_after, sample_node
from trials.ranks.nvml import Nvml

SPEC = replace(make_spec(Layout()), num_gpus=80, gpus_per_node=4)


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


def test_samples_are_a_few_seconds_apart_and_less_than_a_thousand_in_a_week():
    assert [pause_after(age_s) for age_s in (0.0, 0.99, 1.0, 499.0, 1000.0)] == [1.0, 1.0, 5.0, 5.0, 10.0]
    age_s, samples = 0.0, 0
    while age_s < 7 * 24 * 3600:
        age_s += pause_after(age_s)
        samples += 1
    assert samples < 1000


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


REFUSED = 3
GIB = 2**30
ANSWERS: dict[str, Callable[[int], dict[str, int]]] = {
    "nvmlDeviceGetMemoryInfo": lambda device: {"total": 80 * GIB, "used": 20 * GIB * device},
    "nvmlDeviceGetUtilizationRates": lambda device: {"gpu": 98},
    "nvmlDeviceGetPowerUsage": lambda device: {"value": 350_500},
    "nvmlDeviceGetEnforcedPowerLimit": lambda device: {"value": 701_000},
    "nvmlDeviceGetMigMode": lambda device: {"value": device == 2},
    "nvmlDeviceGetTotalEnergyConsumption": lambda device: {"value": 5_000_000_500},
}
"""What the fields of NVML's answers are for devices 1 and 2, the second of which is split."""


class Driver:
    """A stand-in for NVML, which writes its answers through the caller's pointers. `refuses` are functions, with a
    device behind them or for all of them."""

    def __init__(self, *refuses: str):
        self._refuses = refuses

    def nvmlInit_v2(self) -> int:
        return REFUSED if "nvmlInit_v2" in self._refuses else 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: ctypes.c_uint, device: Any) -> int:
        device._obj.value = number.value + 1
        return REFUSED if f"handle {number.value + 1}" in self._refuses else 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, device: Any) -> int:
        device._obj.value = {b"GPU-aaaa": 1, b"GPU-bbbb": 2}.get(uuid)
        return REFUSED if device._obj.value is None else 0

    def __getattr__(self, function: str) -> Callable[..., int]:
        def ask(device: ctypes.c_void_p, *answers: Any) -> int:
            if {function, f"{function} {device.value}"} & {*self._refuses}:
                return REFUSED
            for answer in answers:
                for field, value in ANSWERS[function](device.value).items():
                    setattr(answer._obj, field, value)
            return 0

        return ask


OF_A_WHOLE_GPU = ("nvmlDeviceGetUtilizationRates 2", "nvmlDeviceGetPowerUsage 2")


def test_each_gpu_is_told_of_as_far_as_its_driver_does_and_one_that_is_somebody_elses_hides_no_other():
    values = Nvml(Driver(*OF_A_WHOLE_GPU)).read()
    assert values == {
        "gpu_0_utilization_percentage": 98.0,
        "gpu_0_memory_usage_megabytes": pytest.approx(20 * GIB / 1e6),
        "gpu_0_memory_usage_percentage": 25.0,
        "gpu_0_power_usage_watts": 350.5,
        "gpu_0_power_usage_percentage": 50.0,
        "gpu_1_memory_usage_megabytes": pytest.approx(40 * GIB / 1e6),
        "gpu_1_memory_usage_percentage": 50.0,
    }
    assert NodeSample.from_json({"time": "2026-11-20T12:00:00.000000Z", "values": values}).values == values
    shared = Nvml(Driver(*OF_A_WHOLE_GPU, "handle 1")).read()
    assert shared.keys() == {"gpu_1_memory_usage_megabytes", "gpu_1_memory_usage_percentage"}


@pytest.mark.parametrize("failure", [OSError("libnvidia-ml.so.1: no such file"), AttributeError("no such function")])
def test_where_no_driver_tells_or_starts_there_are_no_gpus(monkeypatch, failure):
    def refuse(_name: str) -> None:
        raise failure

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert nvml_or_none() is None
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: Driver("nvmlInit_v2"))
    assert nvml_or_none() is None


@pytest.mark.parametrize(
    ("refuses", "uuid", "joules"),
    [
        ((), "aaaa", 5_000_000.5),
        ((), "bbbb", None),
        ((), "cccc", None),
        (("nvmlDeviceGetMigMode",), "bbbb", 5_000_000.5),
        (("nvmlDeviceGetTotalEnergyConsumption",), "aaaa", None),
    ],
    ids=["whole", "shared-counter", "part", "no-parts", "no-counter"],
)
def test_energy_is_that_of_a_whole_gpu_or_unknown(refuses, uuid, joules):
    assert Nvml(Driver(*refuses)).energy_j(uuid) == joules
