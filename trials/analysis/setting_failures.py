"""Values of settings that fail whatever the layout. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TypeAlias

from search_spaces.layouts.layout import Layout
from trials.failure_policy import policy_of
from trials.trial import Attempt, TrialState

SettingValue: TypeAlias = tuple[str, str | None]
"""Name of a setting's axis and a value of it, as in `Settings.by_axis`."""

MIN_FAILURES = 2
"""Failed attempts that show a value to fail: a single one may be a node's."""


class SettingFailures:
    """Ended attempts by the values of their settings; added in any order.

    A value fails if no attempt ran with it, and at least MIN_FAILURES attempts failed in which every other value has
    run: with two layouts, or with one that ran without the value.
    """

    def __init__(self) -> None:
        self._ran: set[SettingValue] = set()
        self._ran_layouts: set[str] = set()
        self._failed: list[Layout] = []
        self._failing: frozenset[SettingValue] | None = None

    def add(self, layout: Layout, attempt: Attempt) -> None:
        """Add an ended attempt of `layout`."""
        policy = policy_of(attempt.reason)
        if attempt.state is TrialState.MEASURED or policy.shows_training:
            self._ran.update(layout.of_trial.by_axis.items())
            self._ran_layouts.add(layout.without_settings.key)
        elif policy.may_be_setting and layout.settings:
            self._failed.append(layout)
        self._failing = None

    def untried_values(self, layout: Layout) -> Mapping[str, str | None]:
        """Values of this layout's settings that no attempt ran with."""
        return {name: value for name, value in layout.of_trial.by_axis.items() if (name, value) not in self._ran}

    def failing_values(self, layout: Layout) -> Mapping[str, str | None]:
        """Values of this layout's settings that fail."""
        if self._failing is None:
            self._failing = frozenset(self._find_failing())
        return {name: value for name, value in layout.of_trial.by_axis.items() if (name, value) in self._failing}

    def _find_failing(self) -> list[SettingValue]:
        failures: dict[SettingValue, list[str]] = defaultdict(list)
        for layout in self._failed:
            untried = self.untried_values(layout)
            if len(untried) == 1:
                failures[next(iter(untried.items()))].append(layout.without_settings.key)
        return [
            value
            for value, layouts in failures.items()
            if len(layouts) >= MIN_FAILURES and (len({*layouts}) > 1 or layouts[0] in self._ran_layouts)
        ]
