"""Checks that a reader of configurations keeps to its table of keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest
import yaml

from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.option_table import Handling, OptionTable
from orchestrator.importers.settings import Settings
from search_spaces.errors import InputError

Reader = Callable[[str], ImportedConfig]
VALUE = 17
"""A value that no key has as its neutral one."""


def with_key(base: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """The configuration with this value at the dotted key."""
    section, _, inner = name.partition(".")
    return {**base, section: with_key(base.get(section) or {}, inner, value) if inner else value}


def with_keys(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with these values at the dotted keys."""
    config = dict(base)
    for name, value in values.items():
        config = with_key(config, name, value)
    return config


def keys_with(table: OptionTable, handling: Handling) -> list[str]:
    return [name for name, group in table.group_of.items() if group.handling is handling]


def require_table(
    read: Reader,
    table: OptionTable,
    base: Mapping[str, Any],
    others: Sequence[Mapping[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    replaced: Collection[str] | None = None,
) -> None:
    """The reader handles every key as the table says; `base` and `others` are configurations that together have all
    keys that it reads. Of a template those that are noted otherwise stay, but for the `replaced` ones."""
    require_one_handling_of_each_key(table)
    require_refusals(read, keys_with(table, Handling.REFUSED), base)
    noted = {*keys_with(table, Handling.NOTED)}
    require_notes(read, noted if replaced is None else noted & {*replaced}, base)
    require_no_effect(read, {*()} if replaced is None else noted - {*replaced}, base)
    require_no_effect(read, keys_with(table, Handling.NO_EFFECT), base)
    require_all_read(read, table, [base, *others], monkeypatch)


def require_one_handling_of_each_key(table: OptionTable) -> None:
    words = [word.rstrip("=") for group in table.groups for word in group.names.split()]
    assert len(words) == len(table.group_of)
    assert table.neutral.keys() <= table.group_of.keys()
    assert all(group.reason for group in table.groups if group.handling is not Handling.READ)


def require_refusals(read: Reader, names: Collection[str], base: Mapping[str, Any]) -> None:
    for name in names:
        with pytest.raises(InputError) as refused:
            read(yaml.safe_dump(with_key(base, name, VALUE)))
        assert [problem.key for problem in refused.value.problems] == [name]


def require_notes(read: Reader, names: Collection[str], base: Mapping[str, Any]) -> None:
    before = read(yaml.safe_dump(dict(base)))
    for name in names:
        found = read(yaml.safe_dump(with_key(base, name, VALUE)))
        assert any(note.startswith(f"{name} was left out: ") for note in found.notes), name
        assert (found.model, found.layout) == (before.model, before.layout)


def require_no_effect(read: Reader, names: Collection[str], base: Mapping[str, Any]) -> None:
    config = with_keys(base, dict.fromkeys(names, VALUE))
    found, before = read(yaml.safe_dump(config, sort_keys=False)), read(yaml.safe_dump(dict(base), sort_keys=False))
    assert (found.model, found.layout, found.notes) == (before.model, before.layout, before.notes)


def require_all_read(
    read: Reader, table: OptionTable, bases: list[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every key that is read is asked for in one of these configurations."""
    asked: set[str] = set()
    for method in (Settings.has, Settings.value, Settings.count):

        def recording(settings: Settings, *names: str, method: Callable[..., Any] = method) -> Any:
            asked.update(names)
            return method(settings, *names)

        monkeypatch.setattr(Settings, method.__name__, recording)
    for base in bases:
        read(yaml.safe_dump(dict(base)))
    assert {*keys_with(table, Handling.READ)} <= asked
