"""What an export makes of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ExportResult:
    """The file's content, how many trials stand in it, and how many do not, by the reason why."""

    content: bytes
    rows: int
    left_out: Mapping[str, int]
