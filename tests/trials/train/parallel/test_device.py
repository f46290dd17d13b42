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


def test_the_utilisation_is_sampled_once_a_second_at_most(monkeypatch, clock):
    asked = []
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: asked.append(device) or 40)
    samples, found = Utilization(Device(torch.device("cuda", 0))), []
    for _ in range(8):
        found.append(samples.sample())
        clock.sleep(0.4)
    assert found == [0.4, None, None, 0.4, None, None, 0.4, None]
    assert set(asked) == {torch.device("cuda", 0)}


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("pynvml"), RuntimeError("no driver"), TypeError("Not Supported")]
)
def test_a_utilisation_that_nobody_tells_is_none_and_not_asked_for_again(monkeypatch, clock, error):
    asked = []

    def fail(device: torch.device) -> None:
        asked.append(device)
        raise error

    monkeypatch.setattr(torch.cuda, "utilization", fail)
    samples = Utilization(Device(torch.device("cuda", 0)))
    for _ in range(3):
        assert samples.sample() is None
        clock.sleep(2.0)
    assert len(asked) == 1


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

    def test_what_the_allocator_does_not_tell_and_a_cpu_does_not_have_is_unknown(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda asked: {})
        assert (self.GPU_0.peak_inactive_split_gib(), self.GPU_0.alloc_retries()) == (None, None)
        cpu = open_device(make_spec(Layout()), local_rank=0)
        assert (cpu.used_gib(), cpu.total_gib(), cpu.peak_inactive_split_gib(), cpu.alloc_retries()) == (None,) * 4
        assert cpu.probe_ms() is Utilization(cpu).sample() is None
