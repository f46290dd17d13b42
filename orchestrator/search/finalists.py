"""Selection of finalists and the order of their repeats: pure functions of a search's index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import takewhile

from orchestrator.search.index import SearchIndex
from search_spaces.layouts.layout import Layout
from trials.analysis.pareto import pareto
from trials.trial import Trial, TrialState


def pending_reruns(index: SearchIndex, affordable: Callable[[Layout], bool]) -> list[Layout]:
    """Layouts whose only run was on a suspect node, in the order of these runs. Each is measured once more."""
    again = {trial.layout.key for trial in index.measured_again}
    suspects = (trial.layout for trial in index.suspects if trial.layout.key not in again)
    return [layout for layout in suspects if affordable(layout)]


def choose_finalists(index: SearchIndex, count: int, baseline_keys: Collection[str]) -> list[Layout]:
    """The best `count` layouts, best first, then the Pareto set and the measured baseline.

    The baseline is included even where it leaves too little free memory to be the best. The ranking is that before the
    first repeat, so that repeats do not change the selection.
    """
    if count == 0:
        return []
    ranking = index.before_repeats.ranking()
    best = [trial.layout for trial in ranking.ordered if ranking.has_headroom(trial)][:count]
    points = [trial.layout for trial in pareto(ranking)]
    compared = [trial.layout for trial in ranking.ordered if trial.layout.key in baseline_keys]
    return list({layout.key: layout for layout in (*best, *points, *compared)}.values())


def due_repeats(
    index: SearchIndex, chosen: Sequence[Layout], repeats: int, affordable: Callable[[Layout], bool]
) -> list[Layout]:
    """Chosen layouts to measure next, in this order. A round starts when the previous one has ended."""
    known = index.repeats
    repeats_of = {layout.key: [trial for trial in known if trial.layout.key == layout.key] for layout in chosen}
    counts = {key: len(trials) for key, trials in repeats_of.items()}
    waiting = [c for c in chosen if counts[c.key] < repeats and not any(map(_has_failed, repeats_of[c.key]))]
    if not index.in_flight:  # attempts in flight release what they reserved and did not use
        waiting = [layout for layout in waiting if affordable(layout)]
    this_round = min((counts[layout.key] for layout in waiting), default=0)
    runs = (trial for key, trials in repeats_of.items() if counts[key] <= this_round for trial in trials)
    if any(not trial.state.is_ended for trial in runs):
        return []
    return list(takewhile(affordable, (layout for layout in waiting if counts[layout.key] == this_round)))


def _has_failed(trial: Trial) -> bool:
    return trial.state.is_ended and trial.state is not TrialState.MEASURED
