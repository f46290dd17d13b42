"""Profile of a few steps by torch after the measurement, for the breakdown of a step's time.

Events are classified by ranges of our own, not by kernel names: while these steps run, every collective, and every wait
for one, is a range that names the axis of its group. This holds for any engine, since all use torch's process groups.
"""

from __future__ import annotations

import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from search_spaces.decoding import decode, encode
from search_spaces.layouts.groups import expert_mesh
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.mesh import RankMesh
from trials.ranks.failures import excerpt_of
from trials.ranks.report import Report
from trials.train.measurement.breakdown import Part, RangeSource, StepParts, TimedRange, breakdown, split_step
from trials.train.measurement.loop import TrainingLoop
from trials.train.parallel.collective_waits import wrapped_collectives
from trials.train.parallel.device import Device
from trials.train.parallel.gather import gather_json
from trials.trial import Flag, Outcome, TrialSpec

PROFILED_STEPS = 3
"""Profiled steps, after one more, since the profiler is slow to start."""
PROFILER_SLOWDOWN = 3
"""Largest slowdown of a step by the profiler."""
PREFIX = "parlay/"
_STEP = "parlay/step"
_OPTIMIZER = "Optimizer.step#"
"""Range that torch itself opens around every optimizer step."""


def add_breakdown(spec: TrialSpec, loop: TrainingLoop, device: Device, report: Report, outcome: Outcome | None) -> None:
    """Profile a few steps on every rank; rank 0, which has the `outcome`, writes it again with the breakdown.

    The outcome is already written, and a failure here is only a flag on it. A rank with peers raises all the same: they
    may wait for it in a collective, and end only because it does. All ranks find alike that no time is left for
    profiled steps, and none fails for it.
    """
    if (found := _time_limit_error(spec, loop)) is not None:
        _report_failure(report, outcome, found)
        return
    try:
        ranks = _profiled_ranks(spec, loop, device, report)
        if outcome is not None:
            metrics = outcome.metrics
            assert metrics is not None, "only a measured trial is profiled"
            time_s = breakdown(ranks, metrics.step_time_s, loop.extrapolation)
            report.write(replace(outcome, measured=replace(metrics, time_s=time_s)))
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        _report_failure(report, outcome, excerpt_of(error))
        if dist.get_world_size() > 1:
            raise


def _time_limit_error(spec: TrialSpec, loop: TrainingLoop) -> str | None:
    """Error where the time limit would end the profiled steps, by rank 0's clock."""
    needed_s = PROFILER_SLOWDOWN * (len(_micro_batch_counts(loop)) + 1) * loop.longest_step_s
    is_late = loop.elapsed_s + needed_s > spec.measure.time_limit_s
    return f"the time limit leaves less than {needed_s:.0f} s for profiled steps" if is_late else None


def _report_failure(report: Report, outcome: Outcome | None, message: str) -> None:
    if outcome is not None:
        report.write(replace(outcome, flags=(*outcome.flags, Flag.PROFILE_FAILED), excerpt=message))


_ALL_TO_ALL, _GATHER, _MESSAGE = ("alltoall", "all_to_all"), ("gather", "scatter"), ("send", "recv", "_end_coalescing")
_KINDS = {
    "p2p": _MESSAGE,
    "all_gather": _GATHER,
    "a2a": _ALL_TO_ALL,
    "a2a_p2p": (*_ALL_TO_ALL, *_MESSAGE),
    "alltoall": _ALL_TO_ALL,
    "allgather": _GATHER,
}
"""Words in the names of the collectives of each transport of context parallelism, and of each dispatcher of tokens that
uses collectives of torch."""


def part_of_collective(layout: Layout, ranks: Sequence[int], name: str, are_counts: bool = False) -> Part | None:
    """The part to which the collective of this name of these ranks belongs; None for a single rank.

    Ranks that differ in their stage wait for each other's work, whatever else they differ in. Groups of experts, and
    those of context-parallel ranks without data-parallel ones, may be those that reduce gradients: there the kind of
    the collective decides. `are_counts`: it moves counts of tokens, no gradients.
    """
    differing = _differing(layout.mesh, ranks)
    if "pp" in differing:
        return Part.PIPELINE
    dispatches = are_counts or _has_kind(name, layout.expert_dispatcher)
    if (part := _part_of_experts(layout, ranks, dispatches)) is not None:
        return part
    is_context = differing == {"cp"} and (layout.data_parallel > 1 or _has_kind(name, layout.context_transport))
    if "dp" in differing or ("cp" in differing and not is_context):
        return Part.DATA_PARALLEL
    if is_context:
        return Part.CONTEXT
    return Part.TENSOR if differing else None


def _part_of_experts(layout: Layout, ranks: Sequence[int], dispatches: bool) -> Part | None:
    """The part of a collective that only layers with experts have, as far as its ranks tell; None of any other.
    `dispatches`: if its ranks hold different experts, it is for these."""
    if layout.expert_parallel == 1:
        return None
    mesh = expert_mesh(layout, layout.rank_order)
    differing = _differing(mesh, ranks)
    if differing in ({"ep"}, {"tp", "ep"}) and dispatches and _are_all(mesh, ranks):
        return Part.EXPERT
    if differing == {"tp"} and _are_all(mesh, ranks):
        return Part.TENSOR
    return Part.DATA_PARALLEL if differing == {"dp"} and not _are_all(layout.mesh, ranks) else None


def _are_all(mesh: RankMesh, ranks: Sequence[int]) -> bool:
    """True if these are all ranks along the dimensions in which they differ."""
    return len(ranks) == prod(mesh.sizes[dim] for dim in _differing(mesh, ranks))


def _differing(mesh: RankMesh, ranks: Sequence[int]) -> set[str]:
    """Dimensions in which these ranks differ."""
    coordinates = [mesh.coordinates(rank) for rank in ranks]
    return {dim for dim in mesh.sizes if len({at[dim] for at in coordinates}) > 1}


def _has_kind(name: str, way: str) -> bool:
    return any(word in name for word in _KINDS.get(way, ()))


def _profiled_ranks(spec: TrialSpec, loop: TrainingLoop, device: Device, report: Report) -> list[list[StepParts]]:
    """Every rank's profiled steps; RuntimeError where this rank's profile is empty."""
    steps = _profiled_steps(spec.layout, loop, _micro_batch_counts(loop), device, report)
    views = gather_json(encode(steps), device.torch_device)
    return [[decode(StepParts, step) for step in view] for view in views]


def _micro_batch_counts(loop: TrainingLoop) -> list[int]:
    """The micro-batches of each profiled step, as in the measurement."""
    if loop.extrapolation is None:
        return [loop.micro_batches[-1]] * PROFILED_STEPS
    return [loop.extrapolation.short, loop.extrapolation.long] * 2


def _profiled_steps(
    layout: Layout, loop: TrainingLoop, counts: Sequence[int], device: Device, report: Report
) -> list[StepParts]:
    activities = [ProfilerActivity.CPU, *([] if device.is_cpu else [ProfilerActivity.CUDA])]
    with profile(activities=activities) as profiler, _named_collectives(layout):
        for count in (counts[0], *counts):
            device.synchronize()
            with record_function(_STEP):
                loop.train(count)
                device.synchronize()
            report.progress()
    events = list(profiler.events())
    steps = sorted(_bounds_s(e) for e in events if e.name == _STEP and e.device_type == DeviceType.CPU)
    ranges = [found for event in events if (found := _classify_event(event)) is not None]
    if not device.is_cpu and not any(found.source is RangeSource.DEVICE_KERNEL for found in ranges):
        raise RuntimeError("the profiler recorded no kernel on the device")
    return [
        split_step(count, begin_s, end_s, [r for r in ranges if r.end_s > begin_s and r.begin_s < end_s])
        for count, (begin_s, end_s) in zip(counts, steps[1:], strict=True)
    ]


_SOURCES = {
    (True, True): RangeSource.HOST_OTHER,
    (True, False): RangeSource.HOST_COLLECTIVE,
    (False, True): RangeSource.DEVICE_OPTIMIZER,
    (False, False): RangeSource.DEVICE_COLLECTIVE,
}
"""Source of one of our ranges, by whether it is the host's, and of the optimizer."""


def _classify_event(event: Any) -> TimedRange | None:
    """The profiler's event as a range; None for other host work."""
    part, kind = _parse_range_name(event.name)
    on_host = event.device_type == DeviceType.CPU
    if part is not None:
        return TimedRange(part, _SOURCES[on_host, part is Part.OPTIMIZER], *_bounds_s(event), kind)
    if on_host or event.is_user_annotation or event.name.startswith(("nccl", "gloo")):
        return None  # third-party ranges, and the kernels inside ours
    if event.name.startswith(("Memcpy HtoD", "Memcpy DtoH")):
        return TimedRange(Part.OFFLOAD, RangeSource.DEVICE_COPY, *_bounds_s(event))
    return TimedRange(Part.COMPUTE, RangeSource.DEVICE_KERNEL, *_bounds_s(event))


def _parse_range_name(name: str) -> tuple[Part | None, str]:
    """Part and kind from the name of one of our ranges."""
    if name.startswith(_OPTIMIZER):
        return Part.OPTIMIZER, ""
    if not name.startswith(PREFIX) or name == _STEP:
        return None, ""
    part, _, kind = name.removeprefix(PREFIX).partition("/")
    return Part(part), kind


def _bounds_s(event: Any) -> tuple[float, float]:
    return event.time_range.start / 1e6, event.time_range.end / 1e6


@contextmanager
def _named_collectives(layout: Layout) -> Iterator[None]:
    """Context in which every collective, and every wait for one, is a range that names its part and kind."""
    names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
    part_of = cache(partial(part_of_collective, layout))  # a step has thousands

    def named_collective(original: Callable[..., Any]) -> Callable[..., Any]:
        def collective(group: dist.ProcessGroup, *arguments: Any, **options: Any) -> Any:
            tensor = _first_tensor(arguments)
            are_counts = tensor is not None and tensor.dtype == torch.int64
            part = part_of(tuple(dist.get_process_group_ranks(group)), original.__name__, are_counts)
            if part is None:
                return original(group, *arguments, **options)
            kind = f"{original.__name__} {0 if tensor is None else tensor.numel()}"
            with record_function(f"{PREFIX}{part}/{kind}"):
                work = original(group, *arguments, **options)
            if work is not None:
                names[work] = f"{PREFIX}{part}/wait {kind}"
            return work

        return collective

    def named_wait(original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(work: dist.Work, *arguments: Any, **options: Any) -> Any:
            if work not in names:
                return original(work, *arguments, **options)
            with record_function(names[work]):
                return original(work, *arguments, **options)

        return wait

    with wrapped_collectives(named_collective, named_wait):
        yield


def _first_tensor(arguments: Sequence[Any]) -> torch.Tensor | None:
    """The first tensor argument, alone or in lists; its number of elements distinguishes transfers by size."""
    for argument in arguments:
        while isinstance(argument, (list, tuple)) and argument:
            argument = argument[0]
        if isinstance(argument, torch.Tensor):
            return argument
    return None
