"""Reason for the choice of a search's best layout. Pure, over a ranking."""

from __future__ import annotations

from dataclasses import dataclass

from trials.analysis.pareto import trade_offs
from trials.analysis.ranked_layout import RankedLayout
from trials.analysis.ranking import Objective, Ranking, in_objective_unit, value_of
from trials.trial import LowerStrEnum


class Choice(LowerStrEnum):
    """Reason for the best layout. It is recommended, rather than the fastest, where a faster one was measured."""

    FASTEST = "fastest"
    """No measured layout is better by the first objective."""
    MEMORY = "memory"
    """Tied with a faster one, and needs less memory."""
    INTERVAL = "interval"
    """Tied with a faster one, whose 95 % interval reaches lower."""
    EXCLUDED = "excluded"
    """A faster one leaves too little memory free, is suspect or unproven, or was not measured again."""


@dataclass(frozen=True)
class Fastest:
    """The faster layout over which the best was chosen; the best itself where none was measured as faster."""

    trial: str
    value: float
    """The objective in its own unit."""
    peak_memory_gib: float | None


def choice_of(ranking: Ranking) -> Choice | None:
    """The reason for the choice of the best layout; None without a best."""
    best, faster = ranking.best, faster_layout(ranking)
    if best is None or faster is None:
        return None if best is None else Choice.FASTEST
    if faster not in ranking.ties:
        return Choice.EXCLUDED
    return Choice.INTERVAL if best is ranking.fastest else Choice.MEMORY


def faster_layout(ranking: Ranking) -> RankedLayout | None:
    """The layout over which the best was chosen though it was measured as faster: one tied with it, else the fastest
    of all; None without a best, and where none is faster."""
    best, objective = ranking.best, ranking.objective
    if best is None:
        return None
    faster = [one for one in ranking.ordered if value_of(one, objective) > value_of(best, objective)]
    if ranking.fastest in faster:
        return ranking.fastest
    tied = [one for one in faster if one in ranking.ties]
    return max(tied or faster, key=lambda one: value_of(one, objective), default=None)


def fastest_of(ranking: Ranking) -> Fastest | None:
    """The faster layout over which the best was chosen, else the best itself; None without a best."""
    fastest = faster_layout(ranking) or ranking.best
    if fastest is None:
        return None
    value = in_objective_unit(value_of(fastest, ranking.objective), ranking.objective)
    return Fastest(fastest.trial, value, fastest.measured.peak_memory_gib)


def rationale(ranking: Ranking) -> str | None:
    """The reason for the choice of the best layout, then the trade-offs of the other Pareto points, without a full
    stop. None without a best."""
    chosen = describe_choice(ranking)
    return None if chosen is None else "; ".join([chosen, *trade_offs(ranking)])


def describe_choice(ranking: Ranking) -> str | None:
    """The best layout and the reason for its choice by the first objective; None without a best."""
    if ranking.best is None:
        return None
    if (faster := describe_faster(ranking)) is not None:
        return f"Recommended: {ranking.best.trial}. {faster}"
    what = "the fastest" if ranking.objective is Objective.TOKENS_PER_SEC else f"the best in {ranking.objective}"
    return f"{ranking.best.trial} is {what} of the layouts measured"


def describe_faster(ranking: Ranking) -> str | None:
    """By how much a layout is faster than the best, and why it was not chosen; None where none is."""
    best, faster = ranking.best, faster_layout(ranking)
    if best is None or faster is None:
        return None
    gain = 100 * (value_of(faster, ranking.objective) / value_of(best, ranking.objective) - 1)
    words = f"{gain:.0f} % " if gain >= 1 else f"{gain:.1g} % "
    words += "faster" if ranking.objective is Objective.TOKENS_PER_SEC else f"better in {ranking.objective}"
    if faster not in ranking.ties:
        return f"{faster.trial} is {words}, but {_obstacle(faster, ranking)}"
    return f"{faster.trial} is {words}, within noise, but {_drawback(faster, best, ranking)}"


def describe_memory_room(ranking: Ranking) -> str:
    """A relative clause naming the memory that candidates leave free; empty where all layouts leave enough."""
    headroom = ranking.headroom
    if headroom is None or all(map(ranking.has_headroom, ranking.ordered)):
        return ""
    return f" that leave {headroom.min_free_gib:g} GiB free"


def no_room_detail(ranking: Ranking) -> str | None:
    """A sentence that every measured layout leaves too little memory, and which comes nearest.

    None where some layout leaves enough, or nothing was measured.
    """
    headroom, layouts = ranking.headroom, ranking.ordered
    if headroom is None or not layouts or any(map(ranking.has_headroom, layouts)):
        return None
    asked = f"no layout that was measured leaves {headroom.min_free_gib:g} GiB free (constraints.min_free_memory_gib)"
    peaks = ((layout.measured.peak_memory_gib, layout.trial) for layout in layouts)
    known = [(peak_gib, name) for peak_gib, name in peaks if peak_gib is not None]
    if not known:
        return f"{asked}: the peak of none is known"
    peak_gib, name = min(known)
    return f"{asked}: {name} comes nearest and leaves {headroom.format_free(peak_gib)}"


def describe_no_best(ranking: Ranking) -> str | None:
    """The reason why there is no best among measured layouts; None where none was measured."""
    if (too_full := no_room_detail(ranking)) is not None or not ranking.ordered:
        return too_full
    return "no layout that was measured may be the best: one suspect run alone never is"


def _obstacle(faster: RankedLayout, ranking: Ranking) -> str:
    """Reason why a layout did not compete with the best."""
    if not ranking.has_headroom(faster):
        return "leaves too little memory free"
    if faster.is_suspect or faster.is_unproven:
        return "is suspect" if faster.is_suspect else "is unproven"
    return "failed when it was measured again" if faster.is_failing else "was not measured again"


def _drawback(faster: RankedLayout, best: RankedLayout, ranking: Ranking) -> str:
    """Reason why a layout tied with the best was not chosen."""
    needed, limit = best.measured.peak_memory_gib, faster.measured.peak_memory_gib
    if best is ranking.fastest or needed == limit:
        return "its 95 % interval reaches lower"
    if (nodes := faster.layout.num_nodes) > best.layout.num_nodes:
        return f"takes {nodes} nodes instead of {best.layout.num_nodes}"
    return "its peak memory is unknown" if limit is None else f"needs {limit:.3g} GiB instead of {needed:.3g}"
