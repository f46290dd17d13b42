"""Names of trials' runs in MLflow: `t0014 tp8 pp1 dp64 mb4 z1`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dashboards.text import cut_word
from dashboards.trial_text import layout_name
from trials.trial import Trial

_LONGEST_NAME = 250
"""Of a run, in MLflow's databases."""


def run_names(trials: Sequence[Trial]) -> dict[str, str]:
    """Names of runs by trial: the trial's name, then its layout by the axes in which it and those before it differ.

    Later trials do not change a name, so a run is named once and a name that people give it stays.
    """
    names: dict[str, str] = {}
    seen: dict[str, set[object]] = {}
    for number, trial in enumerate(trials):
        values = trial.layout.canonical().axis_values
        for axis in values.keys() - seen.keys():
            seen[axis] = {None} if number else set()
        for axis, found in seen.items():
            found.add(values.get(axis))
        varying = [axis for axis, found in seen.items() if len(found) > 1]
        names[trial.trial] = cut_word(f"{trial.trial} {layout_name(trial.layout, varying)}", _LONGEST_NAME)
    return names
