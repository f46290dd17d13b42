"""Values of settings that are read, which no search file expresses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from orchestrator.importers.option_table import DO_WITHOUT
from orchestrator.importers.settings import Settings
from search_spaces.errors import Problem

ValueRule = tuple[str, Callable[[Settings], bool], str]
"""Setting, whether a search file expresses its value, and the rule otherwise."""
ValueRules = tuple[ValueRule, ...]


def value_problems(settings: Settings, rules: ValueRules) -> Iterator[Problem]:
    """A problem for each setting with a known value that breaks its rule."""
    for name, is_supported, rule in rules:
        if settings.has(name) and not settings.is_in_doubt(name) and not is_supported(settings):
            yield settings.problem(name, rule, DO_WITHOUT)


def one_of(name: str, values: Collection[str], rule: str) -> ValueRule:
    """The rule that the setting has one of these values, in any case of letters."""
    return name, lambda settings: str(settings.value(name)).lower() in values, rule
