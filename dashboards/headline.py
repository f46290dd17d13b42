"""The answer of a search in a sentence or two for a terminal, against what runs today. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dashboards.trial_words import named
from trials.answer import Choice, choice_of, choice_words, none_words, room_words
from trials.ledger.events import SearchRecord
from trials.ranking import Objective, Ranking, speedup_over
from trials.trial import Trial


def headline(search: SearchRecord, ranking: Ranking, baseline_key: str | None) -> str:
    """The answer in a sentence or two: the best layout, against what runs today, and what cannot be told from it."""
    best = ranking.best
    if best is None and (none := none_words(ranking)) is not None:
        return none
    if best is None:
        return "no layout has a valid measurement" if search.state.is_ended else "no layout has been measured yet"
    words = f"best: {best.trial}, {best.layout.key}, {rate_words(best.measured or {})} tokens/s"
    baseline = _baseline([*ranking.ordered, *search.trials], baseline_key)
    if baseline is not None:
        words += "; " + _against(baseline, best, ranking)
    if choice_of(ranking) is Choice.MEMORY:
        words += f"; {choice_words(ranking)}"
    if ranking.ties:
        words += "; not to be told from it: " + ", ".join(trial.trial for trial in ranking.ties)
    return words


def room_lines(ranking: Ranking) -> list[str]:
    """A line about the layouts that were measured and leave too little memory to be the best."""
    too_full = [trial for trial in ranking.ordered if not ranking.has_room(trial)]
    if ranking.floor is None or not too_full:
        return []
    asked = f"constraints.min_free_memory_gib asks {ranking.floor.min_free_gib:g} GiB"
    leave = "leaves" if len(too_full) == 1 else "leave"
    return [f"! {named([trial.trial for trial in too_full])} {leave} less memory free than asked: {asked}"]


def rate_words(measured: Mapping[str, Any]) -> str:
    """Tokens per second with half the width of the 95 % interval, where one is known."""
    low, high = measured.get("tokens_per_sec_low"), measured.get("tokens_per_sec_high")
    rate = f"{measured['tokens_per_sec']:,.0f}"
    return rate if low is None or high is None else f"{rate} ± {(high - low) / 2:,.0f}"


def _baseline(trials: Sequence[Trial], baseline_key: str | None) -> Trial | None:
    return next((t for t in trials if t.measured and t.layout.key == baseline_key), None)


def _against(baseline: Trial, best: Trial, ranking: Ranking) -> str:
    if baseline.layout.key == best.layout.key:
        room = room_words(ranking)
        return f"no layouts measured{room} beat what runs today" if room else "nothing measured beats what runs today"
    objective = ranking.objective
    speedup = speedup_over(baseline, best, objective)
    if speedup is None:
        return "not comparable with what runs today"
    if objective is Objective.TOKENS_PER_SEC:
        better = "faster than today" if speedup.ratio >= 1 else "as fast as today"  # it may be a tie, or a constraint's
    else:
        better = f"{'better than' if speedup.ratio >= 1 else 'as good as'} today in {objective}"
    interval = "" if speedup.low is None else f" ({speedup.low:.2f} to {speedup.high:.2f})"
    return f"{speedup.ratio:.2f} x {better}{interval}"
