"""A trainer's table, run backwards: the fields of a search file that its options decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.importers.settings import FieldReaders, Settings, ValueRules, read_fields
from search_spaces.errors import InputError
from search_spaces.layouts.layout import AXES
from search_spaces.model_shape import MODEL_DEFAULTS, ModelShape
from trials.trainers.table import Table

_NONE: FieldReaders = {}


@dataclass(frozen=True)
class ReadFields:
    """Fields by section of the search file, with the origin of each by its key there."""

    model: dict[str, Any]
    layout: dict[str, Any]
    top: dict[str, Any]
    origins: dict[str, str]

    def place_of(self, name: str) -> tuple[str, dict[str, Any]]:
        """The section that has a field, and its values."""
        if name in ModelShape.__dataclass_fields__:
            return "model", self.model
        return ("baseline", self.layout) if name in AXES else ("", self.top)


def read_rows(
    table: Table, keys: Settings, others: FieldReaders = _NONE, rules: ValueRules = (), has_defaults: bool = True
) -> ReadFields:
    """The fields that the table's rows read, and `others`, which several options decide and no row reads.

    A model's field is left out where it has the value that a model section has without it, and each field that no
    option decides unless the trainer's defaults count. InputError with all options that the table refuses, values that
    break `rules`, and those that a reader refuses.
    """
    readers = {row.field: row.read for row in table.rows if row.read is not None} | dict(others)
    found, problems = ReadFields({}, {}, {}, {}), [*keys.problems(rules)]
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
