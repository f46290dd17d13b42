"""A search as every view shows it: its record and verdict at one moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from search_spaces.layouts.short_name import varying_axes
from trials.analysis.ranked_layout import RankedLayout, TrialOrLayout
from trials.analysis.ranking import Objective, Ranking, known_value_of, value_of
from trials.analysis.verdict import SearchVerdict, baseline_key_of, global_batch_of, ranking_of, verdict_of
from trials.ledger.events import SearchRecord
from trials.trial import Trial


@dataclass(frozen=True)
class SearchView:
    """Record of a search read at `at` (UTC seconds since the epoch), its verdict, and what views derive from both.

    A row is a layout over all its runs where one was measured, else a trial.
    """

    search: SearchRecord
    verdict: SearchVerdict
    at: float

    @classmethod
    def of(cls, search: SearchRecord, at: float) -> SearchView:
        """The view of this record. A spec that lacks sections tells less; it is no error."""
        return cls(search, verdict_of(search, ranking_of(search, search.trials), baseline_key_of(search)), at)

    @property
    def ranking(self) -> Ranking:
        return self.verdict.ranking

    @property
    def best(self) -> RankedLayout | None:
        return self.ranking.best

    @property
    def name(self) -> str:
        return str(self.search.spec.get("name", self.search.search_id))

    @property
    def objective(self) -> Objective:
        """The objective that decides."""
        return self.ranking.objective

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return (self.ranking.objective, *self.ranking.others)

    @cached_property
    def varying(self) -> tuple[str, ...]:
        """Layout fields with more than one value tried, in the order of a layout's fields."""
        return varying_axes([trial.layout for trial in self.search.trials])

    @cached_property
    def rows(self) -> tuple[TrialOrLayout, ...]:
        """A row for each layout: the measured ones first, fastest first, then the last trial of each other one."""
        ranked = sorted(self.ranking.ordered, key=lambda layout: -(self.speed(layout) or 0.0))
        known = {layout.layout.key for layout in ranked}
        others = {trial.layout.key: trial for trial in self.search.trials if trial.layout.key not in known}
        return (*ranked, *others.values())

    @cached_property
    def _runs(self) -> Mapping[str, list[Trial]]:
        runs: dict[str, list[Trial]] = {}
        for trial in self.search.trials:
            runs.setdefault(trial.layout.key, []).append(trial)
        return runs

    def runs_of(self, row: TrialOrLayout) -> Sequence[Trial]:
        """All trials of the row's layout, in launch order."""
        return self._runs[row.layout.key]

    def is_baseline(self, row: TrialOrLayout) -> bool:
        baseline = self.verdict.baseline
        return baseline is not None and row.layout.key == baseline.layout.key

    def speed(self, row: TrialOrLayout) -> float | None:
        """The objective turned so that larger is better, where it was measured with the search's global batch."""
        competes = row.layout.global_batch_size == global_batch_of(self.search)
        return value_of(row, self.objective) if row.measured is not None and competes else None

    @cached_property
    def baseline_speed(self) -> float | None:
        baseline = self.verdict.baseline
        return None if baseline is None or baseline.measured is None else known_value_of(baseline, self.objective)

    def ratio(self, row: TrialOrLayout) -> float | None:
        """Speed over the baseline's; None where either is unknown."""
        speed = self.speed(row)
        return speed / self.baseline_speed if speed is not None and self.baseline_speed else None

    @property
    def node_counts(self) -> tuple[int, ...]:
        """Numbers of nodes of the measured layouts, in order."""
        return tuple(sorted({layout.layout.num_nodes for layout in self.ranking.ordered}))

    @property
    def best_num_nodes(self) -> int | None:
        """Number of nodes of the best layout, or of the first measured one where there is none."""
        first = self.best or next(iter(self.ranking.ordered), None)
        return None if first is None else first.layout.num_nodes

    def ended_h(self, trial: Trial) -> float | None:
        """Hours after the search began at which the trial ended; None while it has not."""
        ended_at = trial.ended_at if trial.state.is_ended else None
        return None if ended_at is None else max(0.0, ended_at - self.search.created_at) / 3600

    @property
    def elapsed_s(self) -> float:
        """Wall time of the search until its end, or now; a simulated clock may be ahead of ours."""
        ended = [a.ended_at for trial in self.search.trials for a in trial.attempts if a.ended_at is not None]
        last = max([self.at if self.search.ended_at is None else self.search.ended_at, *ended])
        return max(0.0, last - self.search.created_at)


def recorded_section(spec: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Section of a recorded spec; {} where it is missing."""
    found = spec.get(name)
    return found if isinstance(found, Mapping) else {}
