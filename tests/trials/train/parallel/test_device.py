"""A GPU in use by another process, and the probe that compares devices: with stand-ins for the CUDA calls."""

from __future__ import annotations

import pytest
import torch

from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import make_spec
from trials.ranks.failures import TrialFailure
from trials.train.parallel import device
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
from trials.trial import FailureReason

SPEC = make_spec(Layout(), accelerator="h100-80gb")
TOTAL_GIB = 80.0


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


@pytest.mark.fault(37)
def test_memory_that_the_driver_is_still_taking_back_is_waited_for(gpu, clock):
    gpu(lambda now, index: 41.5 if now < 3.0 else 0.5)
    open_device(SPEC, local_rank=0)
    assert 3.0 <= clock.now < 4.0


@pytest.mark.fault(37)
@pytest.mark.parametrize(("beyond_gib", "is_dirty"), [(-0.01, False), (0.01, True)])
def test_our_own_context_and_a_little_more_is_no_dirt(gpu, beyond_gib, is_dirty):
    gpu(lambda now, index: CONTEXT_GIB + FOREIGN_MEMORY_GIB + beyond_gib)
    if is_dirty:
        with pytest.raises(TrialFailure):
            open_device(SPEC, local_rank=0)
    else:
        open_device(SPEC, local_rank=0)


def test_a_piece_of_work_is_timed_when_it_is_warm(clock):
    calls = []

    def work() -> None:
        calls.append(clock.now)
        clock.sleep(0.02 if len(calls) < 5 else 0.004)

    assert time_work_ms(work, synchronize=lambda: None) == pytest.approx(4.0)
    assert clock.now < 1.0


def test_work_is_finished_before_the_clock_is_read(clock):
    queue = []

    def finish() -> None:
        clock.sleep(0.004 * len(queue))
        queue.clear()

    assert time_work_ms(lambda: queue.append(1), finish) == pytest.approx(4.0)


def test_ranks_on_a_cpu_are_not_probed():
    assert open_device(make_spec(Layout()), local_rank=0).probe_ms() is None


class Driver:
    """Stand-in for `torch.cuda.utilization`: returns a utilisation in percent, or raises."""

    def __init__(self, answer: int | Exception):
        self.answer = answer
        self.asked: list[torch.device] = []

    def __call__(self, asked: torch.device) -> int:
        self.asked.append(asked)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_the_utilisation_is_sampled_once_a_second_at_most(monkeypatch, clock):
    monkeypatch.setattr(torch.cuda, "utilization", driver := Driver(40))
    samples = Utilization(gpu_0 := Device(torch.device("cuda", 0)))
    found = []
    for _ in range(8):
        found.append(samples.sample())
        clock.sleep(0.4)
    assert found == [0.4, None, None, 0.4, None, None, 0.4, None]
    assert set(driver.asked) == {gpu_0.torch_device}


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("pynvml"), RuntimeError("no driver"), TypeError("Not Supported")]
)
def test_a_utilisation_that_nobody_tells_is_none_and_not_asked_for_again(monkeypatch, clock, error):
    monkeypatch.setattr(torch.cuda, "utilization", driver := Driver(error))
    samples = Utilization(Device(torch.device("cuda", 0)))
    for _ in range(3):
        assert samples.sample() is None
        clock.sleep(2.0)
    assert len(driver.asked) == 1


def test_a_cpu_has_no_driver_to_ask(monkeypatch):
    monkeypatch.setattr(torch.cuda, "utilization", driver := Driver(40))
    assert Utilization(Device(torch.device("cpu"))).sample() is None
    assert driver.asked == []


class TestMemory:
    GPU_0 = Device(torch.device("cuda", 0))

    @pytest.fixture(autouse=True)
    def _allocator(self, monkeypatch, gpu):
        gpu(lambda now, index: 42.0)
        statistics = {"inactive_split_bytes.all.peak": 3 * GIB, "num_alloc_retries": 2}
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda asked: statistics)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda asked: 40 * GIB)

    def test_what_is_used_is_told_apart_from_what_the_allocator_reserved(self):
        assert (self.GPU_0.used_gib(), self.GPU_0.reserved_gib(), self.GPU_0.total_gib()) == (42.0, 40.0, 80.0)
        assert (self.GPU_0.peak_inactive_split_gib(), self.GPU_0.alloc_retries()) == (3.0, 2)

    def test_an_allocator_without_these_statistics_leaves_them_unknown(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda asked: {})
        assert (self.GPU_0.peak_inactive_split_gib(), self.GPU_0.alloc_retries()) == (None, None)

    def test_a_cpu_has_no_memory_of_its_own(self):
        cpu = Device(torch.device("cpu"))
        assert (cpu.used_gib(), cpu.total_gib(), cpu.peak_inactive_split_gib(), cpu.alloc_retries()) == (None,) * 4
