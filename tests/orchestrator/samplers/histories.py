"""The history of a search as samplers learn it, worked out anew from all its trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.samplers.base import TrialFeedback, feedback_of
from search_spaces.hardware.memory_headroom import MemoryHeadroom
from trials.trial import Trial


def history_of(
    trials: Sequence[Trial],
    objective: Callable[[Trial], float],
    upper_bound: Callable[[Trial], float | None] = lambda trial: None,
    headroom: MemoryHeadroom | None = None,
) -> list[TrialFeedback]:
    """The layouts in the order in which they were proposed, each once; the arguments are those of `told_of`."""
    by_layout: dict[str, list[Trial]] = {}
    for trial in trials:
        by_layout.setdefault(trial.layout.key, []).append(trial)
    return [feedback_of(group, objective, upper_bound, headroom) for group in by_layout.values()]
