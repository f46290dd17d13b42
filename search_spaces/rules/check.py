"""Check of a layout against its trainer's rules, whose ids are `<engine>.<rule>`. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from search_spaces.engines import OWN_ENGINES
from search_spaces.errors import Problem
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.engine_rules import RuleViolation
from search_spaces.rules.trainer_rules import BRIDGE_RULES, TRAINER_RULES, engine_mismatch


def engine_violations(layout: Layout, model: ModelShape, engines: tuple[str, ...] = OWN_ENGINES) -> Iterator[Problem]:
    """Every rule of the layout's engine that it violates, with the numbers; `Problem.code` is the rejection id.

    The layout is checked in canonical form: a field without effect violates no rule. `engines` are those of the
    search's trainer; a layout for another engine violates only that rule.
    """
    canonical = layout.canonical()
    rules = TRAINER_RULES[layout.engine] if layout.engine in engines else ()
    found = chain(engine_mismatch(layout, engines), *(rule(canonical, model) for rule in rules))
    yield from _problems(layout.engine, found)


def bridge_violations(layout: Layout, model: ModelShape) -> Iterator[Problem]:
    """Every rule that a Megatron-LM layout violates when Megatron-Bridge runs it."""
    canonical = layout.canonical()
    yield from _problems("megatron-bridge", chain.from_iterable(rule(canonical, model) for rule in BRIDGE_RULES))


def _problems(engine: str, found: Iterable[RuleViolation]) -> Iterator[Problem]:
    for violation in found:
        yield Problem(f"{engine}.{violation.name}", violation.message, rule=violation.rule, fix=violation.fix)
