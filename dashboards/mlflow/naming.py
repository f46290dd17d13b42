"""Names in MLflow: of trials' runs (`t0014 tp8 pp1 dp64 mb4 z1`), and keys of metrics and parameters. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from dashboards.text import cut_word
from dashboards.trial_text import layout_name
from search_spaces.layouts.layout import Layout
from trials.trial import Trial

LONGEST_KEY = 250
"""Characters of the key of a metric, a parameter or a tag: longer ones are cut."""
_LONGEST_NAME = 250
"""Characters of the name of a run in MLflow's databases."""


def run_names(trials: Sequence[Trial]) -> dict[str, str]:
    """Names of runs by trial: the trial's name, then its layout by the axes in which it and those before it differ.

    Later trials do not change a name, so a run is named once and a name that people give it stays.
    """
    names: dict[str, str] = {}
    seen: dict[str, set[object]] = {}
    for number, trial in enumerate(trials):
        values = _axis_values(trial.layout)
        for axis in values.keys() - seen.keys():
            seen[axis] = {None} if number else set()
        for axis, found in seen.items():
            found.add(values.get(axis))
        varying = [axis for axis, found in seen.items() if len(found) > 1]
        names[trial.trial] = cut_word(f"{trial.trial} {layout_name(trial.layout, varying)}", _LONGEST_NAME)
    return names


@lru_cache(maxsize=4096)
def _axis_values(layout: Layout) -> Mapping[str, object]:
    """Of many trials most are named again with each new one."""
    return layout.canonical().axis_values


def flat_items(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings, with keys joined by dots; None is omitted."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from flat_items(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value


def mlflow_key(name: str) -> str:
    """Name restricted to the characters that every MLflow version allows, and that is not a path."""
    allowed = "".join(c if (c.isalnum() and c.isascii()) or c in "_-. " else "_" for c in name)
    return ("_" + allowed[1:] if allowed.startswith(".") else allowed)[:LONGEST_KEY]
