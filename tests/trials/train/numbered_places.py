"""Names for places in code that call something."""

from __future__ import annotations

from pathlib import Path
from types import FrameType


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
