"""Faults of one rank at the third training step of pretrain_gpt.py."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch

STEP = 3


def bring_about(name: str) -> None:
    """Let the fault happen in this process if it is the fault's rank."""
    from megatron.training import training

    rank, fault = FAULTS[name]
    if rank != int(os.environ["RANK"]):
        return
    train_step, steps = training.train_step, iter(range(1, 1_000_000))

    def failing_step(*arguments: Any, **options: Any) -> Any:
        if next(steps) == STEP:
            fault()
        return train_step(*arguments, **options)

    training.train_step = failing_step


def _exceed_gpu_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free.")


FAULTS: dict[str, tuple[int, Callable[[], object]]] = {
    "hang": (0, lambda: time.sleep(600)),
    "gpu_oom": (0, _exceed_gpu_memory),
    "cpu_oom": (0, lambda: torch.empty(2**50)),
    "killed": (0, lambda: os.kill(os.getpid(), signal.SIGKILL)),
}
"""Rank and effect by name."""
