"""A trainer's YAML configuration as settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.config.importers.settings import FileSettings, flat
from search_spaces.schema.yaml_document import Document, KeyPath, parse_document
from trials.trainers.table import Table


def yaml_document(text: str) -> Document:
    """The YAML mapping in this text; errors name no file, which the caller fills in."""
    return parse_document(text.encode(), None, Path())


def document_settings(document: Document, table: Table, paths: Mapping[str, KeyPath] | None = None) -> FileSettings:
    """The settings of a document. `paths` tells where its sections are, by the names of the table; absent ones are at
    the top."""
    places = {name: (name,) for name in document.data} if paths is None else paths

    def line(name: str) -> int | None:
        section, *inner = name.split(".")
        return document.location(places.get(name) or (*places.get(section, (section,)), *inner)).line

    data: dict[str, Any] = {name: document.value(path) for name, path in places.items()}
    return FileSettings(flat(data, table, line), table)
