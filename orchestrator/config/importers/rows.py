"""A trainer's table, run backwards: the fields of a search file that its options decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.config.importers.batch import complete_batch
from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.settings import FieldReaders, FileSettings, ValueRules, read_fields
from search_spaces.adapters import Adapters
from search_spaces.errors import InputError
from search_spaces.layouts.layout import AXES
from search_spaces.model_shape import MODEL_DEFAULTS, ModelShape
from trials.trainers.table import Table

_NONE: FieldReaders = {}
_OF_THE_CLUSTER = ("num_nodes", "gpus_per_node", "accelerator")
_FACTORS = "micro-batch x accumulation x data-parallel ranks"


@dataclass(frozen=True)
class ReadFields:
    """Fields by section of the search file, with the origin of each by its key there."""

    model: dict[str, Any] = field(default_factory=dict)
    layout: dict[str, Any] = field(default_factory=dict)
    adapters: dict[str, Any] = field(default_factory=dict)
    cluster: dict[str, Any] = field(default_factory=dict)
    top: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def place_of(self, name: str) -> tuple[str, dict[str, Any]]:
        """The section that has a field, and its values."""
        if name in ModelShape.__dataclass_fields__:
            return "model", self.model
        if name in Adapters.__dataclass_fields__:
            return "adapters", self.adapters
        if name in _OF_THE_CLUSTER:
            return "cluster", self.cluster
        return ("baseline", self.layout) if name in AXES else ("", self.top)

    def complete(self, keys: FileSettings, batch_origin: str = _FACTORS) -> None:
        """Add what follows from batch and ranks, as `complete_batch` does; `batch_origin` is that of a global batch
        which no option says."""
        nodes, gpus = self.cluster.get("num_nodes"), self.cluster.get("gpus_per_node")
        batch = complete_batch(self.layout, self.top.get("global_batch_size"), nodes, gpus, keys.in_doubt)
        if batch is not None:
            self.top["global_batch_size"] = batch
            self.origins.setdefault("global_batch_size", batch_origin)

    def imported(self, source: str, keys: FileSettings, notes: list[str], **others: Any) -> ImportedConfig:
        """The fields as the import of a file. `notes` follow those of the readers; `others` are other fields of it."""
        return ImportedConfig(
            source,
            self.model,
            self.layout,
            self.top.get("global_batch_size"),
            **self.cluster,
            adapters=self.adapters,
            origins=self.origins,
            notes=tuple(dict.fromkeys([*keys.notes, *notes])),
            in_doubt=tuple(keys.in_doubt),
            **others,
        )


def read_rows(
    table: Table, keys: FileSettings, others: FieldReaders = _NONE, rules: ValueRules = (), has_defaults: bool = True
) -> ReadFields:
    """The fields that the table's rows read, and `others`, which several options decide and no row reads.

    A model's field is left out where it has the value that a model section has without it, and each field that no
    option decides unless the trainer's defaults count, whose release is noted. InputError with all options that the
    table refuses, values that break `rules`, and those that a reader refuses.
    """
    readers = {row.field: row.read for row in table.rows if row.read is not None} | dict(others)
    found, problems = ReadFields(), [*keys.problems(rules)]
    for name, read in readers.items():
        section, of_section = found.place_of(name)
        try:
            values, origins = read_fields(keys, section, {name: read})
        except InputError as error:
            problems += error.problems
        else:
            if has_defaults or f"{table.trainer}'s default" not in origins.values():
                of_section.update(values)
                found.origins.update(origins)
    if problems:
        raise InputError(*{(problem.key, problem.rule): problem for problem in problems}.values())
    if f"{table.trainer}'s default" in found.origins.values():
        keys.notes.append(f"Defaults are those of {table.trainer} {table.release}.")
    for name in [name for name in found.model if found.model[name] == _usual(name, found.model)]:
        del found.model[name]
    return found


def _usual(name: str, model: Mapping[str, Any]) -> Any:
    """The value of a field that a model section does not need to say; a unique object without one."""
    if name == "linear_biases":
        return model.get("norm") == "layernorm"
    if name == "activation":
        return "silu" if model.get("gated_mlp") else "gelu"
    if name == "attention_head_size" and model.get("hidden_size") and model.get("num_attention_heads"):
        is_latent = model.get("key_value_latent_size") is not None
        return _NO_VALUE if is_latent else model["hidden_size"] / model["num_attention_heads"]
    if name == "rotary_base" and model.get("position_embedding") == "learned":
        return model[name]
    return MODEL_DEFAULTS.get(name, _NO_VALUE)


_NO_VALUE = object()
