"""The measurements themselves: products, copies, collectives and messages, one after the other, by all ranks."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.distributed as dist

from trials.calibrate import (
    ON_CPU,
    ON_GPU,
    SMALL_BYTES,
    Collective,
    Effort,
    GroupTime,
    Measurements,
    PairTime,
    Product,
    ProductRate,
    block_of,
    block_sizes,
    model_products,
    pair_of,
    pairs_apart,
    square_products,
)
from trials.folder import AttemptFolder
from trials.ranks.environment import RankEnvironment
from trials.ranks.failures import TrialFailure
from trials.ranks.report import Report
from trials.train.calibrate.stopwatch import Stopwatch
from trials.train.device import Device, open_device
from trials.train.exchange import RankPlace, exchange_places
from trials.train.fingerprint import fingerprint
from trials.train.proof import placement_fault
from trials.train.world import COLLECTIVE_LIMIT, join_world
from trials.trial import FailureReason, TrialSpec, utc_text

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def measure(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, report: Report) -> Measurements:
    """Everything, on every rank of the world; the same on all of them."""
    device = open_device(spec, env.local_rank)
    join_world(spec, folder, env, device)
    places = exchange_places(RankPlace(socket.gethostname(), device.probe_ms()))
    if (fault := placement_fault(spec, [place.host for place in places])) is not None:
        raise TrialFailure(FailureReason.RESULT_INVALID, fault)
    report.enter("measured")
    effort = ON_CPU if device.is_cpu else ON_GPU
    bench = Bench(spec, env.rank, device, effort, Stopwatch(device, report, effort.seconds))
    products = [rate for precision in spec.trainer["precisions"] for rate in bench.product_rates(precision)]
    to_host, from_host = bench.host_gb_per_s()
    return Measurements(
        products=tuple(products),
        memory_gb_per_s=bench.memory_gb_per_s(),
        to_host_gb_per_s=to_host,
        from_host_gb_per_s=from_host,
        groups=tuple(bench.group_times()),
        pairs=tuple(bench.pair_times()),
        fingerprint=fingerprint(spec, device, places),
        ended_at=utc_text(),
    )


class Bench:
    """One rank's part in each measurement. Every method is collective over the world, and answers all ranks alike."""

    def __init__(self, spec: TrialSpec, rank: int, device: Device, effort: Effort, stopwatch: Stopwatch):
        self._spec = spec
        self._rank = rank
        self._device = device.torch_device
        self._effort = effort
        self._seconds = stopwatch.seconds
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def product_rates(self, precision: str) -> Iterator[ProductRate]:
        """Of square products and the model's own; of a slow precision those that take no longer than is allowed."""
        fastest = 0.0
        for product in (*square_products(self._effort), *model_products(self._spec.model)):
            too_slow = fastest and product.flops / fastest > self._effort.seconds
            if too_slow or product.num_elements * _DTYPES[precision].itemsize > self._effort.product_bytes:
                continue
            flops = product.flops / self._product_s(product, _DTYPES[precision])
            fastest = max(fastest, flops)
            yield ProductRate(product, precision, flops / 1e12)

    def _product_s(self, product: Product, dtype: torch.dtype) -> float:
        # Of noise: a GPU multiplies zeros faster.
        left = torch.randn(product.rows, product.inner, device=self._device).to(dtype)
        right = torch.randn(product.inner, product.columns, device=self._device).to(dtype)
        result = torch.empty(product.rows, product.columns, dtype=dtype, device=self._device)
        return self._seconds(lambda: torch.mm(left, right, out=result))

    def memory_gb_per_s(self) -> float:
        """Bytes read and bytes written."""
        source, target = (self._buffer(self._effort.copied_bytes) for _ in range(2))
        return 2 * self._effort.copied_bytes / self._seconds(lambda: target.copy_(source)) / 1e9

    def host_gb_per_s(self) -> tuple[float | None, float | None]:
        """From the device to pinned memory, and back; None on a CPU, which is the host."""
        if self._device.type == "cpu":
            return None, None
        size = self._effort.copied_bytes
        here, there = self._buffer(size), torch.zeros(size // 4, pin_memory=True)
        to_host_s = self._seconds(lambda: there.copy_(here, non_blocking=True))
        from_host_s = self._seconds(lambda: here.copy_(there, non_blocking=True))
        return size / to_host_s / 1e9, size / from_host_s / 1e9

    def group_times(self) -> Iterator[GroupTime]:
        """Collectives of groups of every size, small and large ones."""
        for size in block_sizes(self._spec.gpus_per_node, self._spec.num_nodes):
            group = self._group(block_of(self._rank, size, self._spec.num_gpus))
            large = self._effort.exchanged_bytes // (4 * size) * (4 * size)
            yield self._group_time(Collective.ALL_REDUCE, group, size, SMALL_BYTES)
            yield self._group_time(Collective.ALL_REDUCE, group, size, large)
            yield self._group_time(Collective.ALL_GATHER, group, size, large)

    def _group_time(self, kind: Collective, group: dist.ProcessGroup | None, size: int, num_bytes: int) -> GroupTime:
        work: Callable[[], object] | None = None
        if group is not None and kind is Collective.ALL_REDUCE:
            work = partial(dist.all_reduce, self._buffer(num_bytes), group=group)
        elif group is not None:
            whole, part = self._buffer(num_bytes), self._buffer(num_bytes // size)
            work = partial(dist.all_gather_into_tensor, whole, part, group=group)
        return GroupTime(kind, size, num_bytes, self._seconds(work))

    def pair_times(self) -> Iterator[PairTime]:
        """Messages over every way out of a block: of one pair a node, a small one and a large one; and of all pairs."""
        for apart in pairs_apart(self._spec.gpus_per_node, self._spec.num_nodes):
            yield self._pair_time(apart, alone=True, num_bytes=SMALL_BYTES)
            yield self._pair_time(apart, alone=True, num_bytes=self._effort.exchanged_bytes)
            yield self._pair_time(apart, alone=False, num_bytes=self._effort.exchanged_bytes)

    def _pair_time(self, apart: int, alone: bool, num_bytes: int) -> PairTime:
        pair = pair_of(self._rank, apart, self._spec.gpus_per_node, self._spec.num_gpus, alone)
        group, exchange = self._group(pair), None
        if pair is not None and group is not None:
            exchange = partial(_there_and_back, self._rank, pair, group, self._buffer(num_bytes))
        return PairTime(apart, alone, num_bytes, self._seconds(exchange) / 2)

    def _group(self, members: Sequence[int] | None) -> dist.ProcessGroup | None:
        """A group of these ranks; called by all of them and nobody else.

        Each is kept: one that is formed again after its end would look for its ranks at their old addresses.
        """
        if members is None:
            return None
        if (ranks := tuple(members)) not in self._groups:
            group = dist.new_group(list(ranks), timeout=COLLECTIVE_LIMIT, use_local_synchronization=True)
            self._groups[ranks] = group
        return self._groups[ranks]

    def _buffer(self, num_bytes: int) -> torch.Tensor:
        # Written to: untouched zeros all lie in one page of the host.
        return torch.empty(num_bytes // 4, device=self._device).zero_()


def _there_and_back(rank: int, pair: tuple[int, int], group: dist.ProcessGroup, message: torch.Tensor) -> None:
    """Two messages, one after the other: what a link carries one way, and how long it takes from end to end."""
    first, second = pair
    if rank == first:
        dist.send(message, second, group=group)
        dist.recv(message, second, group=group)
    else:
        dist.recv(message, first, group=group)
        dist.send(message, first, group=group)
