"""What a reader of somebody's training files found in them. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ImportedConfig:
    """The facts a trainer's own file states, in the contract's names; what it does not state is absent.

    `model` holds ModelShape's fields, `layout` Layout's fields. `notes` are whole sentences for the user: what was
    not found, what could not be read, and which of the trainer's defaults were taken.
    """

    source: str
    model: Mapping[str, Any] = field(default_factory=dict)
    layout: Mapping[str, Any] = field(default_factory=dict)
    global_batch_size: int | None = None
    num_nodes: int | None = None
    gpus_per_node: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def has_layout(self) -> bool:
        """Whether it says how a training is laid out over ranks, and not only its arithmetic."""
        return not self.layout.keys() <= {"precision"}
