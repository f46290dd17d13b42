"""Calibration benchmarks, run by all ranks in turn: products, copies, collectives and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.distributed as dist

from trials.diagnostics.calibration import (
    CPU_BUDGET,
    GPU_BUDGET,
    SMALL_BYTES,
    BenchmarkBudget,
    Collective,
    GroupTime,
    Measurements,
    PairTime,
    Product,
    ProductRate,
    block_of,
    block_sizes,
    collectives_of,
    model_products,
    pair_distances,
    pair_of,
    square_products,
)
from trials.files.folders import AttemptFolder
from trials.ranks.environment import RankEnvironment
from trials.ranks.report import Report
from trials.train.calibrate.exchanges import Exchanges, Work
from trials.train.calibrate.stopwatch import Stopwatch
from trials.train.engines.engine import DTYPES
from trials.train.parallel.device import Device, open_device
from trials.train.parallel.process_groups import join_world
from trials.train.proof.fingerprint import fingerprint
from trials.train.proof.layout_check import locate_ranks
from trials.trial import TrialSpec, utc_text


def measure(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, report: Report) -> Measurements:
    """Run all benchmarks on every rank of the world; the result is the same on all of them."""
    device = open_device(spec, env.local_rank)
    join_world(spec, folder, env, device)
    rank_hosts = locate_ranks(spec, device)
    report.enter("measured")
    budget = CPU_BUDGET if device.is_cpu else GPU_BUDGET
    runner = BenchmarkRunner(spec, env.rank, device, budget, Stopwatch(device, report, budget.seconds))
    products = [rate for precision in spec.trainer["precisions"] for rate in runner.product_rates(precision)]
    to_host, from_host = runner.host_gb_per_s()
    return Measurements(
        products=tuple(products),
        memory_gb_per_s=runner.memory_gb_per_s(),
        to_host_gb_per_s=to_host,
        from_host_gb_per_s=from_host,
        groups=tuple(runner.group_times()),
        pairs=tuple(runner.pair_times()),
        fingerprint=fingerprint(spec, device, rank_hosts),
        ended_at=utc_text(),
    )


class BenchmarkRunner:
    """One rank's part of each benchmark. Every method is collective over the world and returns the same on all
    ranks."""

    def __init__(self, spec: TrialSpec, rank: int, device: Device, budget: BenchmarkBudget, stopwatch: Stopwatch):
        self._spec = spec
        self._rank = rank
        self._device = device.torch_device
        self._budget = budget
        self._stopwatch = stopwatch
        self._exchanges = Exchanges(rank, device.torch_device)

    def product_rates(self, precision: str) -> Iterator[ProductRate]:
        """Rates of square products and the model's own; in a slow precision, of those within the time budget."""
        fastest = 0.0
        for product in (*square_products(self._budget), *model_products(self._spec.model)):
            too_slow = fastest and product.flops / fastest > self._budget.seconds
            if too_slow or product.num_elements * DTYPES[precision].itemsize > self._budget.product_bytes:
                continue
            flops = product.flops / self._product_s(product, DTYPES[precision])
            fastest = max(fastest, flops)
            yield ProductRate(product, precision, flops / 1e12)

    def _product_s(self, product: Product, dtype: torch.dtype) -> float:
        # Random values, since a GPU multiplies zeros faster.
        left = torch.randn(product.rows, product.inner, device=self._device).to(dtype)
        right = torch.randn(product.inner, product.columns, device=self._device).to(dtype)
        result = torch.empty(product.rows, product.columns, dtype=dtype, device=self._device)
        return self._stopwatch.seconds(lambda: torch.mm(left, right, out=result))

    def memory_gb_per_s(self) -> float:
        """Memory traffic of a copy, bytes read and written."""
        source, target = (self._buffer(self._budget.copied_bytes) for _ in range(2))
        return 2 * self._budget.copied_bytes / self._stopwatch.seconds(lambda: target.copy_(source)) / 1e9

    def host_gb_per_s(self) -> tuple[float | None, float | None]:
        """Bandwidth from the device to pinned memory, and back; None on a CPU, which is the host."""
        if self._device.type == "cpu":
            return None, None
        size = self._budget.copied_bytes
        here, there = self._buffer(size), torch.zeros(size // 4, pin_memory=True)
        to_host_s = self._stopwatch.seconds(lambda: there.copy_(here, non_blocking=True))
        from_host_s = self._stopwatch.seconds(lambda: here.copy_(there, non_blocking=True))
        return size / to_host_s / 1e9, size / from_host_s / 1e9

    def group_times(self) -> Iterator[GroupTime]:
        """Times of small and large collectives for groups of every size."""
        for size in block_sizes(self._spec.gpus_per_node, self._spec.num_nodes):
            block = block_of(self._rank, size, self._spec.num_gpus)
            exchange = partial(self._exchange, self._exchanges.group(block), block)
            small_s = self._stopwatch.seconds(exchange(Collective.ALL_REDUCE, SMALL_BYTES))
            yield GroupTime(Collective.ALL_REDUCE, size, SMALL_BYTES, small_s)
            for kind in collectives_of(size, self._spec.gpus_per_node):
                yield GroupTime(kind, size, *self._large(partial(exchange, kind), size))

    def pair_times(self) -> Iterator[PairTime]:
        """Times of messages across the boundary of every block: of one pair per node, small and large; and of all
        pairs."""
        for apart in pair_distances(self._spec.gpus_per_node, self._spec.num_nodes):
            for alone in (True, False):
                pair = pair_of(self._rank, apart, self._spec.gpus_per_node, self._spec.num_gpus, alone)
                exchange = partial(self._exchange, self._exchanges.group(pair), pair, Collective.PING_PONG)
                if alone:
                    there_and_back_s = self._stopwatch.seconds(exchange(SMALL_BYTES))
                    yield PairTime(apart, alone, SMALL_BYTES, there_and_back_s / 2)
                num_bytes, there_and_back_s = self._large(exchange, num_ranks=2)
                yield PairTime(apart, alone, num_bytes, there_and_back_s / 2)

    def _exchange(
        self, group: dist.ProcessGroup | None, members: Sequence[int] | None, kind: Collective, num_bytes: int
    ) -> Work:
        return self._exchanges.work(kind, group, members, num_bytes)

    def _large(self, exchange: Callable[[int], Work], num_ranks: int) -> tuple[int, float]:
        """Bytes that fit the time budget, and the seconds they take."""
        num_bytes = large_bytes(self._stopwatch, self._budget, exchange, num_ranks)
        return num_bytes, self._stopwatch.seconds(exchange(num_bytes))

    def _buffer(self, num_bytes: int) -> torch.Tensor:
        return self._exchanges.buffer(num_bytes)


def large_bytes(stopwatch: Stopwatch, budget: BenchmarkBudget, exchange: Callable[[int], Work], num_ranks: int) -> int:
    """Bytes of an exchange that fit the time budget, by a first one of fewer. Collective over the world."""
    return budget.bytes_in_time(stopwatch.once_s(exchange(budget.probe_bytes)), num_ranks)
