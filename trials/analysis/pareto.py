"""Pareto set of a search: layouts that no other layout beats in all objectives. Pure.

All objectives but energy derive from one throughput and the number of nodes. On equal nodes the faster layout is
therefore better by each of them, so that the first layout of each number of nodes in the ranking is enough. With energy
among the objectives every layout stands for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from search_spaces.layouts.layout import Layout
from trials.analysis.ranked_layout import RankedLayout
from trials.analysis.ranking import Objective, Ranking, in_objective_unit, is_faster, known_value_of, value_of
from trials.files.text import plural

Beats = Callable[[RankedLayout, RankedLayout], bool]
"""True if the first layout is better than the second in one goal, by more than the spread between runs."""


def pareto(ranking: Ranking) -> tuple[RankedLayout, ...]:
    """The best layout, then every layout that beats each other one in some goal, as ranked; () with a single goal.

    The goals are the ranking's objectives. With a single objective, fewer nodes are a second goal once layouts on
    several numbers of nodes were measured. Left out are suspect layouts, those with too little free memory, and those
    of which a repeat failed for a reason of the layout's own.
    """
    best, candidates = ranking.best, _candidates(ranking)
    if best is None or (not ranking.others and len({one.layout.num_nodes for one in candidates}) == 1):
        return ()
    goals = _goals(ranking)
    return best, *(one for place, one in enumerate(candidates) if place and _is_undominated(place, candidates, goals))


@dataclass(frozen=True)
class ParetoPoint:
    """A layout that no other beats in all objectives."""

    trial: str
    layout: Layout
    num_nodes: int
    values: Mapping[Objective, float]
    """Value of each objective in its own unit."""


def pareto_points(ranking: Ranking) -> list[ParetoPoint]:
    """The layouts of `pareto` with the values that are known of them."""
    objectives = (ranking.objective, *ranking.others)
    return [
        ParetoPoint(one.trial, one.layout, one.layout.num_nodes, _values(one, objectives)) for one in pareto(ranking)
    ]


def _values(layout: RankedLayout, objectives: Iterable[Objective]) -> dict[Objective, float]:
    known = ((objective, known_value_of(layout, objective)) for objective in objectives)
    return {objective: in_objective_unit(value, objective) for objective, value in known if value is not None}


def trade_offs(ranking: Ranking) -> list[str]:
    """The trade-off of each Pareto point besides the best, a clause each."""
    best, *others = pareto(ranking) or (None,)
    return [] if best is None else [_describe_trade_off(best, other) for other in others]


def _candidates(ranking: Ranking) -> tuple[RankedLayout, ...]:
    """The best, then the first layout of each other number of nodes in the ranking's order; with energy among the
    objectives every other layout."""
    if ranking.best is None:
        return ()
    allowed = (
        one for one in ranking.ordered if ranking.has_headroom(one) and not one.is_suspect and not one.is_failing
    )
    known = [ranking.best, *(layout for layout in allowed if layout is not ranking.best)]
    if all(objective.follows_from_throughput for objective in (ranking.objective, *ranking.others)):
        first_by_nodes: dict[int, RankedLayout] = {}
        for layout in known:
            first_by_nodes.setdefault(layout.layout.num_nodes, layout)
        return tuple(first_by_nodes.values())
    return tuple(known)


def _goals(ranking: Ranking) -> list[Beats]:
    goals = [_by(objective) for objective in (ranking.objective, *ranking.others)]
    return goals if ranking.others else [*goals, lambda one, other: one.layout.num_nodes < other.layout.num_nodes]


def _by(objective: Objective) -> Beats:
    return lambda one, other: is_faster(one, other, objective)


def _is_undominated(place: int, candidates: Sequence[RankedLayout], goals: list[Beats]) -> bool:
    """True if the candidate beats every other one in some goal; of two that tie in all, the first stays."""
    layout = candidates[place]
    return all(
        any(beats(layout, other) for beats in goals)
        or (number > place and not any(beats(other, layout) for beats in goals))
        for number, other in enumerate(candidates)
        if number != place
    )


def _describe_trade_off(best: RankedLayout, other: RankedLayout) -> str:
    speed, nodes = _tokens_per_sec(other) / _tokens_per_sec(best), other.layout.num_nodes / best.layout.num_nodes
    where = f"{other.trial} on {plural(other.layout.num_nodes, 'node')}"
    text = f"{where} has {100 * speed:.0f} % of its tokens/s at {100 * nodes / speed:.0f} % of its node-hours a token"
    energy, of_best = other.measured.joules_per_token, best.measured.joules_per_token
    return text if energy is None or of_best is None else f"{text} and {100 * energy / of_best:.0f} % of its energy"


def _tokens_per_sec(layout: RankedLayout) -> float:
    return value_of(layout, Objective.TOKENS_PER_SEC)
