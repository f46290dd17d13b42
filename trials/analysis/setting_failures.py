"""Values of settings that fail whatever the layout. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from search_spaces.layouts.layout import Layout
from search_spaces.layouts.settings import SOFTWARE
from trials.failure_policy import NodeBlame, policy_of
from trials.files.tracebacks import is_device_failure
from trials.measurement.step_log import StepPhase
from trials.trial import Attempt, TrialState

SettingValue: TypeAlias = tuple[str, str | None]
"""Name of a setting's axis and a value of it, as in `Settings.by_axis`."""

MIN_FAILURES = 2
"""Failed attempts that show a value to fail: a single one may be a node's."""


class SettingFailures:
    """Ended attempts by the values of their settings; added in any order.

    A variable's or launch option's value fails if no attempt ran with it, and at least MIN_FAILURES attempts failed in
    which every other value has run. The cause may still be the layout, if it is one that never ran, and the nodes, if
    all failures share one on which nothing has run while others work. A layout that never ran and also failed without
    the value does not count.
    """

    def __init__(self) -> None:
        self._ran: set[SettingValue] = set()
        self._ran_layouts: set[str] = set()
        self._ran_nodes: set[str] = set()
        self._failed: list[tuple[Layout, frozenset[str]]] = []
        self._failed_without: set[str] = set()
        self._failing: frozenset[SettingValue] | None = None

    def add(self, layout: Layout, attempt: Attempt) -> None:
        """Add an ended attempt of `layout`."""
        if _has_trained(attempt):
            self.add_run(layout, attempt.nodes)
        elif may_be_setting(attempt):
            is_nodes = policy_of(attempt.reason).blame is not NodeBlame.NONE
            self.add_failure(layout, attempt.nodes if is_nodes else ())

    def add_run(self, layout: Layout, nodes: Collection[str] = ()) -> None:
        """Add an attempt that trained."""
        self._ran.update(layout.of_trial.by_axis.items())
        self._ran_layouts.add(layout.without_settings.key)
        self._ran_nodes.update(nodes)
        self._failing = None

    def add_failure(self, layout: Layout, nodes: Collection[str] = ()) -> None:
        """Add a failure that a setting may have caused, or one of these nodes."""
        if layout.settings:
            self._failed.append((layout, frozenset(nodes)))
        else:
            self._failed_without.add(layout.key)
        self._failing = None

    @property
    def has_run(self) -> bool:
        """True if any attempt ran."""
        return bool(self._ran_layouts)

    @property
    def failing(self) -> frozenset[SettingValue]:
        """Values that fail."""
        if self._failing is None:
            self._failing = frozenset(self._find_failing())
        return self._failing

    def untried_values(self, layout: Layout) -> Mapping[str, str | None]:
        """Values of this layout's settings that no attempt ran with."""
        return {name: value for name, value in layout.of_trial.by_axis.items() if (name, value) not in self._ran}

    def failing_values(self, layout: Layout) -> Mapping[str, str | None]:
        """Values of this layout's settings that fail."""
        return {name: value for name, value in layout.of_trial.by_axis.items() if (name, value) in self.failing}

    def _find_failing(self) -> Iterator[SettingValue]:
        failures: dict[SettingValue, list[tuple[str, frozenset[str]]]] = defaultdict(list)
        faulty = self._failed_without - self._ran_layouts
        for layout, nodes in self._failed:
            key, untried = layout.without_settings.key, [*self.untried_values(layout).items()]
            if not untried and key not in self._ran_layouts:
                faulty.add(key)
            elif len(untried) == 1 and not untried[0][0].startswith(SOFTWARE):
                failures[untried[0]].append((key, nodes))
        for value, found in failures.items():
            counted = [(key, nodes) for key, nodes in found if key not in faulty]
            if len(counted) < MIN_FAILURES:
                continue
            keys, nodes_of_all = {key for key, _ in counted}, [nodes for _, nodes in counted]
            may_be_layout = len(keys) == 1 and not keys <= self._ran_layouts
            if not may_be_layout and not self._may_be_nodes(nodes_of_all):
                yield value

    def _may_be_nodes(self, nodes_of_all: Sequence[frozenset[str]]) -> bool:
        """True if these failures share a node on which nothing has run, where others are known to work."""
        return bool(self._ran_nodes) and not frozenset.intersection(*nodes_of_all) <= self._ran_nodes


def may_be_setting(attempt: Attempt) -> bool:
    """True if a setting may be the cause of the attempt's end; no setting breaks a GPU."""
    return policy_of(attempt.reason).may_be_setting and not is_device_failure(attempt.excerpt or "")


def _has_trained(attempt: Attempt) -> bool:
    outcome = attempt.outcome
    is_in_steps = outcome is not None and (outcome.measured is not None or outcome.phase == StepPhase.MEASURED)
    return attempt.state is TrialState.MEASURED or is_in_steps or policy_of(attempt.reason).shows_training
