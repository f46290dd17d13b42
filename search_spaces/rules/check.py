"""Check of a layout against its trainer's rules, whose ids are `<engine>.<rule>`. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from search_spaces.errors import Problem
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.engine_rules import EngineRules, Rule, RuleViolation, lacking_features
from search_spaces.rules.trainer_rules import OWN_RULES, engine_mismatch


def engine_violations(layout: Layout, model: ModelShape, engines: EngineRules = OWN_RULES) -> Iterator[Problem]:
    """Every rule of the layout's engine that it violates, with the numbers; `Problem.code` is the rejection id.

    `engines` are those of the search's trainer; a layout for another engine violates only that rule.
    """
    canonical = layout.canonical()
    yield from chain.from_iterable(check(canonical) for check in engine_checks(layout.engine, model, engines))


def engine_checks(
    engine: str, model: ModelShape, engines: EngineRules
) -> Iterator[Callable[[Layout], Iterator[Problem]]]:
    """The checks of `engine_violations`, in their order, each of a canonical layout for this engine."""
    yield lambda layout: _problems(engine, engine_mismatch(layout, tuple(engines)))
    yield lambda layout: feature_violations(engine, engine, model)
    for rule in engines.get(engine, ()):
        yield lambda layout, rule=rule: _problems(engine, rule(layout, model))


def feature_violations(name: str, engine: str, model: ModelShape) -> Iterator[Problem]:
    """Every feature of the model that the engine does not build, under this name."""
    yield from _problems(name, lacking_features(engine, model))


def rule_violations(name: str, rules: Sequence[Rule], layout: Layout, model: ModelShape) -> Iterator[Problem]:
    """Every one of these rules that the layout violates, under this name.

    The layout is checked in canonical form: a field without effect violates no rule.
    """
    canonical = layout.canonical()
    yield from _problems(name, chain.from_iterable(rule(canonical, model) for rule in rules))


def _problems(name: str, found: Iterable[RuleViolation]) -> Iterator[Problem]:
    for violation in found:
        yield Problem(f"{name}.{violation.name}", violation.message, rule=violation.rule, fix=violation.fix)
