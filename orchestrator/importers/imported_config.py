"""Result of importing a training's own files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ImportedConfig:
    """Values found in a trainer's own file, by the contract's names; values not found are absent.

    `model` holds ModelShape's fields, `layout` Layout's fields. `notes` are sentences for the user: what was not found,
    what could not be read, and which of the trainer's defaults were assumed. `source` is the trainer's name where a
    trainer's script was read, and `nearest_engine` the engine of Parlay's trainer for its layout.
    """

    source: str
    model: Mapping[str, Any] = field(default_factory=dict)
    layout: Mapping[str, Any] = field(default_factory=dict)
    global_batch_size: int | None = None
    num_nodes: int | None = None
    gpus_per_node: int | None = None
    notes: tuple[str, ...] = ()
    nearest_engine: str = "deepspeed"

    @property
    def has_layout(self) -> bool:
        """True if the file has parallelism or batch settings, and not only a precision."""
        return not self.layout.keys() <= {"precision"}
