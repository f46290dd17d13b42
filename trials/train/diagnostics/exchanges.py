"""Times of collectives and messages among groups of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist

from trials.diagnostics.calibration import BenchmarkBudget, Collective
from trials.diagnostics.fabric import Exchange, ExchangeTime
from trials.train.diagnostics.stopwatch import Stopwatch
from trials.train.parallel.device import Device
from trials.train.parallel.process_groups import COLLECTIVE_LIMIT
from trials.trial import TrialSpec

Work = Callable[[], object]


class ExchangeTimer:
    """One rank's part of each exchange, by the bytes that NCCL's tests count. Collective over the world."""

    def __init__(self, spec: TrialSpec, device: Device, budget: BenchmarkBudget, stopwatch: Stopwatch):
        self._spec = spec
        self._rank = dist.get_rank()
        self._device = device.torch_device
        self._budget = budget
        self._stopwatch = stopwatch
        self._groups: dict[tuple[object, ...], dist.ProcessGroup | None] = {}

    def time(self, exchange: Exchange) -> ExchangeTime:
        """Seconds of each group on its slowest rank, of a large message in as many bytes as fit the time budget."""
        groups = exchange.groups(self._spec.gpus_per_node, self._spec.num_gpus)
        mine = next((members for members in groups if self._rank in members), None)
        work = partial(self._work, exchange.kind, self._group_of(exchange, mine), mine)
        num_bytes = exchange.small_bytes
        if not exchange.is_small:
            probe_s = self._stopwatch.once_s(work(self._budget.probe_bytes))
            num_bytes = self._budget.bytes_in_time(probe_s, exchange.num_ranks)
        seconds = self._stopwatch.seconds_of_ranks(work(num_bytes))
        ways = 2 if exchange.kind is Collective.PING_PONG else 1
        slowest = tuple(max(seconds[rank] for rank in members) / ways for members in groups)
        return ExchangeTime(exchange, num_bytes, slowest)

    def _group_of(self, exchange: Exchange, members: Sequence[int] | None) -> dist.ProcessGroup | None:
        """The group of an exchange, the same for all collectives of a shape: on a GPU each has its own buffers."""
        is_pair = exchange.kind is Collective.PING_PONG
        key = exchange.num_ranks, exchange.stride, exchange.shift, is_pair, exchange.is_alone
        if key not in self._groups:
            self._groups[key] = self._new_group(members)
        return self._groups[key]

    def _new_group(self, members: Sequence[int] | None) -> dist.ProcessGroup | None:
        """A group of these ranks; None without any, once all ranks have called it.

        A rank in no group forms one alone, and groups are never destroyed: torch names a group after its ranks and the
        number of groups that each of them has, so the ranks need equal numbers to find each other.
        """
        ranks = [self._rank] if members is None else list(members)
        group = dist.new_group(ranks, timeout=COLLECTIVE_LIMIT, use_local_synchronization=True)
        return None if members is None else group

    def _work(
        self, kind: Collective, group: dist.ProcessGroup | None, members: Sequence[int] | None, num_bytes: int
    ) -> Work | None:
        """This rank's part of a collective of `num_bytes` among `members`; None where it only waits."""
        if group is None or members is None:
            return None
        return _WORK[kind](self, group, members, num_bytes)

    def _all_reduce(self, group: dist.ProcessGroup, members: Sequence[int], num_bytes: int) -> Work:
        return partial(dist.all_reduce, written_buffer(num_bytes, self._device), group=group)

    def _all_gather(self, group: dist.ProcessGroup, members: Sequence[int], num_bytes: int) -> Work:
        part, whole = self._part_and_whole(len(members), num_bytes)
        return partial(dist.all_gather_into_tensor, whole, part, group=group)

    def _reduce_scatter(self, group: dist.ProcessGroup, members: Sequence[int], num_bytes: int) -> Work:
        part, whole = self._part_and_whole(len(members), num_bytes)
        return partial(dist.reduce_scatter_tensor, part, whole, group=group)

    def _all_to_all(self, group: dist.ProcessGroup, members: Sequence[int], num_bytes: int) -> Work:
        _, sent = self._part_and_whole(len(members), num_bytes)
        return partial(dist.all_to_all_single, torch.empty_like(sent), sent, group=group)

    def _ring_shift(self, group: dist.ProcessGroup, members: Sequence[int], num_bytes: int) -> Work:
        """Send to the next rank and receive from the one before, as pipeline stages and rings of attention do."""
        sent, place = written_buffer(num_bytes, self._device), members.index(self._rank)
        received = torch.empty_like(sent)
        following, before = members[(place + 1) % len(members)], members[place - 1]
        operations = [dist.P2POp(dist.isend, sent, following, group), dist.P2POp(dist.irecv, received, before, group)]

        def shift() -> None:
            for request in dist.batch_isend_irecv(operations):
                request.wait()

        return shift

    def _ping_pong(self, group: dist.ProcessGroup, members: Sequence[int], num_bytes: int) -> Work:
        """Two messages, one after the other, for the bandwidth one way and the end-to-end latency of a link."""
        message, (first, second) = written_buffer(num_bytes, self._device), members
        send = partial(dist.send, message, group=group)
        receive = partial(dist.recv, message, group=group)
        if self._rank == first:
            return lambda: (send(second), receive(second))
        return lambda: (receive(first), send(first))

    def _part_and_whole(self, num_ranks: int, num_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        part = written_buffer(num_bytes // num_ranks, self._device)
        return part, part.new_zeros(num_ranks * len(part))


def written_buffer(num_bytes: int, device: torch.device) -> torch.Tensor:
    """Memory of zeros, written to, since untouched zeros share one page of the host."""
    return torch.empty(num_bytes // 4, device=device).zero_()


_WORK: dict[Collective, Callable[[ExchangeTimer, dist.ProcessGroup, Sequence[int], int], Work]] = {
    Collective.ALL_REDUCE: ExchangeTimer._all_reduce,
    Collective.ALL_GATHER: ExchangeTimer._all_gather,
    Collective.REDUCE_SCATTER: ExchangeTimer._reduce_scatter,
    Collective.ALL_TO_ALL: ExchangeTimer._all_to_all,
    Collective.RING_SHIFT: ExchangeTimer._ring_shift,
    Collective.PING_PONG: ExchangeTimer._ping_pong,
}
