"""A layout as it was run: how that ended, its runs and their software, by the trials of a search or by a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from orchestrator.recipe.read import LoadedRecipe
from orchestrator.recipe.recipe import RecordedRun
from orchestrator.replay.speed_ratio import Run
from search_spaces.layouts.layout import Layout
from trials.analysis.ranked_layout import is_suspect, runs_that_count
from trials.files.folders import read_json
from trials.trial import FailureReason, Outcome, Trial, TrialState, utc_seconds


@dataclass(frozen=True)
class MeasuredLayout:
    """Result of one layout: how it ended and, where measured, its runs."""

    trial: str
    layout: Layout
    state: TrialState
    reason: FailureReason | None = None
    runs: tuple[Run, ...] = ()
    fingerprint: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_recipe(cls, loaded: LoadedRecipe) -> Self:
        """The layout of a recipe."""
        recipe, runs = loaded.recipe, tuple(recorded_runs(loaded))
        return cls(recipe.trial, recipe.layout, TrialState.MEASURED, runs=runs, fingerprint=recipe.fingerprint)

    @classmethod
    def of_trials(cls, trials: Sequence[Trial]) -> Self:
        """Result of a layout's trials: the runs that count if it was measured, else the last trial that ended."""
        measured = [trial for trial in trials if trial.state is TrialState.MEASURED]
        if not measured:
            last = [trial for trial in trials if trial.state.is_ended][-1]
            return cls(last.trial, last.layout, last.state, last.reason)
        counted = runs_that_count(measured)
        first = counted[0].last_attempt
        ended = [run.last_attempt for run in counted if run.last_attempt is not None]
        runs = runs_of((attempt.outcome, attempt.started_at) for attempt in ended)
        fingerprint = first.outcome.fingerprint if first and first.outcome else {}
        return cls(counted[0].trial, counted[0].layout, TrialState.MEASURED, None, runs, fingerprint)


def runs_of(outcomes: Iterable[tuple[Outcome | None, float | None]]) -> tuple[Run, ...]:
    """The runs of these outcomes, each with its start in UTC seconds; those without a measurement left out."""
    return tuple(
        Run.of(outcome.metrics, outcome.step_times_s, started_s, outcome.flags)
        for outcome, started_s in outcomes
        if outcome is not None and outcome.metrics is not None
    )


def recorded_runs(loaded: LoadedRecipe) -> list[Run]:
    """Runs behind recipe.yaml, suspect ones only if there are no others."""
    outcomes = _recorded_outcomes(loaded.folder / "evidence.json")
    pairs = [(run, outcomes.get(run.trial)) for run in loaded.recipe.evidence.runs]
    unsuspicious = [(run, outcome) for run, outcome in pairs if outcome is None or not is_suspect(outcome)]
    return [_recorded_run(run, outcome) for run, outcome in unsuspicious or pairs]


def _recorded_outcomes(file: Path) -> dict[str, Outcome]:
    """Outcomes of the runs by trial; empty if they are unknown."""
    try:
        return {run["trial"]: Outcome.from_json(run["outcome"]) for run in (read_json(file) or {})["runs"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _recorded_run(run: RecordedRun, outcome: Outcome | None) -> Run:
    times = {name: getattr(run, name) for name in ("step_time_s", "step_time_low_s", "step_time_high_s")}
    if outcome is None or outcome.metrics is None:
        return Run(**times, started_s=run.started_at)
    return Run.of(replace(outcome.metrics, **times), outcome.step_times_s, run.started_at, outcome.flags)


def start_of(text: Any) -> float | None:
    """UTC seconds; None for an invalid time, which puts the run into the session of the run before it."""
    try:
        return utc_seconds(text)
    except (TypeError, ValueError):
        return None
