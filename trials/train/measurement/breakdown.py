"""Breakdown of a step's time into parts that add up, from each rank's profile. Pure; imports no torch.

Each instant of a rank's step belongs to one part. A collective counts only while its device computes nothing, since
communication hidden by computation costs nothing. The time left by collectives, optimizer and offload is compute.

Waiting for another stage looks like a slow transfer. So a transfer between stages takes as long as on the rank that
waited least, among all of the same kind on all ranks; the rest of each is the bubble.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from trials.measurement.protocol import TwoPointExtrapolation
from trials.trial import LowerStrEnum


class Part(LowerStrEnum):
    """Parts of a step: the contract's names under `time_s`."""

    COMPUTE = "compute"
    TENSOR = "tensor"
    CONTEXT = "context"
    EXPERT = "expert"
    PIPELINE = "pipeline"
    DATA_PARALLEL = "data_parallel"
    BUBBLE = "bubble"
    OPTIMIZER = "optimizer"
    OFFLOAD = "offload"


class RangeSource(LowerStrEnum):
    """Source of a range, in order of precedence where ranges overlap."""

    DEVICE_OPTIMIZER = "device_optimizer"
    DEVICE_KERNEL = "device_kernel"
    DEVICE_COLLECTIVE = "device_collective"
    DEVICE_COPY = "device_copy"
    HOST_COLLECTIVE = "host_collective"
    HOST_OTHER = "host_other"


@dataclass(frozen=True)
class TimedRange:
    """A range from `begin_s` to `end_s`. `kind` identifies equal transfers between stages."""

    part: Part
    source: RangeSource
    begin_s: float
    end_s: float
    kind: str = ""


@dataclass(frozen=True)
class Transfer:
    """One transfer between stages: its duration, and the part of it that nothing else hid, in seconds."""

    kind: str
    took_s: float
    exposed_s: float


@dataclass(frozen=True)
class StepParts:
    """One step of one rank. `seconds` has every part but pipeline and bubble, which `transfers` are split into."""

    micro_batches: int
    seconds: Mapping[Part, float]
    transfers: tuple[Transfer, ...]


def split_step(micro_batches: int, begin_s: float, end_s: float, ranges: Sequence[TimedRange]) -> StepParts:
    """Split the step from `begin_s` to `end_s` into its parts."""
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
    """The contract's `time_s`: the mean over the ranks, scaled to `step_time_s`, since a profiled step is slower.

    With `extrapolation` each part is extrapolated as the step time is, but not below zero.
    """
    shortest_s = _shortest_s(ranks)
    by_rank = [
        _full_step([_split_transfers(step, shortest_s) for step in steps], steps, extrapolation) for steps in ranks
    ]
    mean = {part: fmean(seconds[part] for seconds in by_rank) for part in Part}
    scale = step_time_s / sum(mean.values())
    return {part.value: seconds * scale for part, seconds in mean.items()}


def _exposed_s(begin_s: float, end_s: float, ranges: Sequence[TimedRange]) -> list[float]:
    """Time of each range that no range of higher precedence in `RangeSource` covers; no two ranges share an instant."""
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
    """Begins and ends of the ranges in order of time; empty ranges are left out."""
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
    """Mean over a rank's steps; where two kinds of short steps ran, extrapolated from the means of each."""
    if extrapolation is None:
        return _mean(divided)
    short, long = (
        _mean([parts for parts, step in zip(divided, steps, strict=True) if step.micro_batches == count])
        for count in (extrapolation.short, extrapolation.long)
    )
    return {part: max(0.0, extrapolation.full_time_s(short[part], long[part])) for part in Part}


def _mean(divided: Sequence[Mapping[Part, float]]) -> dict[Part, float]:
    return {part: fmean(parts[part] for parts in divided) for part in Part}
