"""Pareto set of a search: layouts that no other layout beats in all objectives. Pure.

All objectives derive from one throughput and the number of nodes. On equal nodes the faster layout is therefore better
by each of them, so that the first layout of each number of nodes in the ranking is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trials.analysis.ranked_layout import RankedLayout
from trials.analysis.ranking import Objective, Ranking, in_objective_unit, is_faster, value_of
from trials.files.text import plural

Beats = Callable[[RankedLayout, RankedLayout], bool]
"""True if the first layout is better than the second in one goal, by more than the spread between runs."""


def pareto(ranking: Ranking) -> tuple[RankedLayout, ...]:
    """The best layout, then every layout that beats each other one in some goal, as ranked; () with a single goal.

    The goals are the ranking's objectives. With a single objective, fewer nodes are a second goal once layouts on
    several numbers of nodes were measured. Left out are suspect layouts, those with too little free memory, and those
    of which a repeat failed for a reason of the layout's own.
    """
    best, first_by_nodes = ranking.best, _first_by_nodes(ranking)
    if best is None or (not ranking.others and len(first_by_nodes) == 1):
        return ()
    goals = _goals(ranking)
    points = {
        nodes: layout
        for nodes, layout in first_by_nodes.items()
        if layout is best or _is_undominated(layout, first_by_nodes, goals)
    }
    return best, *(layout for layout in points.values() if layout is not best)


def pareto_json(ranking: Ranking) -> list[dict[str, Any]]:
    """The contract's `pareto`; each value is in its objective's own unit."""
    objectives = (ranking.objective, *ranking.others)
    return [
        {
            "trial": point.trial,
            "layout": point.layout.to_json(),
            "num_nodes": point.layout.num_nodes,
            "values": {o.value: in_objective_unit(value_of(point, o), o) for o in objectives},
        }
        for point in pareto(ranking)
    ]


def trade_offs(ranking: Ranking) -> list[str]:
    """The trade-off of each Pareto point besides the best, a clause each."""
    best, *others = pareto(ranking) or (None,)
    return [] if best is None else [_describe_trade_off(best, other) for other in others]


def _first_by_nodes(ranking: Ranking) -> Mapping[int, RankedLayout]:
    """The first layout of each number of nodes in the ranking's order; the best represents its own number."""
    counts = {} if ranking.best is None else {ranking.best.layout.num_nodes: ranking.best}
    for layout in ranking.ordered:
        if ranking.has_headroom(layout) and not layout.is_suspect and not layout.is_failing:
            counts.setdefault(layout.layout.num_nodes, layout)
    return counts


def _goals(ranking: Ranking) -> list[Beats]:
    goals = [_by(objective) for objective in (ranking.objective, *ranking.others)]
    return goals if ranking.others else [*goals, lambda one, other: one.layout.num_nodes < other.layout.num_nodes]


def _by(objective: Objective) -> Beats:
    return lambda one, other: is_faster(one, other, objective)


def _is_undominated(layout: RankedLayout, first_by_nodes: Mapping[int, RankedLayout], goals: list[Beats]) -> bool:
    others = (other for other in first_by_nodes.values() if other is not layout)
    return all(any(beats(layout, other) for beats in goals) for other in others)


def _describe_trade_off(best: RankedLayout, other: RankedLayout) -> str:
    speed, nodes = _tokens_per_sec(other) / _tokens_per_sec(best), other.layout.num_nodes / best.layout.num_nodes
    where = f"{other.trial} on {plural(other.layout.num_nodes, 'node')}"
    return f"{where} has {100 * speed:.0f} % of its tokens/s at {100 * nodes / speed:.0f} % of its node-hours a token"


def _tokens_per_sec(layout: RankedLayout) -> float:
    return value_of(layout, Objective.TOKENS_PER_SEC)
