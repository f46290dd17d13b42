"""Result of an export, and the answer about its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from orchestrator.config.answer import Answer


@dataclass(frozen=True)
class ExportResult:
    """The file's content, the number of trials in it, and the number of trials left out, by reason."""

    content: bytes
    rows: int
    left_out: Mapping[str, int]


class ExportAnswer(Answer):
    """Printed by export. Exit code 3 where no trial has a result."""

    schema_: Literal["parlay.export/1"] = "parlay.export/1"
    search_id: str
    format: str
    file: str
    rows: int
    left_out: Mapping[str, int]
    """Number of trials by why they are not in the file: a failure reason, `in_flight`, `suspect` or `damaged`."""
