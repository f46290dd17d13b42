"""Values of settings that are read, which no search file expresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from orchestrator.importers.option_table import DO_WITHOUT
from orchestrator.importers.settings import Settings
from search_spaces.errors import Problem

ValueRules = tuple[tuple[str, Callable[[Settings], bool], str], ...]
"""Setting, whether a search file expresses its value, and the rule otherwise."""


def value_problems(settings: Settings, rules: ValueRules) -> Iterator[Problem]:
    """A problem for each setting with a known value that breaks its rule."""
    for name, is_supported, rule in rules:
        if settings.has(name) and not settings.is_in_doubt(name) and not is_supported(settings):
            yield settings.problem(name, rule, DO_WITHOUT)


def is_one_of(name: str, *values: str) -> Callable[[Settings], bool]:
    """True if the setting has one of these values, in any case of letters."""
    return lambda settings: str(settings.value(name)).lower() in values
