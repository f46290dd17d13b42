"""Calls of the collectives of torch's process groups, and the waits for them, wrapped while a context lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch.distributed as dist

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
