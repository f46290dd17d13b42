"""Time of a step for which a rank's computation waits in collectives: for their transfers, and for slower ranks.

The rank for which the others wait waits least, so the rest of its step, its compute time, is the longest among ranks
with equal work (docs/measuring.md).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from search_spaces.engines import ACCELERATE
from search_spaces.layouts.layout import Layout
from trials.train.parallel.device import Device
from trials.trainers.accelerate.config import is_fsdp

COST_S = {True: 1e-6, False: 1e-5}
"""Assumed cost of timing one call on the host, by `Device.is_cpu`. 0.6 us were measured on a CPU; on a GPU, where two
events are recorded, it was not."""
MOST_COST = 0.01
"""Share of a step's time that timing may cost; beyond it only every fourth step is timed, which leaves the median of
the step times to the others."""
SPARSE_STEPS = 4


class HostStopwatch:
    """Waits by the host's clock: on a CPU a rank waits in the call itself."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def start(self) -> None:
        self._seconds = 0.0

    def enter(self, stream: Any = None) -> Any:
        """Begin a wait, on a GPU on this stream (None: the current one); None where it is not counted."""
        return time.perf_counter()

    def leave(self, begun: Any) -> None:
        self._seconds += time.perf_counter() - begun

    def seconds(self) -> float:
        return self._seconds


class StreamStopwatch:
    """Waits of the stream that computes, between pairs of its events: a GPU's host does not wait.

    Calls from other streams are not counted: what they wait for is hidden, until the computing stream waits for them.
    Events are reused from step to step.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._computing: int | None = None
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._used = 0

    def start(self) -> None:
        self._computing = torch.cuda.current_stream(self._device).cuda_stream
        self._used = 0

    def enter(self, stream: Any = None) -> Any:
        """The same, with the event and the stream of its end."""
        at = torch.cuda.current_stream(self._device) if stream is None else stream
        if at.cuda_stream != self._computing:
            return None
        if self._used == len(self._pairs):
            self._pairs.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        begin, end = self._pairs[self._used]
        self._used += 1
        begin.record(at)
        return end, at

    def leave(self, begun: Any) -> None:
        end, at = begun
        end.record(at)

    def seconds(self) -> float:
        """The sum once the device has been synchronised."""
        return sum(begin.elapsed_time(end) for begin, end in self._pairs[: self._used]) / 1e3


class CollectiveWaits:
    """Waits of a rank's steps; None where it cannot see them (`are_visible`). Used by one thread."""

    def __init__(self, layout: Layout, device: Device):
        self._device = device
        self._stopwatch: HostStopwatch | StreamStopwatch | None = None
        if are_visible(layout, device.is_cpu):
            self._stopwatch = HostStopwatch() if device.is_cpu else StreamStopwatch(device.torch_device)
        self._is_timing = self._was_timed = False
        self._stride = 1
        self._calls = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Context in which steps can be timed."""
        if self._stopwatch is None:
            yield
            return
        with ExitStack() as stack:
            stack.enter_context(wrapped_collectives(self._timed, self._timed))
            if not self._device.is_cpu:
                # Libraries that communicate on streams of their own let the computing one wait by these.
                stack.enter_context(wrapped(torch.cuda.Stream, "wait_event", self._timed_stream))
            yield

    def begin(self, step: int) -> None:
        """Begin a step, which is timed unless too few may be."""
        self._calls = 0
        self._is_timing = self._stopwatch is not None and step % self._stride == 0
        if self._stopwatch is not None and self._is_timing:
            self._stopwatch.start()

    def end(self) -> None:
        """End it: what follows is not counted."""
        self._is_timing, self._was_timed = False, self._is_timing

    def seconds(self) -> float | None:
        """The waits of the step that has ended, once the device has been synchronised; None where it was not timed, or
        had no collective."""
        if self._stopwatch is None or not self._was_timed or not self._calls:
            return None
        return self._stopwatch.seconds()

    @property
    def calls(self) -> int:
        """Calls that were timed in the step that has ended."""
        return self._calls

    def limit_cost(self, most_calls: int, step_time_s: float) -> None:
        """Time fewer steps where the rank with most calls spends too much on it. All ranks are given equal numbers."""
        if most_calls * COST_S[self._device.is_cpu] > MOST_COST * step_time_s:
            self._stride = SPARSE_STEPS

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def timed(*arguments: Any, **options: Any) -> Any:
            return self._call(None, original, arguments, options)

        return timed

    def _timed_stream(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wait_event(stream: Any, event: Any) -> Any:
            return self._call(stream, original, (stream, event), {})

        return wait_event

    def _call(self, stream: Any, original: Callable[..., Any], arguments: Any, options: Any) -> Any:
        if not self._is_timing or self._stopwatch is None:
            return original(*arguments, **options)
        self._calls += 1
        begun = self._stopwatch.enter(stream)
        result = original(*arguments, **options)
        if begun is not None:
            self._stopwatch.leave(begun)
        return result


def are_visible(layout: Layout, is_cpu: bool) -> bool:
    """True if a rank's waits for its peers can be told from its own work.

    DistributedDataParallel of engine accelerate reduces gradients inside torch; on a GPU a captured graph hides
    collectives, and the stream also waits for copies of what is offloaded.
    """
    if layout.num_gpus == 1 or (layout.engine == ACCELERATE and not is_fsdp(layout)):
        return False
    return is_cpu or (layout.cuda_graphs == "none" and layout.offload == "none")


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""From a method to the one that is called in its place."""

# fmt: off
_COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "gather", "scatter", "send", "recv", "_end_coalescing",
    "allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "_allgather_base", "all_gather_single",
    "all_gather_single_coalesced", "reduce_scatter", "reduce_scatter_tensor_coalesced", "_reduce_scatter_base",
    "reduce_scatter_single", "reduce_scatter_single_coalesced", "alltoall", "alltoall_base", "all_to_all_single",
)
# fmt: on
"""Collectives of a process group, in any release of torch."""


@contextmanager
def wrapped_collectives(collective: Wrap, wait: Wrap) -> Iterator[None]:
    """Context in which every collective that Python starts, and every wait for one, is wrapped.

    Not seen are those that torch starts by itself: in DistributedDataParallel, in functional collectives (DTensor), and
    in compiled graphs.
    """
    with ExitStack() as stack:
        for name in _COLLECTIVES:
            if name in vars(dist.ProcessGroup):
                stack.enter_context(wrapped(dist.ProcessGroup, name, collective))
        stack.enter_context(wrapped(dist.Work, "wait", wait))
        yield


@contextmanager
def wrapped(kind: type, name: str, change: Wrap) -> Iterator[None]:
    """Context in which this method of a class is wrapped."""
    # Restored from the class dictionary: what getattr returns of a C++ class would no longer bind `self`.
    stored = vars(kind)[name]
    setattr(kind, name, change(getattr(kind, name)))
    try:
        yield
    finally:
        setattr(kind, name, stored)
