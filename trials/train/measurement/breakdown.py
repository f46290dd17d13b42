"""Where the time of a step goes: from what a profiler saw on each rank to parts that add up. Pure; imports no torch.

Each instant of a rank's step belongs to one part. A collective counts only while its device computes nothing: what is
hidden behind computing costs nothing. What no collective, no optimizer and no offload took is computing.

Waiting for another stage looks like a slow transfer. So between stages a transfer takes as long as it took the rank
that waited least, among all of the same kind on all ranks; the rest of each is the bubble.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from trials.measurement.protocol import TwoPointExtrapolation
from trials.trial import LowerStrEnum


class Part(LowerStrEnum):
    """The contract's names under `time_s`."""

    COMPUTE = "compute"
    TENSOR = "tensor"
    PIPELINE = "pipeline"
    DATA_PARALLEL = "data_parallel"
    BUBBLE = "bubble"
    OPTIMIZER = "optimizer"
    OFFLOAD = "offload"


class RangeSource(LowerStrEnum):
    """What a range was seen on, in the order in which an instant is given to one of several ranges."""

    DEVICE_OPTIMIZER = "device_optimizer"
    DEVICE_KERNEL = "device_kernel"
    DEVICE_COLLECTIVE = "device_collective"
    DEVICE_COPY = "device_copy"
    HOST_COLLECTIVE = "host_collective"
    HOST_OTHER = "host_other"


@dataclass(frozen=True)
class TimedRange:
    """Something that took from `begin_s` to `end_s`. `kind` names alike transfers between stages."""

    part: Part
    source: RangeSource
    begin_s: float
    end_s: float
    kind: str = ""


@dataclass(frozen=True)
class Transfer:
    """One transfer between stages: what it took, and how much of that nothing else hid, seconds."""

    kind: str
    took_s: float
    exposed_s: float


@dataclass(frozen=True)
class StepParts:
    """One step of one rank. `seconds` has every part but pipeline and bubble, which `transfers` are divided into."""

    micro_batches: int
    seconds: Mapping[Part, float]
    transfers: tuple[Transfer, ...]

    def to_json(self) -> list[Any]:
        """Short, since a step may have thousands of transfers."""
        return [self.micro_batches, dict(self.seconds), [[t.kind, t.took_s, t.exposed_s] for t in self.transfers]]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> StepParts:
        """The inverse of `to_json`."""
        micro_batches, seconds, transfers = data
        parts = {Part(name): float(took_s) for name, took_s in seconds.items()}
        return cls(micro_batches, parts, tuple(Transfer(*transfer) for transfer in transfers))


def split_step(micro_batches: int, begin_s: float, end_s: float, ranges: Sequence[TimedRange]) -> StepParts:
    """Divide the step that lasted from `begin_s` to `end_s` among what happened in it."""
    exposed_s = _exposed_s(begin_s, end_s, ranges)
    seconds = dict.fromkeys(Part, 0.0)
    seconds[Part.COMPUTE] = end_s - begin_s - sum(exposed_s)
    transfers = []
    for found, own_s in zip(ranges, exposed_s, strict=True):
        if found.part is Part.PIPELINE:
            transfers.append(Transfer(found.kind, found.end_s - found.begin_s, own_s))
        else:
            seconds[found.part] += own_s
    return StepParts(micro_batches, seconds, tuple(transfers))


def breakdown(
    ranks: Sequence[Sequence[StepParts]], step_time_s: float, extrapolation: TwoPointExtrapolation | None = None
) -> dict[str, float]:
    """The contract's `time_s`: the mean over the ranks, in shares of `step_time_s`, since a profiled step is slower.

    With `extrapolation` each part is extrapolated as the step time is, and is never less than nothing.
    """
    shortest_s = _shortest_s(ranks)
    by_rank = [
        _full_step([_split_transfers(step, shortest_s) for step in steps], steps, extrapolation) for steps in ranks
    ]
    mean = {part: fmean(seconds[part] for seconds in by_rank) for part in Part}
    scale = step_time_s / sum(mean.values())
    return {part.value: seconds * scale for part, seconds in mean.items()}


def _exposed_s(begin_s: float, end_s: float, ranges: Sequence[TimedRange]) -> list[float]:
    """How long each range has an instant to itself: no two share one, and the first in `RangeSource` goes first."""
    exposed_s = [0.0] * len(ranges)
    active: dict[RangeSource, dict[int, None]] = {seen: {} for seen in RangeSource}
    now_s = begin_s
    for moment_s, begins, index in _boundaries(ranges):
        until_s = min(max(moment_s, begin_s), end_s)
        owner = next((next(iter(found)) for found in active.values() if found), None)
        if owner is not None:
            exposed_s[owner] += until_s - now_s
        now_s = until_s
        if begins:
            active[ranges[index].source][index] = None
        else:
            del active[ranges[index].source][index]
    return exposed_s


def _boundaries(ranges: Sequence[TimedRange]) -> list[tuple[float, bool, int]]:
    """When each range begins and ends, in time; one that takes no time is left out."""
    lasting = [(index, found) for index, found in enumerate(ranges) if found.end_s > found.begin_s]
    begins = [(found.begin_s, True, index) for index, found in lasting]
    ends = [(found.end_s, False, index) for index, found in lasting]
    return sorted(begins + ends)


def _shortest_s(ranks: Sequence[Sequence[StepParts]]) -> dict[str, float]:
    shortest_s: dict[str, float] = {}
    for transfer in _transfers(ranks):
        shortest_s[transfer.kind] = min(transfer.took_s, shortest_s.get(transfer.kind, transfer.took_s))
    return shortest_s


def _transfers(ranks: Sequence[Sequence[StepParts]]) -> Iterator[Transfer]:
    return (transfer for steps in ranks for step in steps for transfer in step.transfers)


def _split_transfers(step: StepParts, shortest_s: Mapping[str, float]) -> dict[Part, float]:
    """All parts of one step."""
    moving_s = sum(min(transfer.exposed_s, shortest_s[transfer.kind]) for transfer in step.transfers)
    waiting_s = sum(transfer.exposed_s for transfer in step.transfers) - moving_s
    return {**step.seconds, Part.PIPELINE: moving_s, Part.BUBBLE: waiting_s}


def _full_step(
    divided: Sequence[Mapping[Part, float]], steps: Sequence[StepParts], extrapolation: TwoPointExtrapolation | None
) -> dict[Part, float]:
    """The mean over a rank's steps; where two kinds of short steps ran, what follows from the means of each."""
    if extrapolation is None:
        return _mean(divided)
    short, long = (
        _mean([parts for parts, step in zip(divided, steps, strict=True) if step.micro_batches == count])
        for count in (extrapolation.short, extrapolation.long)
    )
    return {part: max(0.0, extrapolation.full_time_s(short[part], long[part])) for part in Part}


def _mean(divided: Sequence[Mapping[Part, float]]) -> dict[Part, float]:
    return {part: fmean(parts[part] for parts in divided) for part in Part}
