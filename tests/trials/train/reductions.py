"""Places in code that reduce over ranks, and reductions that do nothing."""

from __future__ import annotations

from pathlib import Path
from types import FrameType
from typing import Any

import torch


class NumberedPlaces:
    """Places of calls as `file.function`, the second and later lines of a function numbered in the order of their first
    call."""

    def __init__(self) -> None:
        self._lines: dict[str, list[int]] = {}

    def place(self, frame: FrameType) -> str:
        name = f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"
        lines = self._lines.setdefault(name, [])
        if frame.f_lineno not in lines:
            lines.append(frame.f_lineno)
        number = lines.index(frame.f_lineno)
        return name if number == 0 else f"{name}#{number + 1}"


class _Done:
    """A finished `dist.Work`."""

    def wait(self) -> None:
        pass


def keep(tensor: torch.Tensor, *_: Any, **__: Any) -> _Done:
    """Leave a rank its own part of a sum."""
    return _Done()


def deliver_zeros(output: torch.Tensor, *_: Any, **__: Any) -> _Done:
    """An all-to-all that loses what the others send, and this rank's own part."""
    output.zero_()
    return _Done()


def keep_share(output: torch.Tensor, input: torch.Tensor, *_: Any, group: Any, **__: Any) -> _Done:
    """This rank's share of its own part of the sum."""
    output.copy_(input.chunk(torch.distributed.get_world_size(group))[torch.distributed.get_rank(group)])
    return _Done()
