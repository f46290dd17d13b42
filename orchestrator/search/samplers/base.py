"""Interface of samplers. Candidates come from our own enumeration, so that no invalid layout can be proposed."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from trials.analysis.ranked_layout import highest_peak_gib, runs_that_count
from trials.analysis.setting_failures import SettingValue
from trials.trial import FailureReason, Trial, TrialState


@dataclass(frozen=True)
class TrialFeedback:
    """Feedback to a sampler about one layout.

    `value` is the objective, larger is better. An ended layout has a value or a reason; one in flight has neither and
    must not be proposed again. `upper_bound` limits the value of a layout that was pruned or ran out of time.
    `peak_memory_gib` is that of the fullest rank, where measured.

    A measured layout that leaves less free memory than the search asks for cannot be the best. It is reported as out of
    memory, and the value that it reached is its `unfit_value`. `watts_per_gpu` is the mean draw of a GPU where it was
    measured.
    """

    layout: Layout
    value: float | None = None
    reason: FailureReason | None = None
    upper_bound: float | None = None
    peak_memory_gib: float | None = None
    unfit_value: float | None = None
    watts_per_gpu: float | None = None

    @property
    def observed_value(self) -> float | None:
        """Value or upper bound, even of a layout that needs too much memory; None if neither is known."""
        return self.value_or_bound if self.unfit_value is None else self.unfit_value

    @property
    def value_or_bound(self) -> float | None:
        """Value, or the upper bound, which is slightly above the true value; None if neither is known."""
        return self.upper_bound if self.value is None else self.value

    @property
    def is_ended(self) -> bool:
        return self.value is not None or self.reason is not None


class Sampler(ABC):
    """Proposes layouts from a closed set of candidates. Single-threaded; holds no state that a crash could lose.

    Everything known is passed in, in the order of proposals: a fresh sampler with the same history continues as the old
    one would. A failure is passed as its reason, never as a number; pruned layouts and those out of time have an upper
    bound.
    """

    name: str

    @abstractmethod
    def ask(self, count: int, history: Sequence[TrialFeedback]) -> list[Layout]:
        """Return up to `count` different candidates, none of them in `history`; [] when none is left."""

    def has_converged(self, history: Sequence[TrialFeedback]) -> bool:
        """True if the remaining candidates are unlikely to be worth a trial. False by default."""
        return False


class GridSampler(Sampler):
    """Proposes the candidates in the given order."""

    name = "grid"

    def __init__(self, candidates: Sequence[Layout]):
        self._candidates = distinct(candidates)

    def ask(self, count: int, history: Sequence[TrialFeedback]) -> list[Layout]:
        return list(untried(self._candidates, history).values())[:count]


class RandomSampler(GridSampler):
    """Proposes the candidates in a random order set by the seed alone."""

    name = "random"

    def __init__(self, candidates: Sequence[Layout], seed: int):
        shuffled = sorted(candidates, key=lambda layout: layout.key)
        random.Random(seed).shuffle(shuffled)
        super().__init__(shuffled)


class PairedSampler(Sampler):
    """Proposes each layout of another sampler with the search's own software and with `software`, one after the other:
    A B B A. A layout that was tried with one is tried with the other first, whatever has happened in between."""

    name = "paired"

    def __init__(self, layouts: Sampler, software: Mapping[str, str], count: int):
        self._layouts = layouts
        self._software = software
        self._count = count

    def ask(self, count: int, history: Sequence[TrialFeedback]) -> list[Layout]:
        tried = {feedback.layout.key for feedback in history}
        partners = (self._partner(feedback.layout) for feedback in history)
        if missing := next((layout for layout in partners if layout.key not in tried), None):
            return [missing]
        own = {layout.key: layout for feedback in history if (layout := feedback.layout.with_software({}))}
        if len(own) >= self._count:
            return []
        following = self._layouts.ask(1, [TrialFeedback(layout) for layout in own.values()])
        is_even = len(own) % 2 == 0
        return following if is_even else [layout.with_software(self._software) for layout in following]

    def _partner(self, layout: Layout) -> Layout:
        return layout.with_software({} if layout.of_trial.software else self._software)


def without(failing: frozenset[SettingValue], candidates: Sequence[Layout]) -> Sequence[Layout]:
    """The candidates without these values of settings, which fail."""
    return [layout for layout in candidates if failing.isdisjoint(layout.of_trial.by_axis.items())]


def distinct(candidates: Sequence[Layout]) -> dict[str, Layout]:
    """Candidates by layout key, in the given order; the first of those with the same key."""
    found: dict[str, Layout] = {}
    for layout in candidates:
        found.setdefault(layout.key, layout)
    return found


def untried(candidates: Mapping[str, Layout], history: Sequence[TrialFeedback]) -> dict[str, Layout]:
    """Candidates by layout key that the history does not name, in their order."""
    tried = {feedback.layout.key for feedback in history}
    return {key: layout for key, layout in candidates.items() if key not in tried}


def feedback_of(
    trials: Sequence[Trial],
    objective: Callable[[Trial], float],
    upper_bound: Callable[[Trial], float | None],
    headroom: MemoryHeadroom | None,
) -> TrialFeedback:
    """Feedback on the layout whose trials these are; the median of the runs that count.

    `objective` maps a measured trial to its value, larger is better; `upper_bound` maps any other to its bound;
    `headroom` is the memory that has to stay free.
    """
    layout = trials[0].layout
    measured = [trial for trial in trials if trial.state is TrialState.MEASURED]
    if measured:
        runs = runs_that_count(measured)
        value = median(map(objective, runs))
        known = TrialFeedback(layout, peak_memory_gib=highest_peak_gib(runs), watts_per_gpu=_watts_per_gpu(runs))
        if headroom is not None and not headroom.is_satisfied(known.peak_memory_gib):
            return replace(known, reason=FailureReason.GPU_OOM, unfit_value=value)
        return replace(known, value=value)
    if all(trial.state.is_ended for trial in trials):
        return TrialFeedback(layout, reason=trials[0].reason, upper_bound=upper_bound(trials[0]))
    return TrialFeedback(layout)


def _watts_per_gpu(runs: Sequence[Trial]) -> float | None:
    """Mean draw of a GPU in the measured steps, the median over the runs; None where their energy is unknown."""
    measurements = [run.measured for run in runs if run.measured is not None]
    known = [m.joules_per_token * m.tokens_per_sec_per_gpu for m in measurements if m.joules_per_token is not None]
    return median(known) if known else None
