"""Patches of DeepSpeed's start: no operators compiled, no compiler imported, groups with a timeout.

Written for DeepSpeed 0.19.8; each guard says what happens without it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime import bf16_optimizer
from deepspeed.runtime.zero import partitioned_param_coordinator as coordinator

from search_spaces.layouts.layout import Layout
from trials.train.parallel.process_groups import COLLECTIVE_LIMIT


def init_deepspeed(device: torch.device) -> None:
    """Initialise DeepSpeed on torch's process group."""
    if device.type == "cpu":
        # Otherwise it compiles a C++ operator at the first start, and hangs forever on the lock of a killed build.
        # The submodule `deepspeed.comm.torch` is hidden behind a name of the real torch, hence sys.modules.
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    else:
        # DeepSpeed uses the local rank as device index, which is wrong where a rank sees only its own GPU.
        os.environ["LOCAL_RANK"] = str(device.index)
    deepspeed.init_distributed(dist_backend=dist.get_backend(), auto_mpi_discovery=False, verbose=False)


@contextmanager
def group_timeouts() -> Iterator[None]:
    """Give the groups that DeepSpeed creates the timeout of ours."""
    with _patched(dist, "new_group", partial(dist.new_group, timeout=COLLECTIVE_LIMIT)):
        yield


@contextmanager
def fast_initialize(layout: Layout) -> Iterator[None]:
    """Context of `deepspeed.initialize` that avoids importing torch's compiler.

    ZeRO disables the compiler for functions of its own: importing the compiler for that takes each rank a second or
    two. The bf16 optimizer prints its memory usage four times, with a garbage collection each.
    """
    with _patched(bf16_optimizer, "see_memory_usage", _no_op):
        if layout.torch_compile:
            yield
            return
        _skip_lazy_disable(coordinator.update_recompute_parameters)
        for method in vars(coordinator.PartitionedParameterCoordinator).values():
            _skip_lazy_disable(method)
        with without_compiler():
            yield


@contextmanager
def without_compiler() -> Iterator[None]:
    """Context in which torch's decorators for its compiler do nothing, and so do not import it: ZeRO imports an
    optimizer that we do not use, whose functions are decorated with torch.compile."""
    with _patched(torch, "compile", _identity_decorator), _patched(torch.compiler, "disable", _identity_decorator):
        yield


def _skip_lazy_disable(function: Any) -> None:
    """Set on the function what torch.compiler.disable sets at the first call, so that the call does not import the
    compiler."""
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        inner.__dynamo_disable = inner
        function = inner


def _identity_decorator(function: Callable | None = None, *_: Any, **__: Any) -> Callable:
    """Replacement for a decorator of the compiler, with or without arguments."""
    return function or (lambda decorated: decorated)


def _no_op(*_: Any, **__: Any) -> None:
    pass


@contextmanager
def _patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)
