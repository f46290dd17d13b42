"""Result of an export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ExportResult:
    """The file's content, the number of trials in it, and the number of trials left out, by reason."""

    content: bytes
    rows: int
    left_out: Mapping[str, int]
