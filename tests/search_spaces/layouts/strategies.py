"""Hypothesis strategies for layouts, valid or not."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from search_spaces.layouts.axis import Kind
from search_spaces.layouts.layout import AXES, Layout


def values_of(name: str, most: int = 4) -> st.SearchStrategy[Any]:
    """Values of a layout's field; numbers up to `most`."""
    axis = AXES[name]
    if axis.kind is Kind.WORD:
        return st.sampled_from(axis.words)
    if axis.kind is Kind.SWITCH:
        return st.booleans()
    if axis.kind is Kind.SETTINGS:
        return st.sampled_from(("", "env.A=1", "-env.A launch.cpu_bind=cores"))
    numbers = st.integers(axis.least, min(axis.most, most))
    return st.none() | numbers if axis.default is None else numbers


FIELD_VALUES = {name: values_of(name) for name in AXES}
layouts = st.builds(Layout, **FIELD_VALUES)
