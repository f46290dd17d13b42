"""A rank's device, with stand-ins for the CUDA calls: memory, probes, utilisation, energy, and waits in collectives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import make_spec
from trials.measurement.device_memory import RankMemory
from trials.measurement.energy import RankEnergy
from trials.ranks.failures import TrialFailure
from trials.train.parallel import collective_waits, device, energy
from trials.train.parallel.collective_waits import CollectiveWaits, StreamStopwatch, are_visible
from trials.train.parallel.device import (
    CONTEXT_GIB,
    FOREIGN_MEMORY_GIB,
    GIB,
    MEMORY_RELEASE_S,
    Device,
    Utilization,
    open_device,
    time_work_ms,
)
from trials.train.parallel.energy import EnergyMeter
from trials.trial import FailureReason

SPEC = make_spec(Layout(), accelerator="h100-80gb")
TOTAL_GIB = 80.0
GPU_0 = Device(torch.device("cuda", 0))
CPU = Device(torch.device("cpu"))


class Clock:
    """Stand-in for the module `time` that only `sleep` advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(device, "time", clock)
    return clock


@pytest.fixture
def gpu(monkeypatch, clock):
    """Two GPUs of 80 GiB; `gpu(used)` sets a function of the time and the device's index that returns the GiB in
    use."""

    def uses(used_gib) -> None:
        def mem_get_info(asked: torch.device) -> tuple[int, int]:
            used = used_gib(clock.now, asked.index)
            return int((TOTAL_GIB - used) * GIB), int(TOTAL_GIB * GIB)

        monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda asked: None)
    return uses


@pytest.mark.fault(37)
def test_gpu_memory_in_use_before_ours_is_a_failure_with_the_numbers(gpu, clock):
    gpu(lambda now, index: 41.5 if index == 1 else 0.5)
    with pytest.raises(TrialFailure, match=r"GPU 1 of .*: 41\.50 of 80\.00 GiB are in use") as failure:
        open_device(SPEC, local_rank=1)
    assert failure.value.reason is FailureReason.GPU_MEMORY_IN_USE
    assert MEMORY_RELEASE_S <= clock.now < MEMORY_RELEASE_S + 1
    assert open_device(SPEC, local_rank=0).torch_device.index == 0


@pytest.mark.parametrize(("shown", "indices"), [(8, [0, 5, 7]), (1, [0, 0, 0])])
def test_a_rank_takes_the_gpu_of_its_number_or_the_only_one_that_it_is_shown(monkeypatch, gpu, shown, indices):
    gpu(lambda now, index: 0.5)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: shown)
    assert [open_device(SPEC, local_rank=rank).torch_device.index for rank in (0, 5, 7)] == indices


BOUND_GIB = CONTEXT_GIB + FOREIGN_MEMORY_GIB


@pytest.mark.fault(37)
@pytest.mark.parametrize(
    ("first_gib", "then_gib", "waited_s"), [(41.5, 0.5, 3), (BOUND_GIB - 0.01,) * 2 + (0,), (BOUND_GIB + 0.01, 0.5, 3)]
)
def test_memory_beyond_our_own_context_is_waited_for_while_the_driver_takes_it_back(
    gpu, clock, first_gib, then_gib, waited_s
):
    gpu(lambda now, index: first_gib if now < 3.0 else then_gib)
    open_device(SPEC, local_rank=0)
    assert waited_s <= clock.now < waited_s + 1


def test_a_piece_of_work_is_timed_when_it_is_warm_and_finished(clock):
    calls, queue = [], []

    def work() -> None:
        calls.append(1)
        queue.append(0.02 if len(calls) < 5 else 0.004)

    def finish() -> None:
        clock.sleep(sum(queue))
        queue.clear()

    assert time_work_ms(work, finish) == pytest.approx(4.0)
    assert clock.now < 1.0


def test_the_utilisation_is_sampled_once_a_second_and_not_again_once_nobody_tells_it(monkeypatch, clock):
    asked = []

    def utilization(device: torch.device) -> int:
        asked.append(device)
        if len(asked) == 3:
            raise ModuleNotFoundError("pynvml")
        return 40

    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    samples, found = Utilization(GPU_0), []
    for _ in range(12):
        found.append(samples.sample())
        clock.sleep(0.4)
    assert found == [0.4, None, None, 0.4, *[None] * 8]
    assert asked == [torch.device("cuda", 0)] * 3


def test_what_is_used_is_told_apart_from_what_the_allocator_reserved_and_what_nobody_tells_is_unknown(monkeypatch, gpu):
    gpu(lambda now, index: 42.0)
    statistics = {"inactive_split_bytes.all.peak": 3 * GIB, "num_alloc_retries": 2}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda asked: statistics)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda asked: 40 * GIB)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda asked: 41 * GIB)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda asked: 30 * GIB)
    assert (GPU_0.used_gib(), GPU_0.reserved_gib()) == (42.0, 40.0)
    known = RankMemory(41.0, peak_allocated_gib=30.0, outside_gib=1.5, total_gib=80.0)
    assert GPU_0.peak_memory(1.5) == replace(known, inactive_split_gib=3.0, alloc_retries=2)
    statistics.clear()
    assert GPU_0.peak_memory(1.5) == known
    cpu = open_device(make_spec(Layout()), local_rank=0)
    resident = cpu.peak_memory(None)
    assert (cpu.used_gib(), resident) == (None, RankMemory(resident.peak_gib))
    assert cpu.probe_ms() is Utilization(cpu).sample() is None


@pytest.fixture
def counter(monkeypatch) -> SimpleNamespace:
    """A GPU_0 that has used `joules` so far, at the time `now`, by NVML and by AMD SMI in units of 15.3 uJ."""
    found = SimpleNamespace(joules=100.0, now=50.0)
    monkeypatch.setattr(energy, "time", SimpleNamespace(monotonic=lambda: found.now))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="aaaa"))
    monkeypatch.setattr(energy, "nvml_or_none", lambda: SimpleNamespace(energy_j=lambda uuid: found.joules))
    names = ("energy_accumulator", "counter_resolution", "timestamp")
    counted = SimpleNamespace(
        amdsmi_get_energy_count=lambda handle: dict(zip(names, (found.joules * 1e6 / 15.3, 15.3, 1), strict=True))
    )
    monkeypatch.setattr(torch.cuda, "amdsmi", counted, raising=False)
    monkeypatch.setattr(torch.cuda, "_get_amdsmi_handler", lambda device: "handle")
    return found


def measured(meter: EnergyMeter) -> RankEnergy:
    meter.begin()
    meter.end()
    return meter.used()


@pytest.mark.parametrize(("hip", "library"), [(None, "nvml"), ("6.4", "amdsmi")])
def test_what_the_counter_advances_between_begin_and_end_is_used(monkeypatch, counter, hip, library):
    monkeypatch.setattr(torch.version, "hip", hip)
    meter = EnergyMeter(GPU_0)
    meter.begin()
    counter.joules, counter.now = 2100.0, 54.0
    meter.end()
    used = meter.used()
    assert (meter.library, used.gpu) == (library, "aaaa")
    assert (used.joules, used.seconds) == (pytest.approx(2000.0), 4.0)


def test_where_the_driver_the_library_or_the_trial_tells_nothing_the_energy_is_unknown(monkeypatch, counter):
    counter.joules = None
    assert measured(EnergyMeter(GPU_0)) == RankEnergy("aaaa")
    unmeasured = EnergyMeter(GPU_0)
    unmeasured.end()
    assert unmeasured.used() == RankEnergy(None)
    of_cpu = EnergyMeter(CPU)
    assert (of_cpu.library, measured(of_cpu)) == (None, RankEnergy(None))
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.delattr(torch.cuda, "_get_amdsmi_handler")
    assert measured(EnergyMeter(GPU_0)).joules is None


TWO = Layout(data_parallel=2)


@pytest.fixture
def world() -> Iterator[None]:
    """A process group of this process alone, whose collectives are those of any other."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("world")
def test_calls_and_the_waits_for_them_are_timed_between_begin_and_end(monkeypatch):
    seconds = count()
    monkeypatch.setattr(collective_waits, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    waits = CollectiveWaits(TWO, CPU)
    with waits.watched():
        dist.all_reduce(torch.zeros(1))
        waits.begin(1)
        dist.all_reduce(torch.zeros(1))
        work = dist.all_reduce(torch.zeros(1), async_op=True)
        work.wait()
        waits.end()
        dist.all_reduce(torch.zeros(1))
    assert (waits.calls, waits.seconds()) == (4, 4.0)
    waits.begin(2)
    waits.end()
    assert waits.seconds() is None, "a step in which it saw none"


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(("most_calls", "timed"), [(99, [1, 2, 3, 4, 5, 6, 7, 8]), (101, [4, 8])])
def test_where_it_would_cost_too_much_every_fourth_step_is_timed(most_calls, timed):
    waits, found = CollectiveWaits(TWO, CPU), []
    waits.limit_cost(most_calls, step_time_s=0.01)
    with waits.watched():
        for step in range(1, 9):
            waits.begin(step)
            dist.all_reduce(torch.zeros(1))
            waits.end()
            found += [] if waits.seconds() is None else [step]
    assert found == timed


class FakeEvent:
    """An event whose time is the number of events recorded before it."""

    recorded = 0

    def __init__(self, enable_timing: bool):
        assert enable_timing

    def record(self, stream: SimpleNamespace) -> None:
        self.stream, self.at = stream, FakeEvent.recorded
        FakeEvent.recorded += 1

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.stream is end.stream
        return 1000.0 * (end.at - self.at)


def test_only_the_stream_that_computes_waits(monkeypatch):
    computing, other = SimpleNamespace(cuda_stream=7), SimpleNamespace(cuda_stream=8)
    current = [computing]
    fake = SimpleNamespace(current_stream=lambda device: current[0], Event=FakeEvent)
    monkeypatch.setattr(collective_waits.torch, "cuda", fake)
    stopwatch = StreamStopwatch(torch.device("cuda", 0))
    stopwatch.start()
    for _ in range(2):
        stopwatch.leave(stopwatch.enter())
    current[0] = other
    assert stopwatch.enter() is None
    stopwatch.leave(stopwatch.enter(computing))
    assert stopwatch.seconds() == 3.0
    current[0] = computing
    stopwatch.start()
    stopwatch.leave(stopwatch.enter())
    assert stopwatch.seconds() == 1.0, "its events are used again"


@pytest.mark.parametrize(
    ("layout", "cpu", "gpu"),
    [
        (TWO, True, True),
        (Layout(), False, False),
        (replace(TWO, engine="accelerate"), False, False),
        (replace(TWO, engine="accelerate", zero_stage=3), True, True),
        (replace(TWO, engine="deepspeed", zero_stage=2, offload="optimizer"), True, False),
        (replace(TWO, engine="megatron-core", cuda_graphs="attn"), True, False),
    ],
)
def test_where_waits_can_be_told_from_work(layout, cpu, gpu):
    assert (are_visible(layout, is_cpu=True), are_visible(layout, is_cpu=False)) == (cpu, gpu)
