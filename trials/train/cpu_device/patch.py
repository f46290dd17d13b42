"""Patch: a change that lets a CPU do what a library expects of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Patch:
    """A change by `name`; `replaces` names what upstream does, with its file and function."""

    name: str
    replaces: str
    apply: Callable[[], None]


_applied: set[str] = set()


def apply_all(patches: Sequence[Patch]) -> None:
    """Apply each patch once in this process. RuntimeError where torch sees a GPU, which would then not be used."""
    if torch.cuda.is_available():
        raise RuntimeError("torch sees a GPU: a trial on a CPU needs CUDA_VISIBLE_DEVICES='' here")
    for patch in patches:
        if patch.name not in _applied:
            patch.apply()
            _applied.add(patch.name)
