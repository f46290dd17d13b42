"""Times of every exchange of a fabric check, gathered on all ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch.distributed as dist

from trials.diagnostics.calibration import CPU_BUDGET, GPU_BUDGET, BenchmarkBudget, Collective
from trials.diagnostics.fabric import Exchange, ExchangeTime, FabricTimes, exchanges_of, shapes_of
from trials.files.folders import AttemptFolder
from trials.ranks.environment import RankEnvironment
from trials.ranks.report import Report
from trials.train.calibrate.benchmarks import large_bytes
from trials.train.calibrate.exchanges import Exchanges
from trials.train.calibrate.stopwatch import Stopwatch
from trials.train.parallel.device import Device, open_device
from trials.train.parallel.process_groups import join_world
from trials.train.proof.fingerprint import fingerprint
from trials.train.proof.layout_check import locate_ranks
from trials.trial import TrialSpec

SECONDS = 0.4
"""Time of one exchange: less than calibrate takes, since there are more of them."""


def check_fabric(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, report: Report) -> FabricTimes:
    """Time all exchanges on every rank of the world; the result is the same on all of them."""
    device = open_device(spec, env.local_rank)
    join_world(spec, folder, env, device)
    hosts = locate_ranks(spec, device)
    report.enter("measured")
    nodes = [rank.host for rank in hosts]
    budget = replace(CPU_BUDGET if device.is_cpu else GPU_BUDGET, seconds=SECONDS)
    timer = ExchangeTimer(spec, env.rank, device, budget, Stopwatch(device, report, budget.seconds))
    exchanges = exchanges_of(shapes_of(spec.trainer), spec.gpus_per_node, spec.num_nodes)
    return FabricTimes(tuple(nodes), tuple(map(timer.time, exchanges)), fingerprint(spec, device, hosts))


class ExchangeTimer:
    """One rank's part of each exchange. Collective over the world."""

    def __init__(self, spec: TrialSpec, rank: int, device: Device, budget: BenchmarkBudget, stopwatch: Stopwatch):
        self._spec = spec
        self._rank = rank
        self._budget = budget
        self._stopwatch = stopwatch
        self._exchanges = Exchanges(rank, device.torch_device)
        self._groups: dict[tuple[object, ...], dist.ProcessGroup | None] = {}

    def time(self, exchange: Exchange) -> ExchangeTime:
        """Seconds of each group on its slowest rank."""
        groups = exchange.groups(self._spec.gpus_per_node, self._spec.num_gpus)
        mine = next((members for members in groups if self._rank in members), None)
        work = partial(self._exchanges.work, exchange.kind, self._group_of(exchange, mine), mine)
        num_bytes = exchange.small_bytes
        if not exchange.is_small:
            num_bytes = large_bytes(self._stopwatch, self._budget, work, exchange.num_ranks)
        seconds = self._stopwatch.seconds_of_ranks(work(num_bytes))
        ways = 2 if exchange.kind is Collective.PING_PONG else 1
        slowest = tuple(max(seconds[rank] for rank in members) / ways for members in groups)
        return ExchangeTime(exchange, num_bytes, slowest)

    def _group_of(self, exchange: Exchange, members: tuple[int, ...] | None) -> dist.ProcessGroup | None:
        """The group of an exchange, the same for all collectives of a shape: on a GPU each has its own buffers."""
        is_pair = exchange.kind is Collective.PING_PONG
        key = exchange.num_ranks, exchange.stride, exchange.shift, is_pair, exchange.is_alone
        if key not in self._groups:
            self._groups[key] = self._exchanges.group(members)
        return self._groups[key]
