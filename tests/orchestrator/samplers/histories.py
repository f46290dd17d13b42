"""History of a search as samplers get it, computed anew from all its trials."""

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
    """Feedback on the layouts in the order of proposals, each once; the arguments are those of `feedback_of`."""
    by_layout: dict[str, list[Trial]] = {}
    for trial in trials:
        by_layout.setdefault(trial.layout.key, []).append(trial)
    return [feedback_of(group, objective, upper_bound, headroom) for group in by_layout.values()]
