"""Sampler: which layouts to try next. The candidates are our own enumeration, so nothing illegal can be proposed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from trials.analysis.ranking import highest_peak_gib, runs_that_count
from trials.trial import FailureReason, Trial, TrialState


@dataclass(frozen=True)
class TrialFeedback:
    """What a sampler may learn from one layout. `value` is the objective, larger is better; None where there is none.

    An ended layout has a value or a reason. One in flight has neither: it must not be proposed again. `at_most` is what
    a layout cannot have exceeded that was pruned, and ended itself because that is below the best, or that ran out
    of time. `peak_memory_gib` is that of the fullest rank, where it was measured. A layout that was measured and leaves
    less memory than the search asks for cannot be the best: it is told as one that ran out of memory, as it would have
    with that much less, and what it reached is its `unfit_value`.
    """

    layout: Layout
    value: float | None = None
    reason: FailureReason | None = None
    upper_bound: float | None = None
    peak_memory_gib: float | None = None
    unfit_value: float | None = None

    @property
    def observed_value(self) -> float | None:
        """How fast it is, or was at most, whatever else is wrong with it; None where nobody knows."""
        return self.value_or_bound if self.unfit_value is None else self.unfit_value

    @property
    def value_or_bound(self) -> float | None:
        """The value, or what the layout came to at most, a little above what it had; None where neither is known."""
        return self.upper_bound if self.value is None else self.value

    @property
    def is_ended(self) -> bool:
        return self.value is not None or self.reason is not None


class Sampler(ABC):
    """Proposes layouts from a closed set of candidates. One thread at a time; keeps nothing that a crash could lose.

    Everything known is passed in, in the order it was proposed: a fresh sampler given the same history goes on as the
    old one would. Failures are told as failures with their reason, never as a number; only of a layout that was
    pruned or ran out of time is an upper bound known beside.
    """

    name: str

    @abstractmethod
    def ask(self, count: int, history: Sequence[TrialFeedback]) -> list[Layout]:
        """Up to `count` candidates, all different, none whose key is in `history`; [] when none is left."""

    def has_converged(self, history: Sequence[TrialFeedback]) -> bool:
        """Whether what is left promises too little to be worth its trial; never, by default."""
        return False


def distinct(candidates: Sequence[Layout]) -> dict[str, Layout]:
    """The candidates by layout key, in the order given; of several with one key the first."""
    found: dict[str, Layout] = {}
    for layout in candidates:
        found.setdefault(layout.key, layout)
    return found


def untried(candidates: Mapping[str, Layout], history: Sequence[TrialFeedback]) -> dict[str, Layout]:
    """The candidates by layout key, in their order, without those that the history names."""
    tried = {told.layout.key for told in history}
    return {key: layout for key, layout in candidates.items() if key not in tried}


def feedback_of(
    trials: Sequence[Trial],
    objective: Callable[[Trial], float],
    upper_bound: Callable[[Trial], float | None],
    headroom: MemoryHeadroom | None,
) -> TrialFeedback:
    """The layout of which these are all trials, as a sampler learns it; of several runs that count the median is told.

    `objective` maps a measured trial to its value, larger is better, `upper_bound` another one to what it reaches at
    most; `headroom` is the memory that has to stay free.
    """
    layout = trials[0].layout
    measured = [trial for trial in trials if trial.state is TrialState.MEASURED]
    if measured:
        runs = runs_that_count(measured)
        value, peak_gib = median(map(objective, runs)), highest_peak_gib(runs)
        if headroom is not None and not headroom.is_satisfied(peak_gib):
            reason = FailureReason.GPU_OOM
            return TrialFeedback(layout, reason=reason, peak_memory_gib=peak_gib, unfit_value=value)
        return TrialFeedback(layout, value=value, peak_memory_gib=peak_gib)
    if all(trial.state.is_ended for trial in trials):
        return TrialFeedback(layout, reason=trials[0].reason, upper_bound=upper_bound(trials[0]))
    return TrialFeedback(layout)
