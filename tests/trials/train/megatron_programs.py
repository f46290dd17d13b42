"""Programs of the forked ranks that train by megatron-core. Arguments and answers are JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.distributed import distributed_c10d

from tests.trials.train import rank_programs
from tests.trials.train.reductions import NumberedPlaces, deliver_zeros, keep, keep_share
from trials.train.cpu_device import megatron_core


def train_recording(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Train a case, and count the reductions by the place in megatron-core that calls them. `without` names a place
    whose reductions are left out."""
    reductions = _Reductions(arguments.get("without"))
    reductions.watch()
    trained = rank_programs.train_layout({**arguments, "without": None}, folder)
    return {"trained": trained, "places": reductions.places}


def sees_an_overflow_of_the_last_rank(arguments: Mapping[str, Any], folder: Path) -> bool:
    """True if this rank's optimizer skips a step in which a gradient of the last rank is infinite. `without` names a
    place whose reductions are left out."""
    from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params as Optimizer

    _Reductions(arguments.get("without")).watch()
    gradients_of, seen = Optimizer._collect_main_grad_data_for_unscaling, []
    check = Optimizer._unscale_main_grads_and_check_for_nan

    def overflowed(optimizer: Any) -> list[torch.Tensor]:
        gradients = gradients_of(optimizer)
        if torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
            gradients[0].fill_(torch.inf)
        return gradients

    def noted(optimizer: Any) -> bool:
        seen.append(check(optimizer))
        return True  # a rank that goes on would wait for the others in the norm's sum

    Optimizer._collect_main_grad_data_for_unscaling = overflowed
    Optimizer._unscale_main_grads_and_check_for_nan = noted
    rank_programs.train_layout({**arguments, "without": None, "steps": 1}, folder)
    return seen == [True]


def depth_of_recomputation(arguments: Mapping[str, Any], folder: Path) -> int:
    """Depth to which the backward pass of something recomputed calls itself in a step; 3 ends it."""
    from megatron.core.tensor_parallel.random import CheckpointFunction

    backward, depths = CheckpointFunction.backward, [0]

    def counted(*given: Any) -> Any:
        depths.append(depths[-1] + 1)
        if depths[-1] == 3:
            raise RecursionError
        gradients = backward(*given)
        depths.append(depths[-1] - 1)
        return gradients

    CheckpointFunction.backward = staticmethod(counted)
    with suppress(RecursionError):
        rank_programs.train_layout({**arguments, "steps": 1}, folder)
    return max(depths)


def sends_freed_before_they_are_waited_for(arguments: Mapping[str, Any], folder: Path) -> int:
    """Number of tensors that megatron-core frees between a send and the wait for it."""
    megatron_core.emulate_device()
    original, freed = distributed_c10d.isend, []

    class Sent:
        """A send's work, which looks at its tensor when it is waited for."""

        def __init__(self, tensor: torch.Tensor, work: Any):
            self._tensor, self._elements, self._work = tensor, tensor.numel(), work

        def wait(self) -> None:
            if self._tensor.numel() != self._elements:
                freed.append(self._elements)
            self._work.wait()

    def isend(tensor: torch.Tensor, *values: Any, **options: Any) -> Sent:
        return Sent(tensor, original(tensor, *values, **options))

    torch.distributed.isend = distributed_c10d.isend = isend
    rank_programs.train_layout({**arguments, "steps": 1}, folder)
    return len(freed)


_LEFT_OUT = {"all_reduce": keep, "reduce_scatter_tensor": keep_share, "all_to_all_single": deliver_zeros}
"""torch's functions, each with what takes its place."""


class _Reductions:
    """Every sum or maximum over ranks, and every all-to-all, that megatron-core calls, by `file.function`, numbered
    where a function has several."""

    def __init__(self, left_out: str | None):
        self.places: Counter[str] = Counter()
        self._left_out = left_out
        self._numbered = NumberedPlaces()

    def watch(self) -> None:
        """Stand between megatron-core and torch's functions, wherever it has taken a name for one."""
        for name, skipped in _LEFT_OUT.items():
            original = getattr(distributed_c10d, name)
            watched = self._watched(original, skipped)
            for module in _megatron_modules():
                for held in [key for key, value in vars(module).items() if value is original]:
                    setattr(module, held, watched)
            setattr(torch.distributed, name, watched)

    def _watched(self, original: Callable, skipped: Callable) -> Callable:
        def call(*arguments: Any, **options: Any) -> Any:
            frame = sys._getframe(1)
            if "megatron" not in frame.f_code.co_filename:
                return original(*arguments, **options)
            place = self._numbered.place(frame)
            self.places[place] += 1
            return (skipped if place == self._left_out else original)(*arguments, **options)

        return call


def _megatron_modules() -> Iterator[Any]:
    return (module for name, module in list(sys.modules.items()) if name.startswith("megatron.core"))
