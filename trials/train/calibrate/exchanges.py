"""Exchanges of one rank with its group, as calls without arguments that a stopwatch times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist

from trials.diagnostics.calibration import Collective
from trials.train.parallel.process_groups import COLLECTIVE_LIMIT

Work = Callable[[], object] | None
"""A rank's work in a measurement; None where it only waits."""


class Exchanges:
    """One rank's part of collectives and messages, by the bytes that NCCL's tests count."""

    def __init__(self, rank: int, device: torch.device):
        self._rank = rank
        self._device = device

    def group(self, members: Sequence[int] | None) -> dist.ProcessGroup | None:
        """A group of these ranks; None without any, once all ranks have called it.

        A rank in no group forms one alone, and groups are never destroyed: torch names a group after its ranks and the
        number of groups that each of them has, so the ranks need equal numbers to find each other.
        """
        ranks = [self._rank] if members is None else list(members)
        group = dist.new_group(ranks, timeout=COLLECTIVE_LIMIT, use_local_synchronization=True)
        return None if members is None else group

    def work(
        self, kind: Collective, group: dist.ProcessGroup | None, members: Sequence[int] | None, num_bytes: int
    ) -> Work:
        """This rank's part of a collective of `num_bytes` among `members`."""
        if group is None or members is None:
            return None
        return _WORK[kind](self, group, members, num_bytes)

    def all_reduce(self, group: dist.ProcessGroup, members: Sequence[int], num_bytes: int) -> Work:
        return partial(dist.all_reduce, self.buffer(num_bytes), group=group)

    def all_gather(self, group: dist.ProcessGroup, members: Sequence[int], num_bytes: int) -> Work:
        part, whole = self._part_and_whole(len(members), num_bytes)
        return partial(dist.all_gather_into_tensor, whole, part, group=group)

    def reduce_scatter(self, group: dist.ProcessGroup, members: Sequence[int], num_bytes: int) -> Work:
        part, whole = self._part_and_whole(len(members), num_bytes)
        return partial(dist.reduce_scatter_tensor, part, whole, group=group)

    def all_to_all(self, group: dist.ProcessGroup, members: Sequence[int], num_bytes: int) -> Work:
        _, sent = self._part_and_whole(len(members), num_bytes)
        return partial(dist.all_to_all_single, torch.empty_like(sent), sent, group=group)

    def ring_shift(self, group: dist.ProcessGroup, members: Sequence[int], num_bytes: int) -> Work:
        """Send to the next rank and receive from the one before, as pipeline stages and rings of attention do."""
        sent, place = self.buffer(num_bytes), members.index(self._rank)
        received = torch.empty_like(sent)
        following, before = members[(place + 1) % len(members)], members[place - 1]
        operations = [dist.P2POp(dist.isend, sent, following, group), dist.P2POp(dist.irecv, received, before, group)]

        def shift() -> None:
            for request in dist.batch_isend_irecv(operations):
                request.wait()

        return shift

    def ping_pong(self, group: dist.ProcessGroup, members: Sequence[int], num_bytes: int) -> Work:
        """Two messages, one after the other, for the bandwidth one way and the end-to-end latency of a link."""
        message, (first, second) = self.buffer(num_bytes), members
        send = partial(dist.send, message, group=group)
        receive = partial(dist.recv, message, group=group)
        if self._rank == first:
            return lambda: (send(second), receive(second))
        return lambda: (receive(first), send(first))

    def buffer(self, num_bytes: int) -> torch.Tensor:
        # Written to, since untouched zeros share one page of the host.
        return torch.empty(num_bytes // 4, device=self._device).zero_()

    def _part_and_whole(self, num_ranks: int, num_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        part = self.buffer(num_bytes // num_ranks)
        return part, part.new_zeros(num_ranks * len(part))


_WORK: dict[Collective, Callable[[Exchanges, dist.ProcessGroup, Sequence[int], int], Work]] = {
    Collective.ALL_REDUCE: Exchanges.all_reduce,
    Collective.ALL_GATHER: Exchanges.all_gather,
    Collective.REDUCE_SCATTER: Exchanges.reduce_scatter,
    Collective.ALL_TO_ALL: Exchanges.all_to_all,
    Collective.RING_SHIFT: Exchanges.ring_shift,
    Collective.PING_PONG: Exchanges.ping_pong,
}
