"""Stopwatch for work that all ranks do at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

from trials.diagnostics.calibration import ROUNDS
from trials.ranks.report import Report
from trials.train.parallel.device import Device
from trials.train.parallel.gather import barrier, gather_json

MAX_CALLS = 2000
"""Calls in a round; more of a tiny message add no information."""


class Stopwatch:
    """Times work by the device's events on a GPU and by the host's clock on a CPU. Collective over the world."""

    def __init__(self, device: Device, report: Report, limit_s: float):
        self._device = device
        self._report = report
        self._limit_s = limit_s

    def seconds(self, work: Callable[[], object] | None) -> float:
        """Seconds per call on the slowest rank: the median over some rounds, after a warm-up, the same for all ranks.

        A rank whose `work` is None only waits. All rounds together take about the limit, or each takes a single call.
        """
        return median(self._slowest(self._rounds(work)))

    def seconds_of_ranks(self, work: Callable[[], object] | None) -> list[float]:
        """The same for each rank by itself, in rank order."""
        mine = median(self._rounds(work))
        return [float(seconds) for seconds in gather_json(mine, self._device.torch_device)]

    def once_s(self, work: Callable[[], object] | None) -> float:
        """Seconds of the second call on the slowest rank."""
        _, second_s = (self._round_s(work or _no_op, calls=1) for _ in range(2))
        return self._slowest([second_s])[0]

    def _rounds(self, work: Callable[[], object] | None) -> list[float]:
        """Seconds per call of this rank in each round, after a warm-up; as many calls on all ranks."""
        calls = max(1, min(MAX_CALLS, int(self._limit_s / ROUNDS / self.once_s(work))))
        rounds = [self._round_s(work or _no_op, calls) / calls for _ in range(ROUNDS)]
        self._report.progress()
        return rounds

    def _round_s(self, work: Callable[[], object], calls: int) -> float:
        """Seconds from the barrier until this rank's work is done."""
        barrier(self._device.torch_device)
        self._device.synchronize()
        return self._by_clock_s(work, calls) if self._device.is_cpu else self._by_events_s(work, calls)

    def _by_clock_s(self, work: Callable[[], object], calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            work()
        return time.perf_counter() - began

    def _by_events_s(self, work: Callable[[], object], calls: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def _slowest(self, seconds: list[float]) -> list[float]:
        """Maximum of each entry over all ranks."""
        table = torch.tensor(seconds, dtype=torch.float64, device=self._device.torch_device)
        dist.all_reduce(table, dist.ReduceOp.MAX)
        return table.tolist()


def _no_op() -> None:
    pass
