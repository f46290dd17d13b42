"""ZeRO 0 and 1: weights and fp32 gradients in flat buffers, reduced bucket by bucket.

As in Megatron-LM's DistributedDataParallel and distributed optimizer: few large collectives instead of one per
parameter, which may overlap the backward pass, and gradients that accumulate in fp32 whatever the weights' type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from trials.train.engines.sharding import ParamTraits, Sharding, ShardSlice, named_param_traits, round_frozen
from trials.train.model.chunk import ModelChunk
from trials.train.parallel.collectives import (
    Reduction,
    reduce_in_place,
    start_gather,
    start_reduce,
    start_reduce_scatter,
)
from trials.train.parallel.process_groups import World, group_size

MIB = 2**20
GRADIENT_BYTES = 4
OVERLAPPED_BUCKET_MIB = 100
"""Default bucket size where collectives overlap the backward pass: large enough for the fabric's full speed
(Megatron-LM takes 40 million elements, 153 MiB), small enough that the last one, which nothing hides, is short."""


@dataclass
class Bucket:
    """Parameters that are reduced together: elements `begin` to `end` of the flat buffers, padding at the end.

    `pending` counts the gradients of this step that have not been added yet.
    """

    begin: int
    end: int
    members: Sequence[tuple[nn.Parameter, ParamTraits]]
    pending: int = 0
    work: dist.Work | None = field(default=None, repr=False)

    def share(self, rank: int, ranks: int) -> slice:
        """This rank's equal part of the bucket's elements."""
        size = (self.end - self.begin) // ranks
        return slice(self.begin + rank * size, self.begin + (rank + 1) * size)


class FlatSharding(Sharding):
    """Weights in flat buffers. `shares_update`: each data-parallel rank updates its share of every bucket (ZeRO 1),
    else all of it (ZeRO 0)."""

    def __init__(
        self,
        chunks: Sequence[ModelChunk],
        world: World,
        dtype: torch.dtype,
        shares_update: bool,
        overlaps: bool,
        bucket_mib: int | None,
    ):
        self._group, self._ends = world.data, world.ends
        self._held = sum(traits.is_counted * parameter.numel() for parameter, traits in _known(chunks))
        for chunk in chunks:
            round_frozen(chunk, dtype)
        self.shares_gradients = shares_update and world.data is not None
        self._overlaps = overlaps and world.data is not None
        self._buckets = make_buckets(
            _in_backward_order(chunks), _bucket_elements(overlaps, bucket_mib), group_size(world.data)
        )
        self.loss_divisor = group_size(world.data)
        rank, ranks = (world.coordinates["dp"], world.layout.data_parallel) if self.shares_gradients else (0, 1)
        self._mine = [bucket.share(rank, ranks) for bucket in self._buckets]
        self._take_weights(dtype)
        self._make_gradients()

    def _take_weights(self, dtype: torch.dtype) -> None:
        """Copy all parameters into one buffer and make them views of it; the masters keep the exact values."""
        device = self._buckets[0].members[0][0].device
        total = self._buckets[-1].end
        exact = torch.zeros(total, device=device)
        self._values = exact if dtype == torch.float32 else torch.zeros(total, dtype=dtype, device=device)
        for begin, parameter, _ in self._all_with_offsets():
            place = slice(begin, begin + parameter.numel())
            exact[place] = parameter.data.flatten()
            self._values[place] = exact[place]
            parameter.data = self._values[place].view_as(parameter)
        self.weights = [self._values[mine] for mine in self._mine]
        is_exact = self._values is exact
        self.masters = self.weights if is_exact else [exact[mine].clone() for mine in self._mine]

    def _make_gradients(self) -> None:
        self._gradients = torch.zeros(self._buckets[-1].end, device=self._values.device)
        # With ZeRO 1 a rank's share of the sums is a view of the full buffer, as in Megatron-LM.
        self._updated = [self._gradients[mine] for mine in self._mine]
        views_accumulate = self._values.dtype == torch.float32
        for bucket in self._buckets:
            for begin, parameter, _ in _with_offsets(bucket):
                view = self._gradients[begin : begin + parameter.numel()].view_as(parameter)
                if views_accumulate:
                    parameter.grad = view
                if self._overlaps or not views_accumulate:
                    hook = partial(self._on_gradient, bucket, None if views_accumulate else view)
                    parameter.register_post_accumulate_grad_hook(hook)
        self._slices = list(self._own_slices())

    def begin_step(self, micro_batches: int) -> None:
        self._gradients.zero_()
        for bucket in self._buckets:
            bucket.pending, bucket.work = micro_batches * len(bucket.members), None
        self._next = 0

    def _on_gradient(self, bucket: Bucket, view: torch.Tensor | None, parameter: nn.Parameter) -> None:
        """Hook after a backward pass has set this parameter's gradient; the last of a bucket's starts its reduction."""
        if view is not None:
            view.add_(parameter.grad)  # type: ignore[arg-type]
            parameter.grad = None
        bucket.pending -= 1
        if self._overlaps:
            self._start_ready(lambda bucket: bucket.pending == 0 and not _is_tied(bucket))

    def _start_ready(self, is_ready) -> None:
        """Start reductions in the buckets' order, whatever order they become ready in, since all ranks have to agree on
        it."""
        while self._next < len(self._buckets) and is_ready(self._buckets[self._next]):
            self._start(self._next)
            self._next += 1

    def _start(self, index: int) -> None:
        bucket = self._buckets[index]
        if self._group is None:
            return
        everything = self._gradients[bucket.begin : bucket.end]
        if self.shares_gradients:
            mine = self._updated[index]
            bucket.work = start_reduce_scatter(Reduction.DATA_PARALLEL_GRADIENT, mine, everything, self._group)
        else:
            bucket.work = start_reduce(Reduction.DATA_PARALLEL_GRADIENT, everything, self._group)

    def finish_backward(self) -> None:
        for begin, parameter, traits in self._all_with_offsets():
            if traits.is_tied:
                gradient = self._gradients[begin : begin + parameter.numel()]
                reduce_in_place(Reduction.TIED_GRADIENT, gradient, self._ends)
        self._start_ready(lambda bucket: True)
        for bucket in self._buckets:
            if bucket.work is not None:
                bucket.work.wait()

    def gradients(self) -> Sequence[torch.Tensor]:
        return self._updated

    def slices(self) -> Sequence[ShardSlice]:
        return self._slices

    def publish(self) -> None:
        if not self.shares_gradients or self._group is None:
            return
        whole = [self._values[bucket.begin : bucket.end] for bucket in self._buckets]
        works = [start_gather(all_, mine, self._group) for all_, mine in zip(whole, self.weights, strict=True)]
        for work in works:
            work.wait()

    def held_parameters(self) -> int:
        return self._held

    def updated_parameters(self) -> int:
        return sum(piece.gradient.numel() for piece in self._slices if piece.traits.is_counted)

    def _all_with_offsets(self):
        """(first element, parameter, traits) of every parameter, in the buffers' order."""
        for bucket in self._buckets:
            yield from _with_offsets(bucket)

    def _own_slices(self):
        for bucket, mine, updated in zip(self._buckets, self._mine, self._updated, strict=True):
            for begin, parameter, traits in _with_offsets(bucket):
                first, end = max(begin, mine.start), min(begin + parameter.numel(), mine.stop)
                if first < end:
                    yield ShardSlice(updated[first - mine.start : end - mine.start], traits)


def _in_backward_order(chunks: Sequence[ModelChunk]) -> list[tuple[nn.Parameter, ParamTraits]]:
    """Parameters that train in the order of their gradients: last layers first; a tied table last, since first and last
    stage sum it before the data-parallel ranks do."""
    trained = [pair for pair in _known(chunks) if pair[0].requires_grad][::-1]
    return sorted(trained, key=lambda pair: pair[1].is_tied)


def _known(chunks: Sequence[ModelChunk]) -> list[tuple[nn.Parameter, ParamTraits]]:
    return [(chunk.get_parameter(name), traits) for chunk in chunks for name, traits in named_param_traits(chunk)]


def _bucket_elements(overlaps: bool, bucket_mib: int | None) -> int | None:
    """Most gradients per bucket; None: one bucket, since several gain nothing without overlap."""
    if bucket_mib is None and not overlaps:
        return None
    return (bucket_mib or OVERLAPPED_BUCKET_MIB) * MIB // GRADIENT_BYTES


def make_buckets(members: list[tuple[nn.Parameter, ParamTraits]], most: int | None, ranks: int) -> list[Bucket]:
    """Buckets of at most `most` elements, or of one parameter, each a multiple of `ranks` long; tied ones alone."""
    groups: list[list[tuple[nn.Parameter, ParamTraits]]] = []
    for member in members:
        if groups and not _starts_bucket(groups[-1], member, most):
            groups[-1].append(member)
        else:
            groups.append([member])
    buckets, begin = [], 0
    for group in groups:
        elements = sum(parameter.numel() for parameter, _ in group)
        end = begin + -(-elements // ranks) * ranks
        buckets.append(Bucket(begin, end, group))
        begin = end
    return buckets


def _starts_bucket(group: list[tuple[nn.Parameter, ParamTraits]], member: tuple, most: int | None) -> bool:
    parameter, traits = member
    if traits.is_tied:
        return True
    return most is not None and sum(p.numel() for p, _ in group) + parameter.numel() > most


def _with_offsets(bucket: Bucket):
    """(first element, parameter, traits) of a bucket's members."""
    begin = bucket.begin
    for parameter, traits in bucket.members:
        yield begin, parameter, traits
        begin += parameter.numel()


def _is_tied(bucket: Bucket) -> bool:
    return any(traits.is_tied for _, traits in bucket.members)
