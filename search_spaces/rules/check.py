"""Check of a layout against its trainer's rules, whose ids are `<engine>.<rule>`. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
    yield from rule_violations(layout.engine, rules_of(layout.engine, engines), layout, model)


def rules_of(engine: str, engines: EngineRules) -> tuple[Rule, ...]:
    """Rules of an engine's layouts, in the order in which they are checked."""
    return (
        lambda layout, model: engine_mismatch(layout, tuple(engines)),
        lambda layout, model: lacking_features(engine, model),
        *engines.get(engine, ()),
    )


def first_problem(name: str, rule: Rule, model: ModelShape, layout: Layout) -> Problem | None:
    """The first violation of a rule by a layout in canonical form, under this name."""
    return next(_problems(name, rule(layout, model)), None)


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
