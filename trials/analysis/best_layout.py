"""A search's best layout as the contract's `best` object, and the reason for the choice. Pure, over a ranking."""

from __future__ import annotations

from typing import Any

from trials.analysis.node_sets import runs_on_disjoint_nodes
from trials.analysis.pareto import pareto_json, trade_offs
from trials.analysis.ranked_layout import RankedLayout, suspect_reruns
from trials.analysis.ranking import Objective, Ranking, in_objective_unit, value_of
from trials.trial import LowerStrEnum, TrialKind


class Choice(LowerStrEnum):
    """Reason for the best layout: the fastest by the objective, or statistically tied with it and needing less
    memory."""

    FASTEST = "fastest"
    """The best by the first objective."""
    MEMORY = "memory"
    """Tied with the fastest, and needs the least memory."""


def best_json(ranking: Ranking) -> dict[str, Any] | None:
    """The contract's `best` object; None where nothing counts as best. `value` is the objective in its own unit."""
    best, fastest = ranking.best, ranking.fastest
    if best is None or fastest is None:
        return None
    return {
        "trial": best.trial,
        "layout": best.layout.to_json(),
        "objective": ranking.objective.value,
        "value": in_objective_unit(value_of(best, ranking.objective), ranking.objective),
        "tokens_per_sec": best.measured.tokens_per_sec,
        "tokens_per_sec_low": best.measured.tokens_per_sec_low,
        "tokens_per_sec_high": best.measured.tokens_per_sec_high,
        "peak_memory_gib": best.measured.peak_memory_gib,
        "ties": [tie.trial for tie in ranking.ties],
        "selection_reason": choice_of(ranking),
        "fastest": fastest_json(ranking),
        "rationale": rationale(ranking),
        "pareto": pareto_json(ranking),
        "flags": list(best.flags),
        "time_s": best.measured.time_s,
        "fullest_rank": None if best.fullest_rank is None else dict(best.fullest_rank),
        "on_disjoint_nodes": runs_on_disjoint_nodes(best.counted),
        "slowest_rank": None if best.slowest_rank is None else dict(best.slowest_rank),
    }


def choice_of(ranking: Ranking) -> Choice | None:
    """The reason for the choice of the best layout; None without a best."""
    if ranking.best is None:
        return None
    return Choice.FASTEST if ranking.best is ranking.fastest else Choice.MEMORY


def fastest_json(ranking: Ranking) -> dict[str, Any] | None:
    """The layout that was measured as the fastest, which need not be the best; None where nothing counts as best."""
    fastest = ranking.fastest
    if fastest is None:
        return None
    value = in_objective_unit(value_of(fastest, ranking.objective), ranking.objective)
    return {"trial": fastest.trial, "value": value, "peak_memory_gib": fastest.measured.peak_memory_gib}


def rationale(ranking: Ranking) -> str | None:
    """The reason for the choice of the best layout, then the trade-offs of the other Pareto points.

    The text continues a sentence that begins with the layout's name. None without a best.
    """
    chosen = describe_choice(ranking)
    return None if chosen is None else "; ".join([chosen, *trade_offs(ranking)])


def describe_choice(ranking: Ranking) -> str | None:
    """The reason for the choice of the best layout by the first objective; None without a best."""
    best, fastest = ranking.best, ranking.fastest
    if best is None or fastest is None:
        return None
    if best is not fastest:
        return _spares_memory(best, fastest)
    first = "the fastest" if ranking.objective is Objective.TOKENS_PER_SEC else f"the best in {ranking.objective}"
    second = suspect_reruns(best.runs)
    is_finalist = any(run.kind is TrialKind.REPEAT and run.trial not in second for run in best.runs)
    room = describe_memory_room(ranking)
    if is_finalist:
        return f"{first} of those measured again{room}, by the lower end of its 95 % interval"
    return f"{first} of the layouts measured{room}"


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


def _spares_memory(best: RankedLayout, fastest: RankedLayout) -> str:
    needed, limit = best.measured.peak_memory_gib, fastest.measured.peak_memory_gib
    assert needed is not None, "it was chosen for its memory"
    assert limit is not None, "which was compared with this"
    less = f"{100 * (1 - needed / limit):.0f} % less memory"
    return f"statistically tied with {fastest.trial}, the fastest, and needs {less}: {needed:.3g} GiB, not {limit:.3g}"
