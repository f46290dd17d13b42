"""Whether a trainer can run a layout: the rules that refuse it, each named `<engine>.<rule>`. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from search_spaces.errors import Problem
from search_spaces.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.trainer_rules import OWN_ENGINES, TRAINER_RULES, not_ours


def broken_engine_rules(layout: Layout, model: ModelShape, engines: tuple[str, ...] = OWN_ENGINES) -> Iterator[Problem]:
    """Every rule of the layout's engine that it breaks, with the numbers; `Problem.code` is the rejection id.

    The layout is judged in its canonical form: a field without effect breaks no rule. `engines` are those of the
    search's trainer; a layout for another one breaks that rule alone.
    """
    canonical = layout.canonical()
    rules = TRAINER_RULES[layout.engine] if layout.engine in engines else ()
    found = chain(not_ours(layout, engines), *(rule(canonical, model) for rule in rules))
    for name, message, rule, fix in found:
        yield Problem(f"{layout.engine}.{name}", message, rule=rule, fix=fix)
