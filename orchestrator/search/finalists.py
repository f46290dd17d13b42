"""Selection of finalists and the order of their repeats: pure functions of a search's index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import takewhile

from orchestrator.search.index import SearchIndex
from search_spaces.layouts.layout import Layout
from trials.analysis.final_rounds import FinalRounds, FinalsTerms, choose_finalists
from trials.analysis.finals import Finals, FinalsEnd
from trials.analysis.stack_pairs import in_pairs
from trials.trial import Trial, TrialState


def pending_reruns(index: SearchIndex, affordable: Callable[[Layout], bool]) -> list[Layout]:
    """Layouts whose only run was on a suspect node, in the order of these runs. Each is measured once more."""
    again = {trial.layout.key for trial in index.measured_again}
    suspects = (trial.layout for trial in index.suspects if trial.layout.key not in again)
    return [layout for layout in suspects if affordable(layout)]


def chosen_finalists(index: SearchIndex, count: int, baseline_keys: Collection[str]) -> list[Layout]:
    """Layouts to measure again, by the ranking before the first repeat."""
    return choose_finalists(index.before_repeats.ranking(), count, baseline_keys) if count else []


def due_repeats(
    index: SearchIndex, chosen: Sequence[Layout], terms: FinalsTerms, affordable: Callable[[Layout], bool]
) -> list[Layout]:
    """Chosen layouts to measure next, in this order. A round starts when the previous one has ended; who is in it
    follows from those before."""
    finals = _final_rounds(index, terms)
    going = [
        layout for layout in _entrants(chosen, terms) if not any(map(_has_failed, finals.repeats.get(layout.key, ())))
    ]
    if not index.in_flight:  # attempts in flight release what they reserved and did not use
        going = [layout for layout in going if affordable(layout)]
    for number in range(terms.rounds):  # rounds that have ended
        if not finals.has_ended(number):
            return []
        if number > 0 and terms.rule is Finals.UNTIL_DECIDED:
            next_round = finals.standing(number).next_round
            going = [layout for layout in going if layout.key in next_round]
        if terms.are_paired:
            going = in_pairs(going, is_reversed=number % 2 == 0)  # the first runs were a round, too
        if due := [layout for layout in going if len(finals.repeats.get(layout.key, ())) <= number]:
            return list(takewhile(affordable, due))
    return []


def _entrants(chosen: Sequence[Layout], terms: FinalsTerms) -> list[Layout]:
    """The chosen layouts; of an experiment those of which both sides were measured, next to each other."""
    return in_pairs(chosen) if terms.are_paired else list(chosen)


def finals_end(index: SearchIndex, chosen: Sequence[Layout], terms: FinalsTerms) -> FinalsEnd | None:
    """End of the finals of the chosen layouts, once no repeat is due."""
    return _final_rounds(index, terms).end([layout.key for layout in _entrants(chosen, terms)])


def _final_rounds(index: SearchIndex, terms: FinalsTerms) -> FinalRounds:
    """The finals of the search so far."""
    keys = {trial.layout.key: trial.layout for trial in index.repeats}
    return FinalRounds([trial for layout in keys.values() for trial in index.runs_of(layout)], terms)


def _has_failed(trial: Trial) -> bool:
    return trial.state.is_ended and trial.state is not TrialState.MEASURED
