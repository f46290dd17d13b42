"""Searches given by a program: a file, text or a mapping, with changes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.config.loader import load_search_file, load_search_text
from orchestrator.config.spec import SearchSpec
from orchestrator.schema.search_file import SearchFile as SearchSchema
from search_spaces.errors import InputError
from search_spaces.schema.validation import sections_of

SearchFile = Path | str | Mapping[str, Any]
"""A search file's path, its YAML text (more than one line), or its content as a mapping."""


def load_search(given: SearchFile, changes: Mapping[str, Any]) -> SearchSpec:
    """Load a search with these changes. Relative paths in text and mappings start in the working directory.

    InputError carries every problem, with key, value, rule and fix, and the line in a file.
    """
    overrides = [*to_overrides(changes)]
    if isinstance(given, Mapping):
        return load_search_text(_json(given, None), Path.cwd(), overrides)
    if isinstance(given, str) and "\n" in given:
        return load_search_text(given, Path.cwd(), overrides)
    return load_search_file(Path(given), overrides)


def to_overrides(changes: Mapping[str, Any]) -> Iterator[str]:
    """Changes as `--set` overrides: each key of a section's mapping separately, other values as they are.

    A mapping without keys changes nothing in a section; elsewhere it is a value to validate.
    """
    known = {name for name, _ in sections_of(SearchSchema)}
    for section, value in changes.items():
        if isinstance(value, Mapping) and (value or section in known):
            yield from (f"{section}.{key}={_json(inner, f'{section}.{key}')}" for key, inner in value.items())
        else:
            yield f"{section}={_json(value, section)}"


@contextmanager
def without_set_location() -> Iterator[None]:
    """Context in which errors about a change do not mention `--set`, which a caller of the API did not use."""
    try:
        yield
    except InputError as error:
        raise InputError(*(replace(p, file=None) if p.file == "--set" else p for p in error.problems)) from error


def _json(value: Any, key: str | None) -> str:
    """The value as text that YAML reads."""
    try:
        return json.dumps(value, default=_path_text, indent=2)
    except (TypeError, ValueError) as error:
        rule = "a search file has mappings, lists, text, numbers, true, false and null"
        raise InputError.of("type", f"cannot be written as YAML: {error}", rule=rule, key=key) from None


def _path_text(value: Any) -> str:
    """A path as text; TypeError naming any other type."""
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    raise TypeError(f"it is of type {type(value).__name__}")
