"""Rounds of a search's finals, read from its trials: the consequence of each, and the reason for their end. Pure.

A layout's repeats are its runs of the rounds, in order; one that dropped out has fewer. So every standing follows from
the trials alone, whatever driver asks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from trials.analysis.finals import Finalist, Finals, FinalsEnd, FinalsEnding, FinalsStanding, standing_after
from trials.analysis.pareto import pareto
from trials.analysis.ranked_layout import RankedLayout, suspect_reruns
from trials.analysis.ranking import Objective, Ranking, speed_of
from trials.analysis.stack_pairs import StackPair, are_two_sides, in_pairs, paired_runs, paired_standing
from trials.analysis.verdict import baseline_key_of, ranking_of
from trials.files.text import plural
from trials.ledger.events import SearchRecord
from trials.measurement.run_variance import RunMeasurement
from trials.trial import Trial, TrialKind, TrialState


@dataclass(frozen=True)
class FinalsTerms:
    """Terms of a search's finals: the rule, at most how many rounds, and what the layouts compete in."""

    rule: Finals
    rounds: int
    objective: Objective
    baseline_keys: Collection[str] = ()
    headroom: MemoryHeadroom | None = None
    are_paired: bool = False
    """True if each layout competes with itself on the other software of an experiment alone."""


class FinalRounds:
    """The layouts that were measured again as finalists, with all their runs."""

    def __init__(self, trials: Sequence[Trial], terms: FinalsTerms):
        second = suspect_reruns(trials)
        self._terms = terms
        self.repeats: dict[str, list[Trial]] = {}
        """Repeats of each layout, by its key."""
        self._earlier: dict[str, list[Trial]] = {}
        for trial in trials:
            is_repeat = trial.kind is TrialKind.REPEAT and trial.trial not in second
            (self.repeats if is_repeat else self._earlier).setdefault(trial.layout.key, []).append(trial)

    def has_ended(self, number: int) -> bool:
        """True if every repeat up to round `number` has ended."""
        return all(trial.state.is_ended for trials in self.repeats.values() for trial in trials[:number])

    def standing(self, number: int) -> FinalsStanding:
        """Standing after round `number`, which has ended. Layouts whose repeat was not measured take no part."""
        if self._terms.are_paired:
            return paired_standing(list(self._pairs(number)), number, self._terms.rounds)
        entrants = sum(_are_measured(trials[:1]) for trials in self.repeats.values())
        return standing_after(list(self._finalists(number)), number, self._terms.rounds, entrants)

    def end(self, chosen: Collection[str]) -> FinalsEnd | None:
        """End of the finals of these layouts (by key), once no repeat follows.

        None where their number was fixed, and where they have not begun or a repeat has not ended.
        """
        expected = set(chosen)
        if self._terms.rule is Finals.FIXED or not self.repeats or not self.has_ended(self._terms.rounds):
            return None
        for number in range(1, self._terms.rounds + 1):
            expected = {key for key in expected if _are_measured(self.repeats.get(key, [])[:number])}
            if any(len(self.repeats.get(key, ())) < number for key in expected):
                return self._end(FinalsEnding.CUT_SHORT, number)
            standing = self.standing(number)
            if standing.ending is not None:
                return self._end(standing.ending, number)
            expected &= standing.next_round
        return None

    def _pairs(self, number: int) -> Iterator[StackPair]:
        """Layouts of which both sides were measured in every round up to this one."""
        known = {key: trials for key, trials in self.repeats.items() if len(trials) >= number}
        measured = {key: trials for key, trials in known.items() if _are_measured(trials[:number])}
        for key, trials in measured.items():
            layout = trials[0].layout
            others = (key for key, of in measured.items() if are_two_sides(layout, of[0].layout))
            if not layout.of_trial.software and (other := next(others, None)) is not None:
                sides = self._until(key, number), self._until(other, number)
                yield StackPair(key, other, paired_runs(*sides, self._terms.objective))

    def _until(self, key: str, number: int) -> RankedLayout:
        return RankedLayout((*self._earlier.get(key, ()), *self.repeats[key][:number]))

    def _end(self, ending: FinalsEnding, number: int) -> FinalsEnd:
        return FinalsEnd(ending, number, self._terms.rounds, len(self.repeats), self._terms.are_paired)

    def _finalists(self, number: int) -> Iterator[Finalist]:
        for key, trials in self.repeats.items():
            if len(trials) >= number and _are_measured(trials[:number]):
                yield self._finalist(key, trials[:number])

    def _finalist(self, key: str, repeats: Sequence[Trial]) -> Finalist:
        layout = RankedLayout((*self._earlier.get(key, ()), *repeats))
        headroom, again = self._terms.headroom, {trial.trial for trial in repeats}
        has_room = headroom is None or headroom.is_satisfied(layout.measured.peak_memory_gib)
        return Finalist(
            key,
            tuple(map(self._speed, layout.counted)),
            tuple(self._speed(run) for run in layout.counted if run.trial in again),
            may_win=has_room and layout.may_be_best,
            is_baseline=key in self._terms.baseline_keys,
        )

    def _speed(self, run: Trial) -> RunMeasurement:
        return speed_of(run, self._terms.objective)


def choose_finalists(ranking: Ranking, count: int, baseline_keys: Collection[str]) -> list[Layout]:
    """The best `count` layouts, best first, then the Pareto set and the measured baseline.

    The baseline is included even where it leaves too little free memory to be the best. The ranking is that before the
    first repeat, so that repeats do not change the selection.
    """
    if count == 0:
        return []
    best = [trial.layout for trial in ranking.ordered if ranking.has_headroom(trial)][:count]
    points = [trial.layout for trial in pareto(ranking)]
    compared = [trial.layout for trial in ranking.ordered if trial.layout.key in baseline_keys]
    return list({layout.key: layout for layout in (*best, *points, *compared)}.values())


def finals_end_of(search: SearchRecord) -> FinalsEnd | None:
    """End of the finals of a search that has ended; None without finals, and where their number was fixed."""
    wanted, baseline = search.spec.get("search") or {}, baseline_key_of(search)
    if not (search.state.is_ended and wanted.get("finals")):
        return None
    second, keys = suspect_reruns(search.trials), () if baseline is None else (baseline,)
    is_repeat = {t.trial: t.kind is TrialKind.REPEAT and t.trial not in second for t in search.trials}
    ranking = ranking_of(search, [trial for trial in search.trials if not is_repeat[trial.trial]])
    are_paired = bool(wanted.get("against"))
    measured = [layout.layout for layout in ranking.ordered]
    chosen = in_pairs(measured) if are_paired else choose_finalists(ranking, wanted["finalists"], keys)
    rule, rounds = Finals(wanted["finals"]), wanted["finalist_repeats"]
    terms = FinalsTerms(rule, rounds, ranking.objective, keys, ranking.headroom, are_paired)
    repeated = {trial.layout.key for trial in search.trials if is_repeat[trial.trial]}
    runs = [trial for trial in search.trials if trial.layout.key in repeated]
    return FinalRounds(runs, terms).end([layout.key for layout in chosen])


def describe_finals_end(end: FinalsEnd) -> str:
    """Reason why the finals ended, without a full stop."""
    if end.ending is FinalsEnding.CUT_SHORT:
        return f"the finals were cut short in round {end.rounds} of at most {end.max_rounds}"
    after = f"the finals ended after {end.rounds} of at most {plural(end.max_rounds, 'round')}"
    if end.layouts == 1:
        return f"{after}: one layout alone was measured again"
    if end.ending is FinalsEnding.LIMIT:
        return f"the finals ended after {plural(end.rounds, 'round')}, the limit (search.finalist_repeats)"
    return f"{after}: {(_REASONS_OF_PAIRS if end.are_paired else _REASONS)[end.ending]}"


_REASONS: Mapping[FinalsEnding, str] = {
    FinalsEnding.DECIDED: "one layout is clearly faster than every other that was measured again",
    FinalsEnding.TIE: "further repeats would hardly separate layouts that are still tied",
}
_REASONS_OF_PAIRS: Mapping[FinalsEnding, str] = {
    FinalsEnding.DECIDED: "every layout measured again is clearly faster with one of the two stacks",
    FinalsEnding.TIE: "every layout measured again is clearly faster with one of the two stacks, or as fast with both",
}


def _are_measured(trials: Sequence[Trial]) -> bool:
    return all(trial.state is TrialState.MEASURED for trial in trials)
