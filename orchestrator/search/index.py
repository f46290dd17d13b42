"""Incrementally maintained index over a search's trials, so that no decision scans all of them."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import chain, compress, count, pairwise
from math import fsum
from operator import is_not, itemgetter
from typing import Any

from orchestrator.search.node_exclusion import bad_nodes
from orchestrator.search.samplers.base import TrialFeedback, feedback_of
from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from trials.analysis.ranked_layout import needs_repeat, suspect_reruns
from trials.analysis.ranking import (
    Objective,
    Ranking,
    RankingKey,
    order_of,
    rank,
    upper_bound_of,
    value_of,
)
from trials.analysis.setting_failures import SettingFailures, may_be_setting
from trials.attempt_result import may_retry, program_change
from trials.ledger.events import SearchRecord
from trials.trial import Attempt, Trial, TrialKind, TrialState

NUM_LAST_ENDED = 3
"""Number of trials in `last_ended`."""


class SearchIndex:
    """Index over `search`, as of construction or of the last `update`.

    An ended trial is counted once and never again. A layout's value is recomputed only after one of its trials has
    changed. So a step of the search costs the same after three trials and after three thousand.
    """

    def __init__(
        self,
        search: SearchRecord,
        objective: Objective,
        global_batch_size: int,
        headroom: MemoryHeadroom | None = None,
        others: tuple[Objective, ...] = (),
    ):
        self.search = search
        self.num_layouts = 0
        """Proposed layouts, without repeats."""
        self.num_measured = 0
        """Measured attempts of known duration."""
        self.has_cut_short_trial = False
        """True if a trial ended although it could have been retried."""
        self.setting_failures = SettingFailures()
        self._objective = objective
        self._global_batch_size = global_batch_size
        self._headroom = headroom
        self._others = others
        self.last_change_at = search.created_at
        """Latest start or end of an ended attempt, UTC seconds."""
        self._node_hours_used = Fraction()
        self._longest_s: dict[int, float] = {}  # by number of nodes
        self._trials: tuple[Trial, ...] = ()
        self._check: Trial | None = None
        self._unended: dict[int, Trial] = {}
        self._in_flight: tuple[Attempt, ...] | None = None
        self._last_ended: list[tuple[float, int]] = []
        self._first_measured: dict[str, int] = {}  # by software
        self._programs: dict[str, list[tuple[float, Mapping[str, Any]]]] = {}  # starts and fingerprints, by software
        self._measured_again: list[int] = []
        self._suspects: list[int] = []
        self._blamed: list[tuple[Layout, bool, tuple[str, ...]]] = []
        self._runs: dict[str, list[int]] = {}
        self._feedback: dict[str, TrialFeedback | None] = {}
        self._orders: dict[str, RankingKey | None] = {}
        self._stale: set[str] = set()
        self._ranking: Ranking | None = None
        self._before_repeats = self
        self._is_split = False
        self.update(search)

    def update(self, search: SearchRecord) -> None:
        """Update to `search`, a later state of the same search. Trials keep their positions."""
        before, check, self.search = self._trials, self._check, search
        self._check = None if search.fabric_check is None else search.fabric_check.trial
        if self._check is not None and self._check is not check:
            self._in_flight = None
            for attempt in _newly_ended(check, self._check):
                self._charge(attempt)
        if search.trials is before:
            return
        self._trials, self._in_flight, self._ranking, self._is_split = search.trials, None, None, False
        for position in _changed_positions(before, search.trials):
            self._apply(position, before[position] if position < len(before) else None, search.trials[position])

    # -- in flight

    @property
    def unended(self) -> list[Trial]:
        """Trials that have not ended, in the order they were proposed; the fabric check's is the first."""
        checks = () if self._check is None or self._check.state.is_ended else (self._check,)
        return [*checks, *self._unended.values()]

    @property
    def in_flight(self) -> tuple[Attempt, ...]:
        """Attempts submitted and not ended, in the order of their trials."""
        if self._in_flight is None:
            attempts = (attempt for trial in self.unended for attempt in trial.attempts)
            self._in_flight = tuple(attempt for attempt in attempts if not attempt.state.is_ended)
        return self._in_flight

    @property
    def node_hours_reserved(self) -> float:
        """Upper bound of what attempts in flight and open pilots will be charged."""
        attempts = (attempt.reserved_node_hours for attempt in self.in_flight)
        return fsum([*attempts, *(pilot.reserved_node_hours for pilot in self.search.open_pilots.values())])

    # -- ended

    @property
    def node_hours_used(self) -> float:
        """Node-hours of all ended jobs: attempts, unless they were steps, and pilots.

        Summed exactly, so that the budget does not depend on the order in which trials end, nor on the driver that
        resumes.
        """
        pilots = (pilot.node_hours or 0.0 for pilot in self.search.pilots.values())
        return float(self._node_hours_used + sum(map(Fraction, pilots)))

    def longest_s(self, num_nodes: int) -> float:
        """Seconds of the longest measured attempt, scaled up to `num_nodes` where it ran on more nodes."""
        return max((s * max(1.0, known / num_nodes) for known, s in self._longest_s.items()), default=0.0)

    @property
    def last_ended(self) -> list[Trial]:
        """The NUM_LAST_ENDED trials that ended last after an attempt, oldest first; fewer early in a search."""
        return [self._trials[position] for _, position in self._last_ended]

    @property
    def first_measured(self) -> Trial | None:
        """The first measured trial."""
        return self._trials[min(self._first_measured.values())] if self._first_measured else None

    def first_measured_like(self, layout: Layout) -> Trial | None:
        """The first measured trial with the software of this layout, the search's own or an experiment's other one."""
        position = self._first_measured.get(_software(layout))
        return None if position is None else self._trials[position]

    @property
    def program_change(self) -> str | None:
        """Change of the user's program from the first attempts to the next ones; None while all ran the same. In
        an experiment, either software may have a program of its own."""
        in_order = (sorted(programs, key=itemgetter(0)) for programs in self._programs.values())
        changes = (
            program_change(first, later) for (_, first), (_, later) in chain.from_iterable(map(pairwise, in_order))
        )
        return next(changes, None)

    @property
    def suspects(self) -> list[Trial]:
        """Measured runs that a node may have slowed."""
        return [self._trials[position] for position in sorted(self._suspects)]

    @property
    def measured_again(self) -> list[Trial]:
        """Trials of layouts measured before, reruns after a suspect run included."""
        return [self._trials[position] for position in self._measured_again]

    @property
    def repeats(self) -> list[Trial]:
        """Repeats of the finalists, without reruns after a suspect run."""
        again = self.measured_again
        second = suspect_reruns([*self.suspects, *again])
        return [trial for trial in again if trial.trial not in second]

    def is_repeat(self, trial: Trial) -> bool:
        """True if the trial is one of `repeats`."""
        return trial.kind is TrialKind.REPEAT and any(repeat.trial == trial.trial for repeat in self.repeats)

    @property
    def before_repeats(self) -> SearchIndex:
        """Index of the search before the first repeat of a finalist, reruns after a suspect run included.

        The reason why no more layouts are proposed follows from this state alone. It has no pilots and no drivers'
        jobs, which went on during the repeats: a search that repeats anything has not ended by its budget.
        """
        if not self._is_split:
            repeats = {trial.trial for trial in self.repeats}
            self._before_repeats = self._without(repeats) if repeats else self
            self._is_split = True
        return self._before_repeats

    def _without(self, repeats: Collection[str]) -> SearchIndex:
        trials = tuple(t for t in self._trials if t.trial not in repeats)
        before = replace(self.search, trials=trials, pilots={})
        if self._before_repeats is self:
            return SearchIndex(before, self._objective, self._global_batch_size, self._headroom, self._others)
        self._before_repeats.update(before)
        return self._before_repeats

    @property
    def bad_nodes(self) -> set[str]:
        """Nodes with a certain hardware or boot failure; none where a setting may have failed in their place."""
        return {
            node
            for layout, is_certain, nodes in self._blamed
            if is_certain or not self.setting_failures.untried_values(layout)
            for node in nodes
        }

    # -- values of layouts

    def was_tried(self, layout: Layout) -> bool:
        return layout.key in self._runs

    def runs_of(self, layout: Layout) -> list[Trial]:
        """Trials of this layout."""
        return [self._trials[position] for position in self._runs.get(layout.key, ())]

    def feedback(self) -> list[TrialFeedback]:
        """Feedback for the sampler, one entry a layout, in the order in which they were proposed."""
        self._refresh()
        return [feedback for feedback in self._feedback.values() if feedback is not None]

    def leader(self) -> Ranking:
        """Ranking of the fastest layout and, where it is a finalist, of all layouts tied with it.

        A suspect layout, or one above its memory limit, is included if it would be the fastest.
        """
        self._refresh()
        return self._leader({key: order for key, order in self._orders.items() if order is not None})

    def leaders_by_nodes(self) -> list[Ranking]:
        """`leader` for each number of nodes separately."""
        self._refresh()
        by_nodes: dict[int, dict[str, RankingKey]] = {}
        for key, order in self._orders.items():
            if order is not None:
                by_nodes.setdefault(self._trials[self._runs[key][0]].layout.num_nodes, {})[key] = order
        return [self._leader(ranked) for ranked in by_nodes.values()]

    def _leader(self, ranked: Mapping[str, RankingKey]) -> Ranking:
        keys = [min(ranked, key=lambda key: ranked[key])] if ranked else []
        if keys and not (first := ranked[keys[0]]).is_no_finalist:
            keys = [key for key, order in ranked.items() if order.may_tie_with(first)]
        runs = [self._trials[position] for key in keys for position in self._runs[key]]
        return rank(runs, self._objective, self._global_batch_size, self._headroom, self._others)

    def ranking(self) -> Ranking:
        """Ranking of all layouts."""
        if self._ranking is None:
            batch = self._global_batch_size
            self._ranking = rank(self._trials, self._objective, batch, self._headroom, self._others)
        return self._ranking

    def _refresh(self) -> None:
        """Recompute the value of every layout whose trials have changed."""
        for key in self._stale:
            runs = [self._trials[position] for position in self._runs[key]]
            self._feedback[key] = feedback_of(runs, self._value, self._upper_bound, self._headroom)
            self._orders[key] = order_of(runs, self._objective, self._global_batch_size, self._headroom)
        self._stale.clear()

    def _value(self, trial: Trial) -> float:
        return value_of(trial, self._objective)

    def _upper_bound(self, trial: Trial) -> float | None:
        return upper_bound_of(trial, self._objective)

    # -- changes

    def _apply(self, position: int, before: Trial | None, trial: Trial) -> None:
        self._stale.add(trial.layout.key)
        if before is None:
            self._apply_new(position, trial)
        for attempt in _newly_ended(before, trial):
            self._apply_attempt_end(trial, attempt)
        if not trial.state.is_ended:
            self._unended[position] = trial
        elif before is None or not before.state.is_ended:
            self._unended.pop(position, None)
            self._apply_trial_end(position, trial)

    def _apply_new(self, position: int, trial: Trial) -> None:
        self.num_layouts += trial.kind is TrialKind.SEARCH
        if trial.kind is TrialKind.REPEAT:
            self._measured_again.append(position)
        key = trial.layout.key
        self._runs.setdefault(key, []).append(position)
        self._feedback.setdefault(key, None)  # keeps the order of proposals
        self._orders.setdefault(key, None)

    def _apply_attempt_end(self, trial: Trial, attempt: Attempt) -> None:
        self._charge(attempt)
        if attempt.outcome is not None and attempt.outcome.fingerprint.get("scripts"):
            self._apply_program(trial.layout, attempt.started_at or 0.0, attempt.outcome.fingerprint)
        self.setting_failures.add(trial.layout, attempt)
        if nodes := bad_nodes(trial, attempt):
            self._blamed.append((trial.layout, not may_be_setting(attempt), nodes))
        timed = attempt.started_at is not None and attempt.ended_at is not None
        if attempt.state is TrialState.MEASURED and timed:
            self.num_measured += 1
            duration_s = attempt.ended_at - attempt.started_at  # type: ignore[operator]
            self._longest_s[attempt.num_nodes] = max(self._longest_s.get(attempt.num_nodes, 0.0), duration_s)

    def _charge(self, attempt: Attempt) -> None:
        self._node_hours_used += Fraction(0.0 if attempt.is_step else attempt.node_hours or 0.0)
        moments = (moment for moment in (attempt.started_at, attempt.ended_at) if moment is not None)
        self.last_change_at = max([self.last_change_at, *moments])

    def _apply_program(self, layout: Layout, started_at: float, found: Mapping[str, Any]) -> None:
        """Keep each program with its earliest start, whichever order attempts end in."""
        known = self._programs.get(_software(layout), [])
        others = [entry for entry in known if program_change(entry[1], found) is not None]
        starts = [entry[0] for entry in known if entry not in others]
        self._programs[_software(layout)] = [*others, (min([started_at, *starts]), found)]

    def _apply_trial_end(self, position: int, trial: Trial) -> None:
        last = trial.last_attempt
        self.has_cut_short_trial |= last is None or may_retry(trial, last)
        if last is not None:
            insort(self._last_ended, (last.ended_at or 0.0, position))
            del self._last_ended[:-NUM_LAST_ENDED]
        if trial.measured is not None:
            first = self._first_measured.setdefault(_software(trial.layout), position)
            self._first_measured[_software(trial.layout)] = min(first, position)
        if needs_repeat(trial):
            self._suspects.append(position)


def _newly_ended(before: Trial | None, trial: Trial) -> Iterator[Attempt]:
    """Attempts that have ended since the trial was as before; all that have of a new one."""
    known = () if before is None else before.attempts
    had_ended = {attempt.attempt for attempt in known if attempt.state.is_ended}
    yield from (attempt for attempt in trial.attempts if attempt.state.is_ended and attempt.attempt not in had_ended)


def _changed_positions(before: tuple[Trial, ...], after: tuple[Trial, ...]) -> Iterator[int]:
    """Positions of changed and new trials."""
    yield from compress(count(), map(is_not, before, after))
    yield from range(len(before), len(after))


def _software(layout: Layout) -> str:
    return " ".join(layout.of_trial.software.values())
