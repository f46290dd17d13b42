"""Which layouts are measured again at the end of a search, and which of them next: pure functions of its record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import takewhile

from search_spaces.layout import Layout
from trials.ledger.events import SearchRecord
from trials.ranking import Objective, needs_second_look, rank, second_looks
from trials.trial import Trial, TrialKind, TrialState


def without_repeats(search: SearchRecord) -> SearchRecord:
    """The search as it was before its first finalist's repeat, second looks at suspect runs included: why no more
    layouts are proposed follows from this alone."""
    repeats = {trial.trial for trial in _repeats(search)}
    return replace(search, trials=tuple(t for t in search.trials if t.trial not in repeats))


def has_repeats(search: SearchRecord) -> bool:
    return bool(_repeats(search))


def second_looks_due(search: SearchRecord, affordable: Callable[[Layout], bool]) -> list[Layout]:
    """The layouts whose run stood on a suspect node and that were not measured again yet, in the order of their runs.

    Each is measured once more, whatever comes of it.
    """
    again = {trial.layout.key for trial in search.trials if trial.kind is TrialKind.FINALIST}
    suspects = (t.layout for t in search.trials if needs_second_look(t) and t.layout.key not in again)
    return [layout for layout in suspects if affordable(layout)]


def choose(
    search: SearchRecord, objective: Objective, global_batch_size: int, count: int, today: Collection[str]
) -> list[Layout]:
    """The best `count` layouts, best first, and after them what runs today (layout keys) where it was measured.

    Ranked by what the search measured before its first repeat, so that repeats cannot change who is repeated.
    """
    if count == 0:
        return []
    ranking = rank(without_repeats(search).trials, objective, global_batch_size)
    ranked = [trial.layout for trial in ranking.ordered]
    return ranked[:count] + [layout for layout in ranked[count:] if layout.key in today]


def due(
    search: SearchRecord, chosen: Sequence[Layout], repeats: int, affordable: Callable[[Layout], bool]
) -> list[Layout]:
    """Which of the chosen are to be measured next, in this order; a round begins when the one before has ended.

    Rounds let whatever disturbs a machine for a while disturb all finalists alike. A layout whose repeat was not
    measured, or for which the budget has no room any more, is left out of the rounds that follow.
    """
    counts = {layout.key: len(_repeats_of(search, layout)) for layout in chosen}
    waiting = [layout for layout in chosen if counts[layout.key] < repeats and not _has_failed(search, layout)]
    if not search.in_flight:  # what is in flight gives back what it reserved and did not use
        waiting = [layout for layout in waiting if affordable(layout)]
    this_round = min((counts[layout.key] for layout in waiting), default=0)
    is_running = any(_is_unended(search, layout) and counts[layout.key] <= this_round for layout in chosen)
    if is_running:
        return []
    return list(takewhile(affordable, (layout for layout in waiting if counts[layout.key] == this_round)))


def _repeats(search: SearchRecord) -> list[Trial]:
    second = second_looks(search.trials)
    return [t for t in search.trials if t.kind is TrialKind.FINALIST and t.trial not in second]


def _repeats_of(search: SearchRecord, layout: Layout) -> list[Trial]:
    return [trial for trial in _repeats(search) if trial.layout.key == layout.key]


def _has_failed(search: SearchRecord, layout: Layout) -> bool:
    return any(t.state.is_ended and t.state is not TrialState.MEASURED for t in _repeats_of(search, layout))


def _is_unended(search: SearchRecord, layout: Layout) -> bool:
    return any(not trial.state.is_ended for trial in _repeats_of(search, layout))
