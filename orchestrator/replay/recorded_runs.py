"""Runs behind a recipe, as its folder records them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.recipe.read import LoadedRecipe
from orchestrator.recipe.recipe import AS_WRITTEN
from orchestrator.replay.sessions import Run
from search_spaces.decoding import decode_value
from search_spaces.errors import InputError
from trials.analysis.ranked_layout import is_suspect
from trials.files.folders import read_json
from trials.trial import Outcome, utc_seconds


def recorded_runs(loaded: LoadedRecipe) -> list[Run]:
    """Runs behind recipe.yaml, suspect ones only if there are no others.

    InputError if there is none, or one without a step time.
    """
    outcomes = _recorded_outcomes(loaded.folder / "evidence.json")
    try:
        pairs = [(run, outcomes.get(run["trial"])) for run in loaded.recipe.evidence["runs"]]
        unsuspicious = [(run, outcome) for run, outcome in pairs if outcome is None or not is_suspect(outcome)]
        runs = [_recorded_run(run, outcome) for run, outcome in unsuspicious or pairs]
        if runs and all(run.step_time_s > 0 for run in runs):
            return runs
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    raise InputError.of(
        "recipe",
        "has no run with a step time",
        key="evidence.runs",
        rule="a recipe is based on at least one run",
        fix=AS_WRITTEN,
    )


def _recorded_outcomes(file: Path) -> dict[str, Outcome]:
    """Outcomes of the runs by trial; empty if they are unknown."""
    try:
        return {run["trial"]: Outcome.from_json(run["outcome"]) for run in (read_json(file) or {})["runs"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _recorded_run(run: Mapping[str, Any], outcome: Outcome | None) -> Run:
    started_s = _started_s(run["started_at"])
    ends = ("step_time_low_s", "step_time_high_s")
    times: dict[str, Any] = {name: decode_value(float | None, run.get(name), name) for name in ends}
    times["step_time_s"] = decode_value(float, run["step_time_s"], "step_time_s")
    if outcome is None or outcome.metrics is None:
        return Run(**times, started_s=started_s)
    return Run.of(replace(outcome.metrics, **times), outcome.step_times_s, started_s, outcome.flags)


def _started_s(text: Any) -> float | None:
    """UTC seconds; None for an invalid time, which puts the run into the session of the run before it."""
    try:
        return utc_seconds(text)
    except (TypeError, ValueError):
        return None
