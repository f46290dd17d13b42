"""Result of importing a training's own files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from search_spaces.errors import Problem


@dataclass(frozen=True)
class ImportedConfig:
    """Values found in a trainer's own file, by the contract's names; values not found are absent.

    `model` holds ModelShape's fields, `layout` Layout's fields, `launcher` the launcher section. With adapters, or
    where it otherwise `finetunes`, the task is a fine-tuning; `adapters` holds what is known of that section. `origins`
    say of each key of the search file (`model.num_layers`, `baseline.zero_stage`, `cluster.num_nodes`) where its value
    was read. `notes` are sentences for the user: what was not found, what was left out, and which of the trainer's
    defaults were assumed. `source` is the trainer's name where its own file was read, and `engine` the one that trials
    train with: the trainer's own where it runs trials. `left_open` are the layout's fields that another file of the
    training decides, `in_doubt` the fields that the file decides by a value that is not known, such as a variable that
    nothing sets. `changed` are the values that trials would train otherwise. `arguments` are a command's other options,
    which `trainer.arguments` takes as they are.
    """

    source: str
    model: Mapping[str, Any] = field(default_factory=dict)
    layout: Mapping[str, Any] = field(default_factory=dict)
    global_batch_size: int | None = None
    num_nodes: int | None = None
    gpus_per_node: int | None = None
    accelerator: str | None = None
    launcher: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    engine: str = "deepspeed"
    left_open: tuple[str, ...] = ()
    in_doubt: tuple[str, ...] = ()
    changed: tuple[Problem, ...] = ()
    arguments: tuple[str, ...] = ()
    adapters: Mapping[str, Any] = field(default_factory=dict)
    finetunes: bool = False

    @property
    def has_layout(self) -> bool:
        """True for a training's file: it has parallelism or batch settings, or leaves them to another file."""
        return bool(self.left_open) or not self.layout.keys() <= {"precision"}
