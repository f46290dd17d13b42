"""Short names of layouts for tables, figures and run names: `tp8 pp1 dp64 mb4 z1`. Standard library only."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from search_spaces.layouts.axis import Kind
from search_spaces.layouts.layout import AXES, DEGREES, LAYOUT_FIELDS, SETTINGS, Layout
from search_spaces.layouts.settings import described

_ALWAYS = (*DEGREES.values(), "micro_batch_size")
_FOLLOWS = ("grad_accum_steps", SETTINGS)
"""Fields without a word of their own: of a global batch one follows, and settings are named one by one."""


def varying_axes(layouts: Sequence[Layout]) -> tuple[str, ...]:
    """Axes in which these layouts differ, by the names of `Layout.axis_values`."""
    values = [layout.canonical().axis_values for layout in layouts]
    names = dict.fromkeys(name for of_layout in values for name in of_layout)
    return tuple(name for name in names if len({of_layout.get(name) for of_layout in values}) > 1)


def short_name(layout: Layout, varying: Collection[str] = ()) -> str:
    """Name of a layout by the keys of its axes: the degrees, the micro-batch, ZeRO, and the axes of `varying`.

    A switch or word that has its default `none` or off is left out. Two layouts of one global batch that differ in
    `varying` alone have different names.
    """
    return " ".join(filter(None, short_name_words(layout, varying)))


def short_name_words(layout: Layout, varying: Collection[str] = ()) -> list[str]:
    """Words of the short name, each at the place of its axis; "" for an axis that is left out."""
    canonical, parts = layout.canonical(), layout.key_parts
    words = [parts[name] if name in parts and _is_named(canonical, name, varying) else "" for name in LAYOUT_FIELDS]
    settings = layout.of_trial.by_axis
    return [*words, *(described(name, settings.get(name)) for name in varying if name not in AXES)]


def _is_named(layout: Layout, name: str, varying: Collection[str]) -> bool:
    if name in _ALWAYS or name in _FOLLOWS:
        return name in _ALWAYS
    value = getattr(layout, name)
    if name == "zero_stage":
        return value > 0 or name in varying
    is_off = AXES[name].kind in (Kind.SWITCH, Kind.WORD) and value in (False, "none")
    return name in varying and not is_off
