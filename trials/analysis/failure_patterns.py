"""Axis values that set the layouts that failed for a reason apart from those that ran. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from search_spaces.layouts.axis import Kind
from search_spaces.layouts.layout import AXES, DERIVED
from search_spaces.layouts.short_name import varying_axes
from trials.analysis.verdict import has_failed
from trials.files.text import last_line
from trials.trial import FailureReason, Trial, TrialKind

MIN_LAYOUTS = 3
"""Fewest layouts with a reason, and that ran, of which a pattern is told."""
MIN_DIFFERENCE = 0.4
"""Least difference of the shares with a value, of failed layouts and of the others."""


@dataclass(frozen=True)
class Condition:
    """Values of an axis: `value` itself, or numbers from it on (`at_least`) or up to it (`at_most`)."""

    axis: str
    value: Any
    bound: str = "equal"

    def holds(self, value: Any) -> bool:
        if self.bound == "equal":
            return bool(value == self.value)
        return bool(value >= self.value if self.bound == "at_least" else value <= self.value)


@dataclass(frozen=True)
class FailurePattern:
    """`num_with` of the `num_failed` layouts with this reason meet the condition, and `others_with` of the `num_others`
    that ran."""

    reason: FailureReason
    condition: Condition
    num_with: int
    num_failed: int
    others_with: int
    num_others: int

    @property
    def difference(self) -> float:
        """Difference of the two shares."""
        return self.num_with / self.num_failed - self.others_with / self.num_others


def failure_patterns(trials: Sequence[Trial]) -> tuple[FailurePattern, ...]:
    """The pattern that tells most of each reason, most common reason first; none where the failed layouts are few or
    differ little from the others. Of a failing setting the value is told, however few failed."""
    tried = [trial for trial in trials if trial.kind is TrialKind.SEARCH and trial.state.is_ended]
    others = [trial for trial in tried if trial.measured is not None]
    names = [name for name in varying_axes([trial.layout for trial in tried]) if name not in DERIVED]
    reasons = Counter(trial.reason for trial in tried if trial.reason is not None and has_failed(trial))
    found = []
    for reason, count in reasons.most_common():
        is_setting = reason is FailureReason.SETTING_FAILURE
        if min(count, len(others)) >= (1 if is_setting else MIN_LAYOUTS):
            failed = [trial for trial in tried if trial.reason is reason]
            axes = [name for name in names if name not in AXES] if is_setting else names
            patterns = list(_patterns(reason, failed, others, axes))
            best = max(patterns, key=lambda pattern: pattern.difference, default=None)
            found += [best] if best is not None and best.difference >= MIN_DIFFERENCE else []
    return tuple(found)


def common_last_line(trials: Iterable[Trial], reason: FailureReason) -> tuple[str, int] | None:
    """Last line of the log excerpts with which most trials with this reason end, and their number."""
    lines = Counter(
        last_line(last.excerpt) for t in trials if t.reason is reason and (last := t.last_attempt) and last.excerpt
    )
    return next(iter(lines.most_common(1)), None)


def _patterns(
    reason: FailureReason, failed: Sequence[Trial], others: Sequence[Trial], names: Sequence[str]
) -> Iterator[FailurePattern]:
    for name in names:
        with_name, without = _values(failed, name), _values(others, name)
        for condition in _conditions(name, {*with_name, *without}):
            num_with, others_with = (sum(map(condition.holds, values)) for values in (with_name, without))
            yield FailurePattern(reason, condition, num_with, len(failed), others_with, len(others))


def _values(trials: Sequence[Trial], name: str) -> list[Any]:
    return [trial.layout.canonical().axis_values.get(name) for trial in trials]


def _conditions(name: str, values: set[Any]) -> Iterator[Condition]:
    """Conditions on an axis that not all values meet; of numbers the ranges from either end."""
    is_ordered = name in AXES and AXES[name].kind in (Kind.DEGREE, Kind.COUNT) and None not in values
    if not is_ordered:
        yield from (Condition(name, value) for value in sorted(values, key=str))
        return
    lowest, *middle, highest = sorted(values) if len(values) > 1 else (*values, *values)
    yield Condition(name, lowest)
    yield Condition(name, highest)
    for value in middle:
        yield Condition(name, value, "at_least")
        yield Condition(name, value, "at_most")
