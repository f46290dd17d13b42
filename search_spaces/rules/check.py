"""Check of a layout against its trainer's rules, whose ids are `<engine>.<rule>`, and of engines that are compared.
Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from search_spaces.engines import ENGINE_PROFILES, OWN_ENGINES, is_emulated
from search_spaces.errors import Problem
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.rule import EngineRules, OfModel, Rule, builds_only, violations
from search_spaces.rules.trainer_rules import OWN_RULES


def engine_violations(layout: Layout, model: ModelShape, engines: EngineRules = OWN_RULES) -> Iterator[Problem]:
    """Every rule of the layout's engine that it violates, with the numbers; `Problem.code` is the rejection id.

    `engines` are those of the search's trainer; a layout for another engine violates only that rule. The layout is
    checked in canonical form: a field without effect violates no rule.
    """
    return violations(rules_of(layout.engine, engines), layout.canonical(), OfModel(model), layout.engine)


def rules_of(engine: str, engines: EngineRules) -> tuple[Rule, ...]:
    """Rules of an engine's layouts, in the order in which they are checked."""
    trainer = "Parlay's trainer" if tuple(engines) == OWN_ENGINES else "the search's trainer"
    is_known = Rule(
        ("engine",),
        lambda engine: engine not in engines,
        f"{trainer} supports {', '.join(reversed(tuple(engines)))}",
        "set engine to one of these, or launcher.kind to simulated",
        name="engine_mismatch",
    )
    return (is_known, *features_of(engine), *engines.get(engine, ()))


@cache
def features_of(engine: str) -> tuple[Rule, ...]:
    """Rules that allow only features of a model that the engine builds."""
    return builds_only(ENGINE_PROFILES[engine].model_features, f"engine {engine}")


def mixed_engines_problem(engines: Iterable[str], accelerator: str, fix: str, key: str) -> Problem | None:
    """Problem of several engines of which one is emulated on this accelerator; None where they may be compared."""
    names = sorted(set(engines))
    if len(names) < 2 or not (emulated := _emulated(names, accelerator)):
        return None
    words = f"compares {' and '.join(names)} on {accelerator}, which emulates the GPU of {' and '.join(emulated)}"
    rule = (
        "engines are compared only on the device that they are written for: on a CPU that emulates a GPU the comparison"
        " would be one of the emulation"
    )
    return Problem("emulated_engine", words, rule=rule, fix=fix, key=key, value=names)


def emulation_remark(engines: Iterable[str], accelerator: str) -> str | None:
    """Sentence on those of these engines whose device is emulated; None without one."""
    if not (emulated := _emulated(engines, accelerator)):
        return None
    return f"a CPU emulates the GPU of {' and '.join(emulated)}: measured speeds will be those of the emulation"


def _emulated(engines: Iterable[str], accelerator: str) -> list[str]:
    return [engine for engine in sorted(set(engines)) if is_emulated(engine, accelerator)]
