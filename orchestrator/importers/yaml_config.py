"""A trainer's YAML configuration as settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.importers.option_table import OptionTable
from orchestrator.importers.settings import Settings, flat
from search_spaces.errors import InputError
from search_spaces.schema.yaml_document import Document, KeyPath, parse_document


def yaml_document(text: str) -> Document:
    """The YAML mapping in this text; errors name no file, which the caller fills in."""
    return parse_document(text.encode(), None, Path())


def document_settings(document: Document, table: OptionTable, paths: Mapping[str, KeyPath] | None = None) -> Settings:
    """The settings of a document. `paths` tells where its sections are, by the names of the table; absent ones are at
    the top."""
    places = {name: (name,) for name in document.data} if paths is None else paths

    def line(name: str) -> int | None:
        section, *inner = name.split(".")
        return document.location((*places[section], *inner)).line

    data: dict[str, Any] = {name: document.value(path) for name, path in places.items()}
    return Settings(flat(data, table, line), table)


SWITCH = {"true": True, "false": False}


def chosen(settings: Settings, name: str, values: Mapping[str, Any], default: Any) -> Any:
    """Value that the setting's word stands for, `default` where it is absent.

    Words are in lower case. InputError for a word without meaning.
    """
    value = settings.value(name)
    if value is None:
        return default
    if (word := str(value).lower()) not in values:
        raise InputError(settings.problem(name, rule="one of " + ", ".join(values)))
    return values[word]


def counted(settings: Settings, name: str, default: int | None) -> int | None:
    """The setting's whole number, `default` where it is absent."""
    return settings.count(name) or default
