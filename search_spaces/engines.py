"""What each engine can run: the rules that refuse a layout, each named `<engine>.<rule>`. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces.errors import Problem
from search_spaces.layout import Layout
from search_spaces.model_shape import ModelShape


def broken_engine_rules(layout: Layout, model: ModelShape) -> Iterator[Problem]:
    """Every rule of the layout's engine that it breaks, with the numbers; `Problem.code` is the rejection id."""
    yield from ()
