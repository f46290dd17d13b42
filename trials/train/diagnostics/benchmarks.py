"""Benchmarks of a calibration: products, copies, collectives and messages; and the exchanges of a fabric check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from trials.diagnostics.calibration import (
    CPU_BUDGET,
    GPU_BUDGET,
    BenchmarkBudget,
    Measurements,
    Product,
    ProductRate,
    model_products,
    square_products,
)
from trials.diagnostics.fabric import FabricTimes, exchanges_of, group_exchanges, pair_exchanges, shapes_of
from trials.files.folders import AttemptFolder
from trials.ranks.environment import RankEnvironment
from trials.ranks.report import Report
from trials.train.diagnostics.exchanges import ExchangeTimer, written_buffer
from trials.train.diagnostics.stopwatch import Stopwatch
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
    stopwatch = Stopwatch(device, report, budget.seconds)
    runner, timer = BenchmarkRunner(spec, device, budget, stopwatch), ExchangeTimer(spec, device, budget, stopwatch)
    nodes = spec.gpus_per_node, spec.num_nodes
    products = [rate for precision in spec.trainer["precisions"] for rate in runner.product_rates(precision)]
    to_host, from_host = runner.host_gb_per_s()
    return Measurements(
        products=tuple(products),
        memory_gb_per_s=runner.memory_gb_per_s(),
        to_host_gb_per_s=to_host,
        from_host_gb_per_s=from_host,
        groups=tuple(timer.time(exchange).group_time() for exchange in group_exchanges(*nodes)),
        pairs=tuple(timer.time(exchange).pair_time() for exchange in pair_exchanges(*nodes)),
        fingerprint=fingerprint(spec, device, rank_hosts),
        ended_at=utc_text(),
    )


FABRIC_CHECK_S = 0.4
"""Time of one exchange of a fabric check: less than calibrate takes, since there are more of them."""


def check_fabric(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, report: Report) -> FabricTimes:
    """Time all exchanges on every rank of the world; the result is the same on all of them."""
    device = open_device(spec, env.local_rank)
    join_world(spec, folder, env, device)
    hosts = locate_ranks(spec, device)
    report.enter("measured")
    nodes = [rank.host for rank in hosts]
    budget = replace(CPU_BUDGET if device.is_cpu else GPU_BUDGET, seconds=FABRIC_CHECK_S)
    timer = ExchangeTimer(spec, device, budget, Stopwatch(device, report, budget.seconds))
    exchanges = exchanges_of(shapes_of(spec.trainer), spec.gpus_per_node, spec.num_nodes)
    return FabricTimes(tuple(nodes), tuple(map(timer.time, exchanges)), fingerprint(spec, device, hosts))


class BenchmarkRunner:
    """One rank's part of each benchmark. Every method is collective over the world and returns the same on all
    ranks."""

    def __init__(self, spec: TrialSpec, device: Device, budget: BenchmarkBudget, stopwatch: Stopwatch):
        self._spec = spec
        self._device = device.torch_device
        self._budget = budget
        self._stopwatch = stopwatch

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

    def _buffer(self, num_bytes: int) -> torch.Tensor:
        return written_buffer(num_bytes, self._device)
