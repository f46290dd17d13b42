"""Sampler that leaves out the values of settings that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.samplers.base import Sampler, TrialFeedback
from search_spaces.layouts.layout import Layout
from trials.analysis.setting_failures import MIN_FAILURES, SettingFailures, SettingValue
from trials.failure_policy import policy_of
from trials.trial import FailureReason


class FailingSettingsSampler(Sampler):
    """The sampler that `make` returns for the candidates without a failing setting; made anew after each such value."""

    def __init__(self, candidates: Sequence[Layout], make: Callable[[Sequence[Layout]], Sampler]):
        self._candidates = candidates
        self._make = make
        self._failing: set[SettingValue] = set()
        self._sampler = make(candidates)
        self.name = self._sampler.name

    def ask(self, count: int, history: Sequence[TrialFeedback]) -> list[Layout]:
        self._leave_out(history)
        return self._sampler.ask(count, history)

    def has_converged(self, history: Sequence[TrialFeedback]) -> bool:
        self._leave_out(history)
        return self._sampler.has_converged(history)

    def _leave_out(self, history: Sequence[TrialFeedback]) -> None:
        failing = failing_values(history)
        if failing == self._failing:
            return
        remaining = [layout for layout in self._candidates if failing.isdisjoint(layout.of_trial.by_axis.items())]
        self._sampler, self._failing = self._make(remaining), failing


def failing_values(history: Sequence[TrialFeedback]) -> set[SettingValue]:
    """Values that fail, of settings to which a failure was put down."""
    blamed = [known.layout for known in history if known.reason is FailureReason.SETTING_FAILURE]
    if not blamed:
        return set()
    failures = SettingFailures()
    for known in history:
        if _has_trained(known):
            failures.add_run(known.layout)
        elif policy_of(known.reason).may_be_setting:
            failures.add_failure(known.layout)
    for layout in MIN_FAILURES * blamed:  # the driver has seen enough attempts, of which the history tells the last
        failures.add_failure(layout)
    return {item for layout in blamed for item in failures.failing_values(layout).items()}


def _has_trained(known: TrialFeedback) -> bool:
    return known.value_or_bound is not None or policy_of(known.reason).shows_training
