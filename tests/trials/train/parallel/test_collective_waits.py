"""Waits of a rank in collectives, by the host's clock and by the events of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from search_spaces.layouts.layout import Layout
from trials.train.parallel import collective_waits
from trials.train.parallel.collective_waits import CollectiveWaits, StreamStopwatch, are_visible
from trials.train.parallel.device import Device

CPU = Device(torch.device("cpu"))
TWO = Layout(data_parallel=2)


@pytest.fixture
def world() -> Iterator[None]:
    """A process group of this process alone, whose collectives are those of any other."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Ticks:
    """A clock that is a second later at each look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        self.now_s += 1.0
        return self.now_s


@pytest.mark.usefixtures("world")
class TestWaits:
    def test_calls_and_the_waits_for_them_are_timed_between_begin_and_end(self, monkeypatch):
        monkeypatch.setattr(collective_waits, "time", Ticks())
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

    def test_where_it_would_cost_too_much_every_fourth_step_is_timed(self):
        waits = CollectiveWaits(TWO, CPU)
        waits.limit_cost(most_calls=99, step_time_s=0.01)
        assert self.timed_steps(waits) == [1, 2, 3, 4, 5, 6, 7, 8]
        waits.limit_cost(most_calls=101, step_time_s=0.01)
        assert self.timed_steps(waits) == [4, 8]

    @staticmethod
    def timed_steps(waits: CollectiveWaits) -> list[int]:
        found = []
        with waits.watched():
            for step in range(1, 9):
                waits.begin(step)
                dist.all_reduce(torch.zeros(1))
                waits.end()
                found += [] if waits.seconds() is None else [step]
        return found


class FakeStream:
    def __init__(self, number: int):
        self.cuda_stream = number


class FakeEvent:
    """An event whose time is the number of events recorded before it."""

    recorded = 0

    def __init__(self, enable_timing: bool):
        assert enable_timing

    def record(self, stream: FakeStream) -> None:
        self.stream, self.at = stream, FakeEvent.recorded
        FakeEvent.recorded += 1

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.stream is end.stream
        return 1000.0 * (end.at - self.at)


def test_only_the_stream_that_computes_waits(monkeypatch):
    computing, other = FakeStream(7), FakeStream(8)
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
